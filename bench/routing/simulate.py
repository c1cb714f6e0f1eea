"""`python -m bench.routing.simulate`: the same conversations in simulated time, over many seeds.

A run of `bench.routing` takes a minute for each seed, and its figures differ by more than most changes to a policy are
worth. Here the picks are the gateway's own (`gateway.fleet`, with what it reads of its engines), the workers are the
simulated worker's engine, and no time passes while nothing happens. Sockets are left out, and so is the time that a
gateway takes itself: compare policies by it, not with other routers.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import selectors
import statistics
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from bench.process import BenchError
from bench.routing.run import ITL_MS, KV_BLOCKS, PREFILL_US, SLOTS, WORKERS, Figures
from bench.routing.traces import Conversation, Json, Turn, trace
from gateway.config import Breaker, Queue
from gateway.core.messages import Chat, Message, Text
from gateway.fleet.pick import POLICIES
from gateway.fleet.pool import Pool
from gateway.fleet.worker import OUTPUT_COSTS, EngineLoad, Worker
from workers.simulated import tokenizer
from workers.simulated.engine import Engine, Entry, chain
from workers.simulated.options import Options

_SCRAPE_S = 2.0
"""`routing.scrape_s`."""
_NETWORK_S = 0.004
"""Until a request has reached its worker."""
_UNEVEN = 1.25
"""A worker with more than this multiple of the mean work has too much."""
_FIRST_PORT = 20_000
HEADER = """\
| subject | seeds | hit rate | TTFT p50, ms | p99, ms | worst p99 | work, busiest / mean | worst | seeds above 1.25 |
|---|--:|--:|--:|--:|--:|--:|--:|--:|"""
T = TypeVar("T")


class _Skipping(selectors.SelectSelector):
    """Waits for no file: moves the clock to when something is due."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise BenchError("nothing is due any more")
        self.now += timeout
        return []


