"""Times of the comparison: to the first token and of plain requests, at one client and under load."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Sequence

from bench.peers import load
from bench.peers.arrivals import at_rate
from bench.peers.figures import LONG, STREAMS, Running, Taken, turns, until
from bench.process import BenchError, Stopped

LADDER = (1, 4, 16, 64, 128, 256)
BOUNDS_MS = (1, 5, 10, 50, 100)
"""What 99 in 100 requests of a rate take at most."""
SHARES = (10, 50, 80)
"""Percent of a core that a subject uses while times to the first token are taken."""
ARRIVING = 64

Several = dict[str, Taken]
"""Figure of `page.TITLES` -> its samples."""


async def one_client(subjects: Sequence[Running], rounds: int, probes: int) -> Several:
    """Milliseconds of a plain request at one client, in the middle and for 99 in 100 of `probes` (fewer of a slow
    subject)."""
    middle: Taken = {}
    most: Taken = {}
    for turn in [subjects, *turns(subjects, rounds)]:
        for one in turn:
            Stopped.check()
            callers, data = await one.connect(1), one.request(1024)
            number = probes // (4 if one.slow else 1)
            times = [(await load.batch(callers, data, False))[0].whole_s * 1000 for _ in range(number)]
            load.hang_up(callers)
            middle.setdefault(one.name, []).append(statistics.median(times))
            most.setdefault(one.name, []).append(_percentile(times, 0.99))
    warm = ({name: samples[1:] for name, samples in taken.items()} for taken in (middle, most))
    return dict(zip(("one client, middle", "one client, most"), warm, strict=True))


async def first_token(subjects: Sequence[Running], rounds: int, probes: int) -> Taken:
    """Milliseconds to the first chunk at one client, the median of `probes` requests."""
    taken: Taken = {}
    for turn in [subjects, *turns(subjects, rounds)]:
        for one in turn:
            Stopped.check()
            callers, data = await one.connect(1), one.request(1024, 1)
            firsts = [(await load.batch(callers, data, True))[0].first_s for _ in range(probes)]
            load.hang_up(callers)
            taken.setdefault(one.name, []).append(statistics.median(firsts) * 1000)
    return {name: samples[1:] for name, samples in taken.items()}


async def first_token_loaded(subjects: Sequence[Running], rounds: int) -> Taken:
    """Milliseconds to the first chunk beside STREAMS streams that run, the 99th percentile."""
    taken: Taken = {}
    for turn in turns(subjects, rounds):
        for one in turn:
            Stopped.check()
            streams = STREAMS // (10 if one.slow else 1)
            callers = await one.connect(streams)
            beside = asyncio.ensure_future(load.batch(callers, one.request(1024, LONG), True))
            await asyncio.wait([caller.first for caller in callers], timeout=load.PATIENCE_S)
            (probe,) = await one.connect(1)
            firsts: list[float] = []
            while not beside.done() and len(firsts) < 400:
                firsts.append((await load.batch([probe], one.request(1024, 1), True))[0].first_s)
            load.hang_up([probe])
            await beside
            load.hang_up(callers)
            taken.setdefault(one.name, []).append(_percentile(firsts, 0.99) * 1000)
    return taken


async def first_token_at(subjects: Sequence[Running], backend: Running, rounds: int, seconds: float) -> Several:
    """Milliseconds that a subject adds to the first chunk while it uses each of SHARES of a core: the middle, and the
    99th percentile. Streams of one chunk arrive at the rate that takes that share; the backend is sent as many
    directly in the same turn."""
    several: Several = {}
    rates: dict[tuple[str, int], float] = {}
    for turn in turns(subjects, rounds):
        for one, share in itertools.product(turn, SHARES):
            Stopped.check()
            callers, directly = await one.connect(ARRIVING), await backend.connect(ARRIVING)
            key = (one.name, share)
            if key not in rates:
                rates[key] = await _rate_of(one, callers, share / 100)
            found = await at_rate(callers, one.request(1024, 1), rates[key], seconds)
            own = await at_rate(directly, backend.request(1024, 1), rates[key], seconds)
            load.hang_up([*callers, *directly])
            for part, of_all in (("middle", 0.5), ("most", 0.99)):
                added = (_percentile(found, of_all) - _percentile(own, of_all)) * 1000
                several.setdefault(f"loaded {share}, {part}", {}).setdefault(one.name, []).append(added)
    return several


async def _rate_of(one: Running, callers: Sequence[load.Caller], share: float) -> float:
    """Streams a second that take this share of a core: what they cost at a guess, and twice more at what that gives."""
    streams = 400.0
    for _ in range(3):
        before, began = one.cpu(), time.perf_counter()
        await at_rate(callers, one.request(1024, 1), streams, 1.0)
        used = (one.cpu() - before) / (time.perf_counter() - began)
        streams *= share / max(used, 0.01)
    return streams


async def rate(subjects: Sequence[Running], rounds: int, seconds: float) -> Several:
    """Most requests a second on one core of which 99 in 100 take no longer than each of BOUNDS_MS, over the ladder."""
    several: Several = {f"rate {bound}": {} for bound in BOUNDS_MS}
    loop = asyncio.get_running_loop()
    for turn in turns(subjects, rounds):
        for one in turn:
            best = dict.fromkeys(BOUNDS_MS, 0.0)
            data = one.request(1024)
            for connections in LADDER:
                Stopped.check()
                callers = await one.connect(connections)
                end = loop.time() + seconds
                found = await asyncio.gather(*(until(caller, data, end) for caller in callers))
                load.hang_up(callers)
                whole = list(itertools.chain.from_iterable(found))
                late = _percentile(whole, 0.99) * 1000
                best |= {bound: max(best[bound], len(whole) / seconds) for bound in BOUNDS_MS if late <= bound}
                if late > BOUNDS_MS[-1]:
                    break
            for bound, value in best.items():
                several[f"rate {bound}"].setdefault(one.name, []).append(value)
    return several


def _percentile(values: Sequence[float], share: float) -> float:
    if not values:
        raise BenchError("nothing was received")
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]
