"""The workers of one model: pick one, wait for one, learn from what became of the request."""

from __future__ import annotations

import asyncio
import itertools
from bisect import insort
from collections.abc import Callable, Sequence

from msgspec import Struct

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.fleet.pick import PickPolicy
from gateway.fleet.worker import Worker

# How long a worker that says 429 or 503 is left alone where it does not say itself, and at most.
_REST_S = 1.0
_LONGEST_REST_S = 30.0
# uvloop's timers are early by up to a millisecond: whoever is woken for something must find that it is so.
_LATE_S = 0.002


class QueuePolicy(Struct, frozen=True):
    """max_waiting requests at most wait, each at most timeout_s, while every worker is at its limit."""

    max_waiting: int = 1000
    timeout_s: float = 30.0


class Pool:
    """Workers of one model.

    on_suspect is called with a worker that just failed, so that it can be probed before its turn; on_eject with one
    that was ejected, on_return with one that may take requests again, on_wait with the seconds that a request has
    waited for a worker, whatever ended its wait.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        policy: PickPolicy,
        queue: QueuePolicy,
        max_eject_share: float,
        *,
        clock: Callable[[], float],
        on_suspect: Callable[[Worker], None] = lambda worker: None,
        on_eject: Callable[[Worker], None] = lambda worker: None,
        on_return: Callable[[Worker], None] = lambda worker: None,
        on_wait: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.workers = list(workers)
        self._policy = policy
        self._queue = queue
        self._max_eject_share = max_eject_share
        self._clock = clock
        self._on_suspect = on_suspect
        self._on_eject = on_eject
        self._on_return = on_return
        self._on_wait = on_wait
        # Workers may have had turns in the pool before this one (a reload): those to come are later than all of them.
        self._turn = max((worker.turn for worker in self.workers), default=0)
        self._tickets = itertools.count()
        # Workers that have just refused or failed, and until when the others go before them.
        self._resting: dict[Worker, float] = {}
        # The next one first; its ticket makes every entry different from all others.
        self._waiting: list[tuple[int, int, asyncio.Future[Worker], Sequence[Worker]]] = []
        for worker in self.workers:
            worker.on_free.append(self.serve_waiting)

    def close(self) -> None:
        """No more to be told about its workers."""
        for worker in self.workers:
            worker.on_free.remove(self.serve_waiting)

    def change(self, workers: Sequence[Worker]) -> None:
        """From now on these are the workers; requests on others end where they are."""
        self.close()
        self.workers = list(workers)
        self._turn = max([self._turn, *(worker.turn for worker in workers)])
        for worker in self.workers:
            worker.on_free.append(self.serve_waiting)
        self.serve_waiting()

    @property
    def ready(self) -> bool:
        return any(worker.serving for worker in self.workers)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def acquire(self, exclude: Sequence[Worker] = (), priority: int = 0) -> Worker:
        """A worker, its `in_flight` counted up; give it back by `release`.

        exclude holds workers already tried. Higher priority waits less. Raises GatewayError: NO_WORKER when none could
        serve, however long one waits; OVERLOADED when the queue is full or the wait was too long.
        """
        now = self._clock()
        worker = self._pick(exclude, now) if not self._waiting else None
        if worker is None:
            return await self._wait(exclude, priority, now)
        self._take(worker, now)
        return worker

    def lend(self, exclude: Sequence[Worker] = ()) -> Worker:
        """A worker for a question that generates nothing, however busy it is. Raises GatewayError(NO_WORKER)."""
        now = self._clock()
        candidates = [
            worker for worker in self.workers if worker.serving and worker.breaker.allows(now) and worker not in exclude
        ]
        if not candidates:
            raise _no_worker()
        worker = self._policy(candidates, now)
        self._turn += 1
        worker.turn = self._turn
        worker.breaker.begin(now)
        return worker

    def release(self, worker: Worker) -> None:
        worker.in_flight -= 1
        worker.freed()

    # What became of a request; `generation` is what the worker's was when it began.

    def answered(self, worker: Worker, generation: int) -> None:
        """Its reply has begun."""
        if worker.breaker.answer(self._clock(), generation):
            self._returned(worker)

    def succeeded(self, worker: Worker, generation: int) -> None:
        if self._resting and self._resting.pop(worker, None) is not None:
            worker.freed()
        if worker.breaker.succeed(self._clock(), generation):
            self._returned(worker)

    def _returned(self, worker: Worker) -> None:
        self._on_return(worker)
        worker.freed()

    def abandoned(self, worker: Worker, generation: int) -> None:
        """The request ended in a way that says nothing about the worker: its client left, or a bug of ours."""
        worker.breaker.abandon(generation)

    def failed(self, worker: Worker, generation: int, error: GatewayError) -> None:
        """Learns from a failure: only the worker's own faults count against it. One that says that it is too much rests
        for as long as it says (1 s where it says nothing, 30 s at most), or until it finishes something; so does one
        that would be ejected and may not be, for 1 s."""
        breaker = worker.breaker
        if error.blame is not Blame.WORKER:
            breaker.abandon(generation)
            if error.kind is Kind.OVERLOADED and error.upstream is not None:
                self._rest(worker, min(error.retry_after or _REST_S, _LONGEST_REST_S))
            return
        out = sum(other.breaker.ejected for other in self.workers if other is not worker)
        may_eject = out + 1 <= self._max_eject_share * len(self.workers) and out + 1 < len(self.workers)
        now = self._clock()
        if breaker.fail(now, generation, may_eject=may_eject):
            self._on_eject(worker)
            # Who waits then, while all others are full, must not wait until one of those is free.
            asyncio.get_running_loop().call_later(breaker.open_until - now + _LATE_S, worker.freed)
        elif breaker.failures >= breaker.policy.failures and not breaker.ejected:
            self._rest(worker, _REST_S)  # too many are out for it to be so, too
        self._on_suspect(worker)

    def _rest(self, worker: Worker, seconds: float) -> None:
        """It is full, loads its model whatever its health says, or is broken. Who refuses at once has the fewest in
        flight, and would be given everything that the others then have to be asked for."""
        now = self._clock()
        if self._resting.get(worker, now) <= now:
            self._resting[worker] = now + seconds
            asyncio.get_running_loop().call_later(seconds + _LATE_S, worker.freed)

    def serve_waiting(self) -> None:
        """Hands free workers to those who wait, and refuses those for whom none is left; to be called whenever a
        worker's state may have changed."""
        now = self._clock()
        for entry in list(self._waiting):
            _, _, future, exclude = entry
            worker = self._pick(exclude, now)
            if worker is None and self._may_serve(exclude, now):
                if exclude:
                    continue  # whoever comes after it may take what it must not
                return
            self._waiting.remove(entry)
            if future.done():
                continue
            if worker is None:
                future.set_exception(_no_worker())
            else:
                self._take(worker, now)
                future.set_result(worker)

    def _may_serve(self, exclude: Sequence[Worker], now: float) -> bool:
        """Waiting helps: some worker is merely full."""
        return any(worker.serving and worker.breaker.allows(now) and worker not in exclude for worker in self.workers)

    def _pick(self, exclude: Sequence[Worker], now: float) -> Worker | None:
        workers = self.workers
        if len(workers) == 1:
            only = workers[0]
            return only if only.open_to(now) and only not in exclude else None
        candidates = [worker for worker in workers if worker.open_to(now) and worker not in exclude]
        if self._resting:
            candidates = self._rested(candidates, exclude, now)
        return self._policy(candidates, now) if candidates else None

    def _rested(self, candidates: list[Worker], exclude: Sequence[Worker], now: float) -> list[Worker]:
        """Those that do not rest; all where no other could serve, however long one waits."""
        resting = self._resting = {worker: until for worker, until in self._resting.items() if until > now}
        others = [worker for worker in self.workers if worker not in resting]
        if not any(worker.serving and worker.breaker.allows(now) and worker not in exclude for worker in others):
            return candidates
        return [worker for worker in candidates if worker not in resting]

    def _take(self, worker: Worker, now: float) -> None:
        self._turn += 1
        worker.turn = self._turn
        worker.in_flight += 1
        worker.breaker.begin(now)

    async def _wait(self, exclude: Sequence[Worker], priority: int, now: float) -> Worker:
        if not self._may_serve(exclude, now):
            raise _no_worker()
        if len(self._waiting) >= self._queue.max_waiting:
            raise GatewayError(Kind.OVERLOADED, "all workers of this model are busy", retry_after=1.0)
        future: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        entry = (-priority, next(self._tickets), future, tuple(exclude))
        insort(self._waiting, entry)
        self.serve_waiting()  # those before it may be waiting for another worker than the one that is free
        try:
            async with asyncio.timeout(self._queue.timeout_s):
                return await future
        except BaseException as error:
            if future.done() and not future.cancelled() and future.exception() is None:
                # It was handed over in the very turn in which we gave up.
                worker = future.result()
                worker.breaker.abandon(worker.generation)
                self.release(worker)
            if isinstance(error, TimeoutError):
                raise GatewayError(
                    Kind.OVERLOADED, "all workers of this model stayed busy for too long", retry_after=1.0
                ) from None
            raise
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
            self._on_wait(self._clock() - now)


def _no_worker() -> GatewayError:
    return GatewayError(Kind.NO_WORKER, "no worker of this model is available", retry_after=1.0)
