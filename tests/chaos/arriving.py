"""F8 and F16: workers that come back, and workers that are not ready yet."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

from tests.chaos.house import House, Process, chat, house, start
from tests.chaos.paced import Load, events, given, known, paced, tell, told, until
from tests.chaos.row import FULL, Findings, percentile, row

RATE = 100.0
AWAY_S = 20.0 if FULL else 5.0
"""And then 3 s to load: while they are judged no process is being started, which costs the whole machine."""
SLOWSTART_S = 30.0 if FULL else 20.0
SLOTS = 80
"""Most requests at once on a worker. The load keeps some 25 busy, and 40 where the machine does other things, too: the
one that stayed must not be full when the others return, or they have to take what it cannot."""

LOADING_S = 20.0 if FULL else 6.0
INTERVAL_S = 1.0
PLACES = 4
"""Most requests at once on a worker, where some wait."""
QUEUE = 20
AT_ONCE = 80
BURSTS = 5 if FULL else 2
ASKED_AGAIN_S = 1.0
"""How long a worker that says 503 is left alone, see `gateway.fleet.pool`."""


async def revive(at: House, number: int, *flags: str) -> None:
    """Starts a worker that was killed anew, where it was."""
    port = at.workers[number].address.rpartition(":")[2]
    words = ["tests.support.simulated", "--port", port, "--ledger", "200000", *flags]
    at.workers[number] = await start(at.folder, f"worker{number}-anew", *words, port=int(port))


async def kill(at: House, number: int) -> None:
    at.workers[number].process.send_signal(signal.SIGKILL)
    await at.workers[number].process.wait()


@row("F8", "four of five workers come back: how fast each takes its share")
async def returning(findings: Findings) -> None:
    """Four of five workers are killed and restarted 5 s later, `FULL=1`: 20 s, at 100 requests/s, which the fifth can
    carry alone without being full (80 places, some 25 of them taken): what it has no place for the others must take
    at once, however new they are; `breaker.slowstart_s` 20 s, `FULL=1`: 30 s.

    Passes if each takes at most 0.25 of a fair share in the first tenth of its slow start; after it they take at
    least 0.9 together, and each at least 0.5: places go by a hash; none ever has more than `max_in_flight`.
    """
    flags = ("--itl-ms", "50")
    config: dict[str, Any] = {
        "breaker": {"slowstart_s": SLOWSTART_S, "eject_s": 2},
        "health": {"interval_s": INTERVAL_S},
        "models": {"m": {"max_in_flight": SLOTS}},
    }
    async with house({}, config, 1, [flags] * 5) as at:
        await known(at)
        async with paced(at, RATE, chat(4)):
            await asyncio.sleep(1)
            for number in range(1, 5):
                await kill(at, number)
            await asyncio.sleep(AWAY_S)
            started = time.monotonic()
            for number in range(1, 5):
                await revive(at, number, "--loading-s", "3", *flags)
            came = await until(lambda: all(events(at, "worker ready", one, started) for one in at.workers[1:]), 20)
            await asyncio.sleep(SLOWSTART_S * 1.2)
        took = [await given(one) for one in at.workers]
        # One that was ejected, too, returns when its trial has told that it may.
        returns = [
            max(events(at, "worker ready", one, started) + events(at, "worker returned", one, started), default=0.0)
            for one in at.workers[1:]
        ]
    findings.check("workers that came back", sum(map(bool, returns)), 4, came)
    part = SLOWSTART_S / 10

    def shares(begin: float) -> list[float]:
        """Each returner's in a tenth of the slow start that begins at this share of it."""
        starts = [since + begin * SLOWSTART_S for since in returns]
        return [share(took, number, since, since + part) for number, since in enumerate(starts, 1)]

    first, middle, last = shares(0.0), shares(0.45), shares(1.0)
    n = sum(count(entries, since, since + part) for entries, since in zip(took[1:], returns, strict=True))
    m = sum(
        count(entries, since + 10 * part, since + 11 * part) for entries, since in zip(took[1:], returns, strict=True)
    )
    stayed = [entry for entry in took[0] if any(since <= entry["started"] < since + part for since in returns)]
    busy = f"the one that stayed had {at_once(stayed)} at once"
    findings.check(
        f"share of a fair share in the first tenth, 0.25 at most; {busy}", spread(first), n, max(first) <= 0.25
    )
    # The policy gives conversations their places by a hash: few requests do not come to all alike.
    together = sum(last) / max(1, len(last))
    what = f"and at the end (half-way {spread(middle)}): 0.9 at least together, 0.5 each"
    findings.check(what, f"{together:.2f}; {spread(last)}", m, together >= 0.9 and min(last) >= 0.5)
    most = max(at_once(entries) for entries in took)
    findings.check(f"requests at once on a worker, at most {SLOTS}", most, sum(map(len, took)), most <= SLOTS)


def count(entries: list[dict[str, Any]], start: float, end: float) -> int:
    return sum(start <= entry["started"] < end for entry in entries)


def share(took: list[list[dict[str, Any]]], number: int, start: float, end: float) -> float:
    """Of the requests in [start, end), as a multiple of the fair share."""
    counts = [count(entries, start, end) for entries in took]
    return counts[number] * len(counts) / max(1, sum(counts))


def spread(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}" if values else "none"


def at_once(entries: list[dict[str, Any]]) -> int:
    """Most requests that the worker had at one time; what never ended it has still."""
    changes = [(entry["started"], 1) for entry in entries]
    changes += [(entry["ended"], -1) for entry in entries if entry["ended"]]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


