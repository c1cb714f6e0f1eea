"""Clients that leave before the first byte, in simulated time: how many an engine that hangs loses, and whether a
healthy one is taken for such.

The real pool and the real stall detector see engines that compute one prompt after the other, and clients that leave.
`python -m tests.unit.fleet.departing` shows what the tests assert.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Literal, cast

from gateway.config import Breaker, Queue
from gateway.core.figures import Silence
from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.pick import POLICIES
from gateway.fleet.pool import Pool
from gateway.fleet.stalls import LOOK_S, StallDetector
from gateway.fleet.waiting import PoolEvents
from gateway.fleet.worker import EngineLoad, Worker

Mode = Literal["sound", "hung", "swallows"]
SCRAPE_S = 1.0
FACTS = "operation"


class Client:
    """One request. prompt: bytes, of which an engine computes so many a second; output: tokens that are asked;
    patience: seconds until its client leaves; home: the number of the only worker that it may go to."""

    def __init__(self, prompt: float, output: int, stream: bool, patience: float, home: int | None = None) -> None:
        self.prompt = prompt
        self.output = output
        self.stream = stream
        self.patience = patience
        self.home = home
        self.routing = RoutingFacts()
        self.routing.size = int(prompt)
        self.worker: Worker | None = None
        self.generation = 0
        self.began = self.sent = 0.0
        self.first_at: float | None = None
        self.over = False


class Engine:
    """One prompt after the other, and all outputs beside each other. hung: it computes nothing. swallows: it computes,
    and sends nothing."""

    def __init__(self, simulation: Simulation, pace: float, token_s: float) -> None:
        self.mode: Mode = "sound"
        self.figure = 0.0
        self._simulation = simulation
        self._pace = pace
        self._token_s = token_s
        self._waiting: list[tuple[float, Callable[[], None], Callable[[], bool]]] = []
        self._busy = False

    @property
    def load(self) -> int:
        return len(self._waiting) + self._busy

    def prompt(self, size: float, done: Callable[[], None], gone: Callable[[], bool]) -> None:
        """Computes a prompt. Requests of clients that are gone are dropped at once."""
        self._waiting.append((size, done, gone))
        self.go_on()

    def go_on(self) -> None:
        if self.mode == "hung" or self._busy:
            return
        while self._waiting:
            size, done, gone = self._waiting.pop(0)
            if not gone():
                self._busy = True
                self._step(size, done, gone)
                return

    def _step(self, left: float, done: Callable[[], None], gone: Callable[[], bool]) -> None:
        """A chunk of a prompt, of 50 ms at most."""
        part = min(left, 0.05 * self._pace)

        def ended() -> None:
            if self.mode == "hung":
                self._waiting.insert(0, (left, done, gone))
                self._busy = False
                return
            self.figure += part
            if left > part and not gone():
                self._step(left - part, done, gone)
                return
            self._busy = False
            if not gone():
                done()
            self.go_on()

        self._simulation.later(part / self._pace, ended)

    def output_s(self, tokens: int) -> float:
        return tokens * self._token_s


class Simulation:
    """A gateway with these workers, by a clock of its own. It stands in for `Fleets`, too.

    lost       clients that left without an answer
    suspected  (time, worker) of each suspicion
    """

    def __init__(self, workers: int, policy: str = "least_busy", pace: float = 40_000.0, token_s: float = 0.01) -> None:
        self.now = 1000.0
        self.lost: list[Client] = []
        self.served = 0
        self.suspected: list[tuple[float, int]] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        found = [Worker(f"http://{number}", Breaker(), None) for number in range(workers)]
        for worker in found:
            worker.ready = True
        self.workers = {("m", worker.address): worker for worker in found}
        self.engines = {worker: Engine(self, pace, token_s) for worker in found}
        clock, events = self._clock, PoolEvents(left_alone=self.left_alone)
        self.pool = Pool(found, POLICIES[policy](), Queue(), Breaker().max_eject_share, clock=clock, events=events)
        self.detector = StallDetector(cast(Any, self), None, clock)
        self._under_way: dict[Worker, set[Client]] = {worker: set() for worker in found}

    def _clock(self) -> float:
        return self.now

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), what))

    async def run(self, seconds: float) -> None:
        end = self.now + seconds
        self.later(0, self._look)
        self.later(0, self._scrape)
        while self._events and self._events[0][0] <= end:
            self.now, _, what = heapq.heappop(self._events)
            what()
            for _ in range(3 if self.detector._asking else 0):  # its questions run on the real loop
                await asyncio.sleep(0)
        self.now = end
        self._events.clear()
        await self.detector.close()

    def _look(self) -> None:
        self.detector.look(self.now)
        self.later(LOOK_S, self._look)

    def _scrape(self) -> None:
        for worker, engine in self.engines.items():
            if engine.mode == "swallows":
                engine.figure += 1
            worker.reported = EngineLoad(engine.load, 0, worker.in_flight)
            worker.progress.read((engine.figure,), self.now)
        self.later(SCRAPE_S, self._scrape)

    # -- clients ----------------------------------------------------------------------------------------------------

    def send(self, client: Client) -> None:
        client.began = self.now
        self.later(client.patience, lambda: self._leave(client))
        self._send(client, ())

    def _send(self, client: Client, exclude: Sequence[Worker]) -> None:
        if client.home is not None and not exclude:
            exclude = [worker for number, worker in enumerate(self.engines) if number != client.home]
        worker = self.pool.try_acquire(exclude, client.routing) or self.pool.try_acquire((), client.routing)
        if worker is None:
            return  # nobody can take it
        client.worker, client.generation, client.sent = worker, worker.generation, self.now
        self._under_way[worker].add(client)
        engine = self.engines[worker]

        def gone() -> bool:
            return client.over or client.worker is not worker

        def first() -> None:
            if engine.mode != "sound" or gone():
                return
            if client.stream:
                client.first_at = self.now
            self.later(engine.output_s(client.output), end)

        def end() -> None:
            if engine.mode == "sound" and not gone():
                client.first_at = client.first_at or self.now
                self.served += 1
                self._ended(client, True)
                self.pool.succeeded(worker, client.generation)
                self.pool.release(worker, client.routing)

        engine.prompt(client.prompt, first, gone)

    def _ended(self, client: Client, answered: bool) -> None:
        worker, client.over = client.worker, True
        assert worker is not None
        self._under_way[worker].discard(client)
        like = FACTS, client.stream, 0 if client.stream else client.output
        until = self.now if client.first_at is None else client.first_at
        self.pool.waited(worker, client.routing, like, until - client.sent, answered)

    def _leave(self, client: Client) -> None:
        if client.over or client.first_at is not None:
            return
        self.lost.append(client)
        worker = client.worker
        if worker is not None:
            self._ended(client, False)
            self.pool.abandoned(worker, client.generation)
            self.pool.release(worker, client.routing)
            self.engines[worker].go_on()

    # -- as `Fleets` -------------------------------------------------------------------------------

    def left_alone(self, worker: Worker, since: float) -> None:
        self.detector.left_alone("m", worker, since)

    def has(self, model: str, worker: Worker) -> bool:
        return self.workers.get((model, worker.address)) is worker

    def pool_of(self, model: str, worker: Worker) -> Pool:
        return self.pool

    def silence(self, model: str, worker: Worker, recent: float) -> Silence | None:
        under_way = self._under_way[worker]
        if not under_way:
            return None
        flows = self.engines[worker].mode == "sound" and any(one.first_at is not None for one in under_way)
        return Silence(self.now if flows else None, self.now if flows else min(one.sent for one in under_way))

    def stalled(self, model: str, worker: Worker) -> None:
        self.suspected.append((self.now, list(self.engines).index(worker)))

    def resumed(self, model: str, worker: Worker) -> None:
        pass

    def leave(self, model: str, worker: Worker) -> None:
        """Requests whose clients have seen nothing move to other workers."""
        for client in [one for one in self._under_way[worker] if one.first_at is None]:
            self._under_way[worker].discard(client)
            self.pool.release(worker, client.routing)
            client.worker = None
            self._send(client, [worker])


def questions(simulation: Simulation) -> None:
    """Gives the detector the question: a prompt of 40 bytes behind all that the engine has to do."""

    async def ask(model: str, worker: Worker, patience_s: float) -> bool | None:
        engine, answer = simulation.engines[worker], asyncio.get_running_loop().create_future()

        def tell(answered: bool) -> None:
            if not answer.done():
                answer.set_result(answered)

        simulation.later(patience_s, lambda: tell(False))
        engine.prompt(40, lambda: tell(True) if engine.mode == "sound" else None, answer.done)
        return bool(await answer)

    class Fleets:
        """The simulation, with the question."""

        def __getattr__(self, name: str) -> Any:
            return ask if name == "ask" else getattr(simulation, name)

    simulation.detector._fleets = cast(Any, Fleets())  # the detector asks the simulation


async def faulty(
    mode: Mode, rate: float, workers: int, stream: bool = True, healthy_s: float = 10.0, policy: str = "least_busy"
) -> Simulation:
    """150 requests of clients with one second of patience, `rate` a second, once an engine has the fault."""
    simulation, draw = Simulation(workers, policy), random.Random(f"{mode} {rate} {workers} {stream}")
    questions(simulation)

    def request() -> Client:
        return Client(draw.uniform(1000, 4000), draw.randint(5, 25), stream, 1.0)

    def breaks() -> None:
        simulation.lost.clear()
        next(iter(simulation.engines.values())).mode = mode

    at = 0.0
    for _ in range(int(healthy_s * rate)):
        at += draw.expovariate(rate)
        simulation.later(at, lambda: simulation.send(request()))
    simulation.later(at, breaks)
    for _ in range(150):
        at += draw.expovariate(rate)
        simulation.later(at, lambda: simulation.send(request()))
    await simulation.run(at + 5)
    return simulation


async def healthy(
    workers: int, load: float, stream: bool, patience: float, long_share: float = 0.0, long_patience: float = 60.0,
    home: bool = False, seconds: float = 120.0, seed: int = 0,
) -> Simulation:  # fmt: skip
    """Sound engines. load: of what they can compute, above 1 is overload; long_share: of requests with prompts of 10 to
    20 s of work, which always go to the first worker if `home`."""
    simulation, draw = Simulation(workers), random.Random(f"{workers} {load} {stream} {patience} {long_share} {seed}")
    questions(simulation)
    rate, at = load * workers * 40_000 / 2500, 0.0

    def request() -> Client:
        if draw.random() < long_share:
            return Client(draw.uniform(4e5, 8e5), 10, stream, long_patience, 0 if home else None)
        return Client(draw.uniform(1000, 4000), draw.randint(5, 25), stream, patience)

    while at < seconds:
        at += draw.expovariate(rate)
        simulation.later(at, lambda: simulation.send(request()))
    await simulation.run(seconds)
    return simulation


FAULTS = [
    (mode, rate, workers, stream, healthy_s)
    for mode in ("hung", "swallows")
    for rate in (2.5, 5.0, 12.0)
    for workers in (2, 4)
    for stream in (True, False)
    for healthy_s in (0.0, 10.0)
]
HEALTHY: list[dict[str, Any]] = [
    *(
        {"workers": workers, "load": load, "stream": stream, "patience": patience, "seed": seed}
        for workers in (2, 4)
        for load in (0.7, 1.1, 2.0)
        for stream in (True, False)
        for patience in (0.3, 1.0)
        for seed in range(2)
    ),
    *(
        {
            "workers": workers, "load": 0.4, "stream": stream, "patience": 1.0, "long_share": 0.002,
            "long_patience": long_patience, "home": home, "seed": seed,
        }
        for workers in (2, 3)
        for stream in (True, False)
        for long_patience in (1.0, 60.0)
        for home in (False, True)
        for seed in range(2)
    ),
]  # fmt: skip


async def _show() -> None:
    for fault in FAULTS:
        found = await faulty(*cast(Any, fault))
        print(f"{fault}: lost {len(found.lost)} of 150, suspected {len(found.suspected)}")
    for options in HEALTHY:
        found = await healthy(**options)
        print(f"{options}: {found.served} served, {len(found.lost)} left, suspected {len(found.suspected)}")


if __name__ == "__main__":
    asyncio.run(_show())