class _Clock(asyncio.SelectorEventLoop):
    """An event loop on which waiting takes no time."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now


def in_simulated_time(job: Coroutine[Any, Any, T]) -> T:
    """Runs `job` to its end."""
    with asyncio.Runner(loop_factory=_Clock) as runner:
        return runner.run(job)


class _Job:
    """One request on an engine."""

    weight = 1
    scheduled = 0.0
    entry = Entry(0.0)  # nobody reads the engine's counters of tokens

    def __init__(self, engine: _Engine, turn: Turn) -> None:
        prompt = "".join([*(f"<|{one['role']}|>{one['content']}\n" for one in turn.messages), "<|assistant|>"])
        loop = asyncio.get_running_loop()
        self._engine = engine
        self.first: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()
        self.prompt, self.output = tokenizer.count(prompt), turn.output
        self.need = self.prompt + self.output
        self.uncached = self.prompt - engine.cached(chain(prompt), self.prompt)
        self._made = 0

    def prefilled(self) -> None:
        self.first.set_result(None)
        if self.step():
            self._engine.decode(self)

    def step(self) -> bool:
        self._made += 1
        if self._made < self.output:
            return True
        self._engine.ended(self)
        self.done.set_result(None)
        return False


class _Engine(Engine):
    """The engine of one worker, and what it has counted.

    requests, prompts, computed  of all that it was sent: how many, their tokens, those computed and made
    counted                      (tokens of prompts, of replies) of those that have ended, as its metrics have them
    """

    def __init__(self, kv_blocks: int) -> None:
        options = Options(prefill_us_per_token=PREFILL_US, itl_ms=ITL_MS, slots=SLOTS, kv_blocks=kv_blocks)
        super().__init__(options, asyncio.get_running_loop())
        self.requests = self.prompts = self.computed = 0
        self.counted = (0, 0)

    def ask(self, turn: Turn) -> _Job:
        job = _Job(self, turn)
        self.requests += 1
        self.prompts += job.prompt
        self.computed += job.uncached + job.output
        self.submit(job)
        return job

    def ended(self, job: _Job) -> None:
        self.release(job)
        prompts, outputs = self.counted
        self.counted = (prompts + job.prompt, outputs + job.output)

    def load(self, in_flight: int) -> EngineLoad:
        """What a gateway reads that has so many requests there."""
        prompts, outputs = self.counted
        computed = max(0.0, prompts - self.hits) + OUTPUT_COSTS * outputs
        return EngineLoad(self.running, len(self.queue), in_flight, computed, prompts + outputs)


async def _read(pool: Pool, engines: Mapping[str, _Engine], begins_s: float) -> None:
    """Tells the pool of one gateway how busy the engines are, as its scraper does."""
    await asyncio.sleep(begins_s)
    while True:
        for worker in pool.workers:
            worker.report_load(engines[worker.address].load(worker.in_flight), _SCRAPE_S)
        await asyncio.sleep(_SCRAPE_S)


def _op(messages: Sequence[Json]) -> Chat:
    return Chat(
        model="m", messages=tuple(Message(message["role"], (Text(message["content"]),)) for message in messages)
    )


async def _converse(turns: Iterator[Pool], engines: Mapping[str, _Engine], one: Conversation) -> list[float]:
    """Milliseconds to the first token of each turn."""
    loop, taken = asyncio.get_running_loop(), []
    await asyncio.sleep(one.begins_s)
    for turn in one.turns:
        await asyncio.sleep(turn.wait_s)
        asked, pool = loop.time(), next(turns)
        routing = pool.routing(_op(turn.messages), [])
        worker = await pool.acquire((), 0, routing)
        await asyncio.sleep(_NETWORK_S)
        job = engines[worker.address].ask(turn)
        await job.first
        taken.append((loop.time() - asked) * 1000)
        await job.done
        pool.release(worker, routing)
    return taken


async def play(name: str, seed: int, conversations: Sequence[Conversation], kv_blocks: int) -> Figures:
    """What a subject, `POLICY` or `POLICY xGATEWAYS`, makes of a trace. seed: also of the workers' addresses, which say
    where the places are."""
    policy, _, gateways = name.partition(" x")
    addresses = [f"http://127.0.0.1:{_FIRST_PORT + 37 * number + seed}" for number in range(WORKERS)]
    engines = {address: _Engine(kv_blocks) for address in addresses}
    pools = [_pool(POLICIES[policy], addresses) for _ in range(int(gateways or 1))]
    readers = [
        asyncio.create_task(_read(pool, engines, number * _SCRAPE_S / len(pools))) for number, pool in enumerate(pools)
    ]
    turns = itertools.cycle(pools)
    taken = await asyncio.gather(*(_converse(turns, engines, one) for one in conversations))
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    every = list(engines.values())
    requests = sum(engine.requests for engine in every)
    return Figures(
        name,
        requests,
        sum(engine.hits for engine in every) / sum(engine.prompts for engine in every),
        sorted(itertools.chain.from_iterable(taken)),
        max(engine.computed for engine in every) * WORKERS / sum(engine.computed for engine in every),
        max(engine.requests for engine in every) * WORKERS / requests,
    )


def _pool(policy: Callable[[], Any], addresses: Sequence[str]) -> Pool:
    workers = [Worker(address, Breaker(), None) for address in addresses]
    for worker in workers:
        worker.ready = True
    return Pool(workers, policy(), Queue(), 0.5, clock=asyncio.get_running_loop().time)


def row(name: str, runs: Sequence[Figures]) -> str:
    """A line of the table: means over the seeds, and the worst of them."""
    p99, work = [one.percentile(0.99) for one in runs], [one.work for one in runs]
    return (
        f"| {name} | {len(runs)} | {statistics.mean(one.hits for one in runs):.3f}"
        f" | {statistics.mean(one.percentile(0.5) for one in runs):.0f} | {statistics.mean(p99):.0f} | {max(p99):.0f}"
        f" | {statistics.mean(work):.2f} | {max(work):.2f} | {sum(one > _UNEVEN for one in work)} |"
    )


def main(arguments: Sequence[str]) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.routing.simulate", description="Pick policies, many seeds.")
    parser.add_argument("--subjects", default="prefix,prefix x3", metavar="A,B", help="policies; `x3`: three gateways")
    parser.add_argument("--seconds", type=float, default=50.0, help="in which conversations begin")
    parser.add_argument("--rate", type=float, default=4.0, help="conversations that begin in a second")
    parser.add_argument("--seeds", type=int, default=16, help="how many, from 1 on")
    parser.add_argument("--kv-blocks", type=int, default=KV_BLOCKS, help="of 16 tokens, that a worker's cache holds")
    options = parser.parse_args(arguments)
    if unknown := {name.partition(" x")[0] for name in options.subjects.split(",")} - set(POLICIES):
        parser.error(f"unknown policies: {', '.join(sorted(unknown))}")
    print(HEADER, flush=True)
    for name in options.subjects.split(","):
        runs = []
        for seed in range(1, options.seeds + 1):
            conversations = trace(seed, options.seconds, options.rate)
            runs.append(in_simulated_time(play(name, seed, conversations, options.kv_blocks)))
        print(row(name, runs), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