@row("F16", "workers that load, two of which say so; a queue that is bounded")
async def loading(findings: Findings) -> None:
    """Two of five workers restart and answer 503 on every path until they have loaded; one answers 503 to requests
    while its health path says 200; bursts of 80 against 4 slots a worker and a queue of 20; at last all workers
    load.

    Passes if clients get 200. No request goes to a worker that reports that it loads. The one whose health path
    lies gets at most one request a second, which another worker then answers. In a burst, as many requests as have
    room get 200, and one more that had tried that worker; the others get 429 with Retry-After within 100 ms; no
    worker has more than `max_in_flight`; a worker is used ≤ 2 s after it serves. While all load: 503 with
    Retry-After, p99 ≤ 100 ms.
    """
    # Workers 0 and 1 serve. 2 is started anew and says 503 on its health path, too; 3 says 503 to requests alone,
    # its health path has nothing but 200; 4 is as 2, and ready before the load ends.
    flags = ("--itl-ms", "5")
    config: dict[str, Any] = {
        "breaker": {"slowstart_s": 0},  # which would hide who is sent what: it is F8's
        "health": {"interval_s": INTERVAL_S},
        "queue": {"max_waiting": QUEUE},
        "models": {"m": {"max_in_flight": PLACES}},
    }
    async with house({}, config, 1, [flags] * 5) as at:
        await known(at)
        liar = at.workers[3]
        await tell(liar, "/sim/state", serving=False)
        began = time.monotonic()
        for number, seconds in ((2, 3600.0), (4, LOADING_S / 2)):
            await kill(at, number)
            await revive(at, number, "--loading-s", str(seconds), *flags)
        # What their deaths cost is F3's.
        await until(lambda: not up(at, at.workers[2]) and not up(at, at.workers[4]), 10)
        async with paced(at, RATE / 2, chat(4)) as load:
            await asyncio.sleep(LOADING_S)
            await until(lambda: bool(events(at, "worker ready", at.workers[4], began)), 10)
            await asyncio.sleep(2)
        quiet = time.monotonic()
        wrong = [one for one in load.asked if one.status != 200]
        findings.none("answers other than 200 while three load", len(wrong), len(load.asked))
        honest = await given(at.workers[2])
        findings.none("requests to the one that says that it loads", len(honest), len(load.asked))
        later = await given(at.workers[4])
        early = [entry for entry in later if entry["status"] == 503]
        findings.none("requests to one before it was ready", len(early), len(later))
        lied = await given(liar, began)
        most = 1 + int((quiet - began) / ASKED_AGAIN_S)
        findings.check(
            f"requests to the one that says so to requests alone, one a second ({most}) at most",
            len(lied),
            len(load.asked),
            len(lied) <= most,
        )
        await queueing(findings, at)
        healed = time.monotonic()
        await tell(liar, "/sim/state", serving=True)
        async with paced(at, RATE / 2, chat(4), "healed"):
            await asyncio.sleep(3 * ASKED_AGAIN_S)
        first = min((entry["started"] for entry in await given(liar, healed) if entry["status"] == 200), default=1e18)
        waited = first - healed
        findings.at_most("used again, s after it serves (2 at most)", waited, 2 * ASKED_AGAIN_S, 1, ".2f")
        await none_ready(findings, at)


async def queueing(findings: Findings, at: House) -> None:
    """Workers 0, 1 and 4 serve, with `PLACES` each, and there is room for `QUEUE` to wait: what is more is refused."""
    load = Load(at, "burst")
    room = 3 * PLACES + QUEUE
    answered = []
    began = time.monotonic()
    for _ in range(BURSTS):
        burst = await asyncio.gather(*(load.ask(chat(100)) for _ in range(AT_ONCE)))
        answered.append(sum(one.status == 200 for one in burst))
    load.close()
    # The one that tries the worker that loads is answered by another one, beyond those for whom there was room.
    findings.check(
        f"answered 200 of {AT_ONCE} at once, {room}, or one more: those with a worker, those who wait, one that tried",
        answered,
        len(load.asked),
        set(answered) <= {room, room + 1},
    )
    refused = [one for one in load.asked if one.status != 200]
    odd = [one for one in refused if one.status != 429 or not told(one)]
    findings.none("refusals other than 429 with Retry-After", len(odd), len(refused))
    slow = max((one.ms for one in refused), default=0.0)
    findings.at_most("refused after ms, 100 at most", slow, 100, len(refused))
    running = [at_once(await given(worker, began)) for worker in at.workers]
    findings.check(f"requests at once on a worker, at most {PLACES}", max(running), 5, max(running) <= PLACES)


async def none_ready(findings: Findings, at: House) -> None:
    for what, state in (("say so to requests alone", {"serving": False}), ("say so", {"health": 503})):
        began = time.monotonic()
        for worker in at.workers:
            await tell(worker, "/sim/state", **state)
        if "health" in state:
            out = await until(lambda: not any(up(at, worker) for worker in at.workers), 10)
            findings.check("workers whose health says 503 are out", out, 5, out)
            began = time.monotonic()
        async with paced(at, RATE, chat(4), f"none-{len(state)}-{began}") as load:
            await asyncio.sleep(2)
        odd = [one for one in load.asked if one.status != 503 or not told(one)]
        findings.none(f"all load and {what}: answers other than 503 with Retry-After", odd, len(load.asked))
        slow = percentile([one.ms for one in load.asked], 0.99)
        findings.at_most(f"all load and {what}: p99 ms, 100 at most", slow, 100, len(load.asked))
        if "health" in state:
            sent = sum([len(await given(worker, began)) for worker in at.workers])
            findings.check("and requests that reach one", sent, len(load.asked), sent == 0)


def up(at: House, worker: Process) -> bool:
    """What the gateway's log last said of it."""
    return max(events(at, "worker ready", worker), default=0.0) > max(events(at, "worker down", worker), default=0.0)
