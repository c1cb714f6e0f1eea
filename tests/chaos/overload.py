"""L1 and L13: more than the workers can do, and a team that sends most of it."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

from msgspec import Struct

from gateway.core.errors import Busy, Kind
from gateway.core.http import Request
from tests.chaos.arriving import at_once
from tests.chaos.house import House, house
from tests.chaos.link import Answer, Link, request
from tests.chaos.paced import given, known, tell
from tests.chaos.row import FULL, SEED, Findings, percentile, row
from tests.support.clients import DIALECTS, Way, usual

WORKERS, PLACES = 5, 16
"""Of the most requests at once that each worker may have."""
FIRST_S, ITL_S, TOKENS = 0.25, 0.1, 20
"""A reply has 8 to 32 tokens, as the simulated worker draws from its prompt: places become free one by one."""
CAPACITY = WORKERS * PLACES / (FIRST_S + TOKENS * ITL_S)
SECONDS = 30.0 if FULL else 15.0
QUEUE = 2
"""Waiting places: what is let to wait has its worker within a part of what a first token takes."""

SHARE_PLACES, SHARE_ITL_S = 24, 0.03
SHARE = SHARE_PLACES / (FIRST_S + TOKENS * SHARE_ITL_S) / 2
"""Requests a second of each of two teams, if one worker is dealt out evenly."""
FLOOD = 20
WARM_S = 3.0
FLOOD_S = 60.0 if FULL else 24.0


class Sent(Struct):
    """One request of `way`, and its answer, None where the connection broke."""

    way: Way
    at: float
    body: bytes
    answer: Answer | None = None


class Crowd:
    """Clients of many connections, in every dialect that streams chats, or in one."""

    def __init__(self, at: House, ways: list[Way], key: str | None = None) -> None:
        self.sent: list[Sent] = []
        self._address = at.gateways[0].address
        self._ways = ways
        self._headers = {} if key is None else {"api-key": at.keys[key]}
        self._links: list[Link] = []
        self._draw = random.Random(f"{SEED} {key}")

    async def ask(self) -> None:
        way = self._ways[len(self.sent) % len(self._ways)]
        words = f"{len(self.sent)} {self._draw.random()}"
        body = {**way.body(words, stream=True, max_tokens=1000), "model": "m"}
        one = Sent(way, time.monotonic(), json.dumps(body).encode())
        self.sent.append(one)
        link = self._links.pop() if self._links else Link(self._address)
        try:
            one.answer = await link.send(request("POST", way.path("m"), self._headers, one.body))
        except (OSError, asyncio.IncompleteReadError):
            link.close()
        self._links.append(link)

    async def come(self, rate: float, seconds: float) -> None:
        """At uneven times, whatever became of those before; returns when all have their answers."""
        began = due = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while due < began + seconds:
                group.create_task(self.ask())
                due += self._draw.uniform(0.5, 1.5) / rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    def close(self) -> None:
        for link in self._links:
            link.close()


def streamed() -> list[Way]:
    return [way for way in map(usual, DIALECTS) if way.operation == "chat" and way.answers(stream=True)]


async def ready(at: House, spec: str = f"stall:{FIRST_S}") -> None:
    """All workers serve, and each first token takes its time, which no other request's adds to."""
    await known(at)
    for worker in at.workers:
        await tell(worker, "/sim/faults", fault=spec, path="/v1/")


def in_form(one: Sent) -> bool:
    """A refusal as this dialect's clients know it: the same members as in what the dialect says, and when to return."""
    answer = one.answer
    if answer is None or answer.status not in (429, 503, 529):
        return False
    dialect, path = DIALECTS[one.way.dialect], one.way.path("m").partition("?")[0]
    asked = Request("POST", path, [], one.body, b"", one.way.route.name, {"endpoint": "m"}, "id")
    wanted, _ = dialect.refuse(Busy("m", "queue_full", 1.0), asked, None)
    told = {"retry-after", "x-amz-retry-after"} & set(answer.headers)
    return bool(told) and answer.status == dialect.errors[Kind.LIMITED][0] and same_form(answer.body, wanted.body)


def same_form(body: bytes, wanted: bytes) -> bool:
    def names(value: Any) -> Any:
        return {name: names(inner) for name, inner in value.items()} if isinstance(value, dict) else None

    try:
        return bool(names(json.loads(body)) == names(json.loads(wanted)))
    except ValueError:
        return False


def firsts(crowd: Crowd, warm_s: float = 0.0) -> list[float]:
    """Seconds to the first bytes of each reply that was accepted, of those sent after the first `warm_s`."""
    start = crowd.sent[0].at + warm_s
    return [
        one.answer.first_s
        for one in crowd.sent
        if one.at >= start and one.answer is not None and one.answer.status == 200
    ]


