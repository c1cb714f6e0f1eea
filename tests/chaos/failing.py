"""F6 and F7: workers that answer every request with an error."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from itertools import pairwise
from typing import Any

import httpx2
import openai

from tests.chaos.house import House, Process, chat, house
from tests.chaos.paced import HANG_S, Load, events, given, known, paced, tell, told, until
from tests.chaos.row import FULL, Findings, percentile, row

RATE = 100.0
FAULTY_S = 30.0 if FULL else 8.0
EJECT_S = 5.0 if FULL else 2.0
INTERVAL_S = 1.0
"""Between two probes, and the most between two of a worker that is out."""
ALL_BAD_S = 10.0 if FULL else 4.0
CALLS_S = 30.0 if FULL else 10.0
RETRY_AFTER = 2
"""Seconds; no wait that the gateway or the SDK would choose by itself."""


@row("F6", "one of five workers answers 500, then all")
async def failing(findings: Findings) -> None:
    """One of five workers answers 500 for 8 s at 100 requests/s, `FULL=1`: 30 s; later all five do. A *sick* worker
    fails on its health path too, a *lying* one reports 200 there.

    Passes if at most 5 requests fail until it is taken out, and clients see at most 0.5 % of errors. It returns by
    one probe, or by one trial request. If three of five lie, which is more than may be taken out, clients see at
    most 1 % of errors. If all fail, nothing hangs and p99 ≤ 100 ms: 503 with Retry-After for sick workers, 502 for
    lying ones, since failed requests alone never take out more than half of a fleet.
    """
    config = {"breaker": {"eject_s": EJECT_S, "slowstart_s": 1}, "health": {"interval_s": INTERVAL_S}}
    for what, health in (("sick", 500), ("lying", 200)):
        async with house({}, config, 1, [("--itl-ms", "2")] * 5) as at:
            await known(at)
            async with paced(at, RATE, chat(4), what) as load:
                await asyncio.sleep(1)
                await one_bad(findings, at, load, what, health)
                if health < 500:
                    await most_bad(findings, at, load)
                await all_bad(findings, at, load, what, health)


async def break_(worker: Process, health: int) -> None:
    await tell(worker, "/sim/faults", fault="status:500", path="/v1/")
    await tell(worker, "/sim/state", health=health)


async def mend(worker: Process) -> None:
    await tell(worker, "/sim/faults")
    await tell(worker, "/sim/state", health=200)


async def one_bad(findings: Findings, at: House, load: Load, what: str, health: int) -> None:
    """`sick`: its health path says 500, too. `lying`: that goes on to say 200."""
    out, back = ("worker down", "worker ready") if health >= 500 else ("worker ejected", "worker returned")
    bad = at.workers[0]
    began = time.monotonic()
    await break_(bad, health)
    await asyncio.sleep(FAULTY_S)
    await mend(bad)
    healed = time.monotonic()
    # It is left out longer each time in a row: the longest that it can still have before it.
    longest = INTERVAL_S if health >= 500 else FAULTY_S + EJECT_S
    returned = await until(lambda: bool(events(at, back, bad, healed)), longest + 5)
    entries = await given(bad, began)
    left = events(at, out, bad, began)
    failed = [entry for entry in entries if entry["status"] == 500]
    first = [entry for entry in failed if left and entry["started"] <= left[0]]
    findings.check(f"{what}: failed requests until it is out, at most 5", len(first), len(failed), 0 < len(first) <= 5)
    asked = load.since(began, healed)
    errors = [one for one in asked if one.status != 200]
    share = len(errors) / max(1, len(asked))
    findings.at_most(f"{what}: errors that clients saw, share (0.005 at most)", share, 0.005, len(asked), ".4f")
    if not returned:
        findings.check(f"{what}: back after it healed", "never", 1, False)
    elif health >= 500:
        waited = events(at, back, bad, healed)[0] - healed
        most = INTERVAL_S + 1.0  # and the probe itself
        findings.at_most(f"{what}: back by one probe, s ({most} at most)", waited, most, 1, ".2f")
    else:
        came = events(at, back, bad, healed)[0]
        trials = [entry for entry in entries if healed <= entry["started"] <= came]
        findings.check(f"{what}: requests that tried it before it was back, 1", len(trials), 1, len(trials) == 1)


async def most_bad(findings: Findings, at: House, load: Load) -> None:
    """Three lie: more than may be left out on the word of requests."""
    began = time.monotonic()
    bad = at.workers[:3]
    for worker in bad:
        await break_(worker, 200)
    await asyncio.sleep(FAULTY_S / 2)
    end = time.monotonic()
    for worker in bad:
        await mend(worker)
    asked = load.since(began, end)
    errors = [one for one in asked if one.status != 200]
    share = len(errors) / max(1, len(asked))
    findings.at_most("three lie: errors that clients saw, share (0.01 at most)", share, 0.01, len(asked), ".4f")


async def all_bad(findings: Findings, at: House, load: Load, what: str, health: int) -> None:
    began = time.monotonic()
    for worker in at.workers:
        await break_(worker, health)
    broken = time.monotonic()
    if health >= 500:
        out = await until(lambda: all(events(at, "worker down", worker, began) for worker in at.workers), 10)
        findings.check(f"{what}, all: workers that are out", "all" if out else "not all", len(at.workers), out)
    known = time.monotonic()
    await asyncio.sleep(ALL_BAD_S)
    end = time.monotonic()
    await until(lambda: all(one.answer is not None for one in load.since(broken, end)), HANG_S)
    asked = load.since(broken, end)
    hung = [one for one in asked if one.answer is None]
    findings.none(f"{what}, all: requests that hang", len(hung), len(asked))
    worst = percentile([one.ms for one in asked], 0.99)
    findings.at_most(f"{what}, all: answered, p99 ms (100 at most)", worst, 100, len(asked))
    settled = load.since(known, end)
    # Never is more than half of a fleet left out on the word of requests: while health says 200, what failed is told.
    wanted = (503,) if health >= 500 else (502, 503)
    odd = [one for one in settled if one.status not in wanted]
    findings.none(f"{what}, all: answers other than {wanted}", len(odd), len(settled))
    untold = [one for one in settled if one.status == 503 and not told(one)]
    count = sum(one.status == 503 for one in settled)
    if count:
        findings.none(f"{what}, all: 503 without Retry-After", len(untold), count)


@row("F7", "all workers answer 503, and the SDK tries each call three times")
async def amplified(findings: Findings) -> None:
    """All five workers answer 503 with `Retry-After: 2`; OpenAI's SDK makes 100 calls a second and tries each three
    times; 10 s, `FULL=1`: 30 s.

    Passes if attempts ÷ requests ≤ 1.2, counted from a second before the outage, in which the retry budget fills;
    at most 3 attempts for a request; every answer is a 503 with the workers' `Retry-After`, and the SDK waits that
    long.
    """
    sent: dict[str, list[tuple[float, int, str]]] = {}
    """A call's number -> its tries: when, the status, Retry-After."""

    async def note(answer: httpx2.Response) -> None:
        request = answer.request
        tries = sent.setdefault(request.headers["x-call"], [])
        tries.append((request.extensions["sent"], answer.status_code, answer.headers.get("retry-after", "")))

    async def stamp(request: httpx2.Request) -> None:
        request.extensions["sent"] = time.monotonic()

    async with house({}, {}, 1, [()] * 5) as at:
        await known(at)
        async with paced(at, RATE, chat(1), "healthy"):
            await asyncio.sleep(1)
        for worker in at.workers:
            await tell(worker, "/sim/faults", fault=f"status:503:{RETRY_AFTER}", path="/v1/")
        began = time.monotonic()
        hooks: dict[str, list[Any]] = {"request": [stamp], "response": [note]}
        client = openai.AsyncOpenAI(
            base_url=f"http://{at.gateways[0].address}/v1",
            api_key="none",
            max_retries=2,
            http_client=openai.DefaultAsyncHttpxClient(event_hooks=hooks, trust_env=False),
        )
        outcomes: Counter[str] = Counter()

        async def call(number: int) -> None:
            try:
                await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "hello"}], extra_headers={"x-call": str(number)}
                )
            except openai.InternalServerError as error:
                outcomes[f"503 {type(error).__name__}" if error.status_code == 503 else str(error.status_code)] += 1
            except openai.APIError as error:
                outcomes[type(error).__name__] += 1
            else:
                outcomes["answered"] += 1

        async with client, asyncio.TaskGroup() as group:
            for number in range(int(CALLS_S * RATE)):
                await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
                group.create_task(call(number))
        healthy = attempted = 0
        each: Counter[str] = Counter()
        for worker in at.workers:
            for entry in await given(worker):
                healthy += entry["started"] < began
                attempted += entry["started"] >= began
                each[entry["request"]] += 1
    tries = [one for tried in sent.values() for one in tried]
    # The budget is one of all requests: what a second of health had saved is spent when it ends.
    ratio = (healthy + attempted) / (healthy + len(tries))
    findings.at_most(
        f"attempts for each request, {attempted / max(1, len(tries)):.3f} after the onset (1.2 at most)",
        ratio,
        1.2,
        healthy + len(tries),
        ".3f",
    )
    findings.check("attempts of one request, at most 3", max(each.values()), len(each), max(each.values()) <= 3)
    findings.check("calls by how they ended", dict(outcomes), len(sent), outcomes.keys() == {"503 InternalServerError"})
    odd = [one for one in tries if one[1:] != (503, str(RETRY_AFTER))]
    findings.none("answers that are not the workers' 503 with their Retry-After", len(odd), len(tries))
    counts = Counter(len(tried) for tried in sent.values())
    findings.check("calls by tries of the SDK, 3", dict(counts), len(sent), counts.keys() == {3})
    waits = [later[0] - first[0] for tried in sent.values() for first, later in pairwise(tried)]
    least = min(waits, default=0.0)
    findings.at_least(
        f"the SDK's wait between two tries, s, the shortest ({RETRY_AFTER} at least)",
        least,
        RETRY_AFTER,
        len(waits),
        ".2f",
    )
