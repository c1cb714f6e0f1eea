"""S13: what the cache of replies gives to whom, while workers die."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from tests.chaos.house import House, house
from tests.chaos.link import Link, request
from tests.chaos.row import FULL, SEED, Findings, row
from tests.support.clients import GENERATING, usual

SECONDS = 60.0 if FULL else 10.0
KEYS: Mapping[str, Mapping[str, Any]] = {
    "a1": {"team": "a"},
    "a2": {"team": "a"},
    "b1": {"team": "b"},
    "alone": {},
}
CLIENTS = 12
PROMPTS, PIECES = 12, 30
DOWN_S = 0.7
"""From one death of a worker to the next one."""

KEPT_S = 1.0
"""A reply is kept before its end has reached its client, and so before it is in the log."""


class Asked(Struct):
    """One request. text: what came of the reply; None if it broke off. prompt: its number."""

    key: str
    prompt: int
    began: float
    status: int = 0
    hit: bool = False
    text: str | None = None


@row("S13", "replies from the cache for several teams, while their workers die")
async def remembered(findings: Findings) -> None:
    """12 clients of two teams and a key without a team ask 12 prompts for 10 s, in every dialect, streamed and not, as
    one after the other of 3 workers is killed and started again; some leave in the middle. `FULL=1`: 60 s.

    Passes if each reply from the cache is whole, and one that its team was given before, by a worker that did not die;
    replies do come from the cache.
    """
    asked: dict[str, Asked] = {}
    config = {
        "reply_cache": {},
        "health": {"interval_s": 0.3, "timeout_s": 0.3},
        "dialects": {name: {"default_model": "m"} for name in GENERATING},
    }
    async with house(KEYS, config, 1, [("--itl-ms", "5")] * 3) as at:
        ends = time.monotonic() + SECONDS
        deaths = asyncio.create_task(_kill(at, ends))
        await asyncio.gather(*(_client(at, number, ends, asked) for number in range(CLIENTS)))
        died = await deaths
        await asyncio.sleep(1)
        records = at.records()
    hits = {id_: one for id_, one in asked.items() if one.hit}
    cut = [id_ for id_, one in hits.items() if one.status == 200 and one.text is not None and not _whole(one)]
    findings.none("replies from the cache that are not whole", cut, len(hits))
    given = [
        (team_of(one.key), one.prompt, records[id_]["time"])
        for id_, one in asked.items()
        if id_ in records and _kept(records[id_])
    ]
    foreign = []
    for id_, one in ((id_, one) for id_, one in hits.items() if id_ in records):
        latest = records[id_]["time"] + KEPT_S
        if not any((who, prompt) == (team_of(one.key), one.prompt) and when <= latest for who, prompt, when in given):
            foreign.append(id_)
    findings.none("replies from the cache that no worker had given to the team", foreign, len(hits))
    findings.at_least("replies from the cache (100)", len(hits), 100, len(asked), ".0f")
    findings.at_least("deaths of workers (5)", died, 5, len(asked), ".0f")


def team_of(key: str) -> str:
    team: str = KEYS[key].get("team", key)
    return team


def _kept(record: Mapping[str, Any]) -> bool:
    return record["cache"] == "miss" and record["outcome"] == "ok" and not record.get("continued")


def _whole(one: Asked) -> bool:
    return one.text is not None and all(_piece(one.prompt, number) in one.text for number in range(PIECES))


def _piece(prompt: int, number: int) -> str:
    return f"p{prompt}x{number}."


async def _kill(at: House, ends: float) -> int:
    """One worker after the other. Returns how many died."""
    died = 0
    while time.monotonic() < ends - 2:
        place = died % len(at.workers)
        at.workers[place].process.kill()
        await at.workers[place].process.wait()
        died += 1
        at.workers[place] = await at.workers[place].again()
        await asyncio.sleep(DOWN_S)
    return died


async def _client(at: House, number: int, ends: float, asked: dict[str, Asked]) -> None:
    draw, link, names = random.Random(f"{SEED} {number}"), Link(at.gateways[0].address), list(KEYS)
    while time.monotonic() < ends:
        key, prompt = draw.choice(names), draw.randrange(PROMPTS)
        way = usual(draw.choice(GENERATING))
        stream = way.answers(stream=True) and (draw.random() < 0.6 or not way.answers(stream=False))
        script = json.dumps({"pieces": [_piece(prompt, place) for place in range(PIECES)]})
        body = way.body(f"sim:{script}", stream=stream, model="m", temperature=0, max_tokens=200)
        id_, control = f"{number}-{len(asked)}", {"cache-control": "no-cache"} if draw.random() < 0.3 else {}
        one = asked[id_] = Asked(key, prompt, time.monotonic())
        headers = {"x-request-id": id_, "api-key": at.keys[key], **control}
        leaves = draw.randrange(1, 20) if stream and draw.random() < 0.2 else None
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
            answer = await link.send(request("POST", way.path("m"), headers, json.dumps(body).encode()), leaves)
            one.status, one.hit = answer.status, answer.headers.get("x-dragoman-cache") == "hit"
            one.text = answer.body.decode("utf-8", "replace") if leaves is None else None
        await asyncio.sleep(0.01)
    link.close()