@row("L1", "three times what the workers can do")
async def overloaded(findings: Findings) -> None:
    """Five workers of 16 places get three times what they can do, as streams in every dialect, 15 s, `FULL=1`: 30 s;
    two may wait; a first token takes 250 ms, a reply 1 to 3.5 s.

    Passes if the workers' places serve what is whole at least 0.9 of the time. The p99 to the first token of what
    is accepted is at most twice that without load. The others get a 429 with Retry-After in their dialect's own
    form, within 50 ms (p99). No worker ever has more than `max_in_flight`.
    """
    flags = ("--itl-ms", str(ITL_S * 1000), "--slots", str(2 * PLACES))
    config: dict[str, Any] = {
        "queue": {"max_waiting": QUEUE},
        "models": {"m": {"max_in_flight": PLACES}},
        "dialects": {name: {"default_model": "m"} for name in DIALECTS},
    }
    async with house({}, config, 1, [flags] * WORKERS) as at:
        await ready(at)
        calm = Crowd(at, streamed())
        await calm.come(CAPACITY / 5, 6.0)
        began = time.monotonic()
        crowd = Crowd(at, streamed())
        await crowd.come(3 * CAPACITY, SECONDS)
        calm.close()
        crowd.close()
        ledgers = [await given(worker) for worker in at.workers]
    unloaded, loaded = percentile(firsts(calm), 0.99), firsts(crowd)
    served = [one for one in crowd.sent if one.answer is not None and one.answer.status == 200]
    refused = [one for one in crowd.sent if one not in served]
    done = [one for ledger in ledgers for one in ledger if one["ended"] and one["state"] == "completed"]
    start, end = began + 1, began + SECONDS
    busy = sum(max(0.0, min(one["ended"], end) - max(one["started"], start)) for one in done)
    goodput = busy / (WORKERS * PLACES * (end - start))
    what = "goodput: places that served what was whole, all the time (0.9)"
    findings.at_least(what, goodput, 0.9, len(done), ".3f")
    after = percentile(loaded, 0.99)
    findings.check(
        f"p99 to the first token, {unloaded * 1000:.0f} ms without load (2 times that at most)",
        f"{after * 1000:.0f} ms",
        len(loaded),
        after <= 2 * unloaded,
    )
    slow = percentile([one.answer.seconds for one in refused if one.answer is not None], 0.99) * 1000
    findings.check("p99 until a refusal, 50 ms at most", f"{slow:.1f} ms", len(refused), slow <= 50)
    odd = [one for one in refused if not in_form(one)]
    spoken = len({one.way.dialect for one in refused})
    findings.none(f"refusals not in their dialect's form, of {spoken} dialects", len(odd), len(refused))
    running = [at_once(ledger) for ledger in ledgers]
    findings.check(f"requests at once on a worker, at most {PLACES}", max(running), WORKERS, max(running) <= PLACES)


@row("L13", "a team that sends twenty times its share beside one that sends half of its own; priorities")
async def flooded(findings: Findings) -> None:
    """Two teams share one worker of 24 places: one sends half of its share, the other at first three times its own,
    which keeps all places taken, then twenty times; 24 s each, `FULL=1`: 60 s. Then a team of low priority floods
    beside one of high priority.

    Passes if the quiet team is never refused, and its p99 to the first token grows by at most 10 %. The flood gets
    at least 0.6 of the worker: what the other leaves. No request of high priority is refused, and their p99 is
    below the flood's median.
    """
    keys: dict[str, dict[str, Any]] = {
        "quiet": {"team": "quiet"},
        "loud": {"team": "loud"},
        "idle": {"team": "idle", "priority": -1},
        "urgent": {"team": "urgent", "priority": 1},
    }
    flags = ("--itl-ms", str(SHARE_ITL_S * 1000), "--slots", str(2 * SHARE_PLACES))
    config = {"queue": {"max_waiting": 100}, "models": {"m": {"max_in_flight": SHARE_PLACES}}}
    async with house(keys, config, 1, [flags]) as at:
        await ready(at)
        found: dict[float, tuple[Crowd, Crowd]] = {}
        # More than the quiet team leaves to it: no place is free for long in either case.
        for times in (3.0, float(FLOOD)):
            quiet, loud = (Crowd(at, [usual("openai")], name) for name in ("quiet", "loud"))
            await asyncio.gather(quiet.come(SHARE / 2, FLOOD_S), loud.come(SHARE * times, FLOOD_S))
            found[times] = quiet, loud
        await priorities(findings, at)
    for times, (quiet, loud) in found.items():
        wrong = [one for one in quiet.sent if one.answer is None or one.answer.status != 200]
        findings.none(f"quiet beside {times:g} shares: refusals", len(wrong), len(quiet.sent))
        quiet.close()
        loud.close()
    # A flood takes all places in one moment, and they become free together: its first seconds are no one's wait.
    before, beside = (percentile(firsts(quiet, WARM_S), 0.99) for quiet, _ in found.values())
    findings.check(
        f"quiet: p99 to the first token, {before * 1000:.0f} ms beside a full worker, {beside * 1000:.0f} ms beside the"
        " flood (+10 % at most)",
        f"{beside / before - 1:+.1%}",
        len(firsts(found[FLOOD][0], WARM_S)),
        beside <= before * 1.1,
    )
    loud = found[FLOOD][1]
    served = len(firsts(loud)) / FLOOD_S / (2 * SHARE)
    findings.at_least("loud: served, of all that the worker can do", served, 0.6, len(loud.sent), ".2f")


async def priorities(findings: Findings, at: House) -> None:
    """While those of a low priority fill worker and queue, a higher one waits for no more than the next free place."""
    idle, urgent = (Crowd(at, [usual("openai")], name) for name in ("idle", "urgent"))
    await asyncio.gather(idle.come(SHARE * 8, FLOOD_S / 2), urgent.come(SHARE / 2, FLOOD_S / 2))
    wrong = [one for one in urgent.sent if one.answer is None or one.answer.status != 200]
    findings.none("urgent beside a flood of low priority: refusals", len(wrong), len(urgent.sent))
    first, other = percentile(firsts(urgent), 0.99), percentile(firsts(idle), 0.5)
    findings.check(
        f"urgent: p99 to the first token, below the median of the flood's, {other * 1000:.0f} ms",
        f"{first * 1000:.0f} ms",
        len(urgent.sent),
        first < other,
    )
    idle.close()
    urgent.close()
