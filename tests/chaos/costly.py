"""B10: one key's bodies that cost most, and its references to what is stored, beside another key's honest bodies."""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from typing import Any

from tests.chaos.hostile import CHATS, filled
from tests.chaos.house import CHAT, House, house
from tests.chaos.large import config, sink
from tests.chaos.link import Answer, Link, links, request
from tests.chaos.row import FULL, Findings, percentile, row
from tests.support.ports import free_port

MOST_MS, MOST_BYTES = 50.0, 16 << 20
HONEST = "some words " * 36_000
"""400 KB."""
ROUNDS = 20 if FULL else 5
ALONE = 40 if FULL else 15
HELD = 64 << 20
CHAIN, POSTS = 15, 30


def _responses(n: int) -> dict[str, Any]:
    tools = [{"type": "function", "name": f"f{number}"} for number in range(n)]
    calls = [{"type": "function_call", "call_id": "c", "name": f"g{number}", "arguments": "{}"} for number in range(n)]
    return {"model": "m", "input": calls, "tools": [{"type": "namespace", "name": "n", "tools": tools}]}


def _messages(n: int) -> dict[str, Any]:
    def change(kind: str, name: str) -> list[dict[str, Any]]:
        return [{"type": kind, "tool": {"name": f"{name}{number}", "input_schema": {}}} for number in range(n)]

    content = [*change("tool_addition", "f"), *change("tool_removal", "g")]
    messages = [{"role": "system", "content": content}, {"role": "user", "content": "a"}]
    return {"model": "m", "max_tokens": 1, "messages": messages}


HOSTILE = {
    "calls of tools that are not there": ("/v1/responses", filled(_responses, 700_000)),
    "removals of tools that are not there": ("/v1/messages", filled(_messages, 550_000)),
    "messages": (CHAT, filled(lambda n: {"model": "m", **CHATS["messages of one part"](n)})),
    "unknown members": (CHAT, filled(lambda n: {"model": "m", **CHATS["unknown members of messages"](n)})),
}


async def honest(at: House, link: Link, count: int) -> list[Answer]:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": HONEST}], "max_tokens": 1}).encode()
    return [await link.send(request("POST", CHAT, {"api-key": at.keys["honest"]}, body)) for _ in range(count)]


async def attack(at: House, key: str, path: str, body: bytes) -> list[int]:
    sent = request("POST", path, {"api-key": at.keys[key]}, body)
    with links(at.gateways[0].address, 4) as made:
        return [answer.status for answer in await asyncio.gather(*(link.send(sent) for link in made))]


@row("B10", "bodies of one key that cost most, four at once, beside another key's 400 KB")
async def costly(findings: Findings) -> None:
    """A key with 5 requests a minute and concurrency 2 sends four bodies at once that cost most (below 1 MB; four
    kinds), beside another key's bodies of 400 KB.

    Passes if two of four are refused before they are read; an honest request waits at most 50 ms longer; memory
    grows by at most 16 MiB.
    """
    limited = {"limits": {"requests": 5, "concurrency": 2}}
    keys: dict[str, dict[str, Any]] = {"honest": {}, **{f"hostile{number}": limited for number in range(len(HOSTILE))}}
    async with house(keys, {}, 1, [("--itl-ms", "0", "--max-model-len", "10000000")]) as at:
        gateway, link = at.gateways[0], Link(at.gateways[0].address)
        await honest(at, link, 3)
        alone = [answer.seconds * 1000 for answer in await honest(at, link, ALONE)]
        for number, (kind, (path, body)) in enumerate(HOSTILE.items()):
            before, busy, began = gateway.resident(), gateway.cpu_s(), time.monotonic()
            attacking = asyncio.ensure_future(attack(at, f"hostile{number}", path, body))
            await asyncio.sleep(0)
            among = await honest(at, link, ROUNDS)
            statuses = await attacking
            took = time.monotonic() - began
            refused = sum(status == 429 for status in statuses)
            findings.check(f"{kind}: of 4, refused by limits (2 at least)", f"{refused}: {statuses}", 4, refused >= 2)
            wrong = [answer.status for answer in among if answer.status != 200]
            findings.none(f"{kind}: honest requests that fail", len(wrong), len(among))
            added = max(answer.seconds * 1000 for answer in among) - percentile(alone, 0.5)
            findings.at_most(
                f"{kind}: ms that an honest request waits longer at worst ({MOST_MS:g}; alone "
                f"{percentile(alone, 0.5):.0f}, at worst {max(alone):.0f}); {gateway.cpu_s() - busy:.2f} s of CPU "
                f"in {took:.2f} s",
                added,
                MOST_MS,
                len(among),
                ".0f",
            )
            grown = gateway.resident(at_worst=True) - before
            findings.check(f"{kind}: MiB of memory at worst (16)", f"{grown / 2**20:.1f}", 1, grown <= MOST_BYTES)
        link.close()


@row("B11", "requests of 309 bytes that refer to a chain of 15 responses of 1 MB, 30 at once")
async def referring(findings: Findings) -> None:
    """30 requests of 309 bytes at once refer to a chain of 15 stored responses of 1 MB; `listen.max_bodies_bytes` is
    64 MiB.

    Passes if what has room is served; the others get 503 with `Retry-After`; memory grows by at most six times the
    bound.
    """
    port = free_port()
    settings = {
        **config(port, max_bodies_bytes=HELD),
        "store": {"where": "memory", "max_bytes": 1 << 30},
    }
    async with house({"one": {}}, settings, 1, front=partial(sink, port=port)) as at:
        gateway, link = at.gateways[0], Link(at.gateways[0].address)
        headers, last = {"api-key": at.keys["one"]}, None
        for _ in range(CHAIN):
            body = {"model": "big", "input": "a" * 1_000_000, "max_output_tokens": 1, "previous_response_id": last}
            answer = await link.post("/v1/responses", body, headers)
            assert answer.status == 200, answer.body
            last = answer.json()["id"]
        before = gateway.resident()
        short = json.dumps(
            {"model": "big", "input": "b", "max_output_tokens": 1, "previous_response_id": last}
        ).encode()
        sent = request("POST", "/v1/responses", headers, short.ljust(309))
        with links(gateway.address, POSTS) as made:
            answers = await asyncio.gather(*(one.send(sent) for one in made))
        statuses = [answer.status for answer in answers]
        grown = gateway.resident(at_worst=True) - before
        odd = [answer for answer in answers if answer.status not in (200, 503)]
        findings.check("answers other than 200 and 503", [(one.status, one.body[:200]) for one in odd], POSTS, not odd)
        findings.check("served", statuses.count(200), POSTS, statuses.count(200) >= 1)
        bare = [one for one in answers if one.status == 503 and "retry-after" not in one.headers]
        findings.none("refused without Retry-After", len(bare), statuses.count(503))
        findings.check(f"MiB of memory at worst (6 times {HELD >> 20})", f"{grown / 2**20:.0f}", 1, grown <= 6 * HELD)
        link.close()
