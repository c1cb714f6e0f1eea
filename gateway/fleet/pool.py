"""The workers of one model: pick one, wait for one, learn from the outcome of each request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import TYPE_CHECKING

from gateway.config import Queue as QueueOptions
from gateway.core.errors import GatewayError
from gateway.core.failures import MEANINGS, Word
from gateway.core.http import Headers
from gateway.core.messages import Op
from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.candidates import Candidates
from gateway.fleet.departures import Departures, Wait, size_of
from gateway.fleet.pick import PickPolicy
from gateway.fleet.pick.reading import cache_key_of, describe, session_of
from gateway.fleet.standing import Standing
from gateway.fleet.waiting import Lacking, PoolEvents, WaitQueue, WorkerStates, joined
from gateway.fleet.waking import Waking
from gateway.fleet.worker import Worker, is_open, open_workers

if TYPE_CHECKING:
    from gateway.fleet.idle import Idle

# Rest after a 429 or 503: the default without a Retry-After, and the most that is granted.
_REST_S = 1.0
_LONGEST_REST_S = 30.0
_STALLED_REST_S = 3.0
"""Rest of a stalled worker that cannot be spared: until after the next look at it."""
_SETS = 64
"""Sets of excluded workers whose candidates are remembered."""
# uvloop's timers fire up to a millisecond early. The margin makes sure that the state has changed when they do.
_LATE_S = 0.002


class Pool:
    """Workers of one model. Call `listen` before requests wait.

    policy    chooses the open worker that takes a request
    sessions  headers in which clients name a session, lower case
    salted    the workers keep the caches of `op.salt` apart
    events    receives what becomes of workers and requests
    idle      the requests that use idle capacity; None while there never was one
    waking    how long the model's loads took; those of the pool before it are put in
    instead   returns whether a fallback can answer now for this reason; None where there is none
    """

    idle: Idle | None = None
    instead: Callable[[Word], bool] | None = None

    def __init__(
        self,
        workers: Sequence[Worker],
        policy: PickPolicy,
        queue: QueueOptions,
        max_eject_share: float,
        *,
        clock: Callable[[], float],
        events: PoolEvents | None = None,
        sessions: frozenset[bytes] = frozenset(),
        salted: bool = False,
    ) -> None:
        self.workers = list(workers)
        self._standing = Standing(self.workers)
        self.policy = policy
        self.waking = Waking()
        self._sessions = sessions
        self._salted = salted
        self._max_eject_share = max_eject_share
        self._clock = clock
        self.events = events or PoolEvents()
        # After a reload, workers keep the turn numbers of the previous pool. New turns count on from the highest.
        self._turn = max((worker.turn for worker in self.workers), default=0)
        # Workers that just refused or failed -> until when the other workers are preferred. When that is over, one
        # request tries such a worker, and it rests again, for a second or until that request has succeeded.
        self._resting: dict[Worker, float] = {}
        self._tried: set[Worker] = set()
        self._candidates: dict[frozenset[Worker], Candidates] = {}  # by those that a request excludes
        self._departures = Departures()
        self._waiting = WaitQueue(
            queue, clock, self._states, self._may_serve, self._hand_over, self.events, self._no_worker
        )

    def listen(self, *, ahead: bool = False) -> None:
        """Serves what waits whenever a worker becomes free, until `close`. ahead: before other pools of its workers."""
        for worker in self.workers:
            worker.on_free.insert(0 if ahead else len(worker.on_free), self.serve_waiting)

    def close(self) -> None:
        """Stops listening to its workers."""
        for worker in self.workers:
            if self.serve_waiting in worker.on_free:
                worker.on_free.remove(self.serve_waiting)

    def change(self, workers: Sequence[Worker], *, ahead: bool = False) -> None:
        """Replaces the workers. Requests that run on removed workers finish there. Call `refit_waiting` when it is also
        known what the new ones have. ahead: what waits here is served before what waits in other pools of theirs.
        """
        self.close()
        self.workers = list(workers)
        self._standing = Standing(self.workers)
        self._candidates.clear()
        self._resting = {worker: until for worker, until in self._resting.items() if worker in workers}
        self._tried.intersection_update(workers)
        self._departures.keep(workers)
        self._turn = max([self._turn, *(worker.turn for worker in workers)])
        self.policy.keep(self.workers)
        self.listen(ahead=ahead)

    @property
    def ready(self) -> bool:
        return bool(self._standing.serving)

    @property
    def suspects(self) -> Sequence[Worker]:
        return [worker for worker in self.workers if worker.suspected]

    @property
    def without_cache_events(self) -> frozenset[Worker] | None:
        """The workers that do not report what they have cached; None if no worker does, or there is no choice."""
        silent = self._standing.silent
        return silent if len(self.workers) > max(1, len(silent)) else None

    @property
    def waiting(self) -> int:
        return self._waiting.queue.count

    def routing(self, op: Op, headers: Headers, apart: str | None = None) -> RoutingFacts:
        """The facts of `op` that the pick needs: some 50 us for 400 KB of a prompt, none for a pool of one. Prompts
        with another `apart` share no cache."""
        routing = RoutingFacts()
        needs = self.policy.needs
        if needs and len(self.workers) > 1:
            salt = self._salt(op) if self._salted else None
            if apart is not None:
                salt = f"{salt} {apart}"
            describe(op, routing, salt, needs == "prompt")
            if needs == "prompt":
                routing.session = session_of(headers, self._sessions)
                if key := cache_key_of(op, salt):
                    routing.first_texts, routing.system_texts = key, ()
        return routing

    @staticmethod
    def _salt(op: Op) -> str | None:
        """The salt that keeps the cached prompt of `op` apart: its tenant's, and its client's own."""
        own = op.raw.get("cache_salt") if op.raw is not None else None
        return op.salt if own is None else f"{op.salt} {bytes(own)!r}"

    async def acquire(
        self,
        exclude: Sequence[Worker] = (),
        priority: int = 0,
        routing: RoutingFacts | None = None,
        lacks: Lacking | None = None,
    ) -> Worker:
        """A worker, with its `in_flight` incremented. Give it back with `release`.

        exclude holds the workers already tried, `lacks` returns those that cannot answer this request. A higher
        priority waits less. Raises GatewayError: NO_WORKER when waiting would not help; `Busy` when the request may
        not wait, or had to make room for another one; OVERLOADED when the wait was too long.
        """
        now = self._clock()
        routing = RoutingFacts() if routing is None else routing
        unsuitable = exclude if lacks is None else joined(lacks(), exclude)
        waiting = self._waiting
        worker = (
            self._pick(unsuitable, now, routing) if not waiting.queue.count or waiting.lets_pass(unsuitable) else None
        )
        if worker is None:
            return await self._wait(exclude, lacks, priority, now, routing)
        self._take(worker, now, routing)
        return worker

    def try_acquire(self, exclude: Collection[Worker], routing: RoutingFacts) -> Worker | None:
        """A worker that is free now, as `acquire` gives one. None if there is none, or if requests wait for one."""
        now = self._clock()
        worker = self._pick(exclude, now, routing) if not self._waiting.queue.count else None
        if worker is not None:
            self._take(worker, now, routing)
        return worker

    def borrow(self, exclude: Collection[Worker] = ()) -> Worker:
        """A worker for a question that generates nothing, however busy it is. Raises GatewayError(NO_WORKER)."""
        now = self._clock()
        workers = self._standing.serving
        for _ in () if self._standing.out(now) else workers:
            self._turn += 1  # each in turn, whatever the policy
            worker = workers[self._turn % len(workers)]
            if worker.breaker.allows(now) and worker not in exclude:
                worker.breaker.begin(now)
                return worker
        raise self._no_worker()

    def may_serve(self, exclude: Collection[Worker]) -> bool:
        """Whether a sound worker that is not in `exclude` serves requests, perhaps after a wait. One that is stalled or
        suspected, or must still prove itself, is not worth giving up another one for."""
        return not self._standing.out(self._clock()) and any(
            not worker.suspected
            and not worker.breaker.ejected
            and not worker.progress.stalled
            and worker not in exclude
            for worker in self._standing.serving
        )

    def absence(self) -> GatewayError | None:
        """The error of a request that no worker can serve, even after a wait; None while one can."""
        return None if self._may_serve((), self._clock()) else self._standing.no_worker()

    def release(self, worker: Worker, routing: RoutingFacts | None = None) -> None:
        worker.in_flight -= 1
        if routing is not None:
            self._departures.end(worker, routing)
            worker.tokens -= routing.charged
            routing.charged = 0
        worker.freed()

    # The outcome of a request. `generation` is the worker's generation when the request began.

    def answered(self, worker: Worker, generation: int) -> None:
        """The reply has begun."""
        if worker.breaker.answer(self._clock(), generation):
            self._returned(worker)

    def succeeded(self, worker: Worker, generation: int, generated: bool = True) -> None:
        now = self._clock()
        if worker.trouble is not None:
            worker.trouble = None
        if generated:
            worker.progress.replied_at = now
        if self._resting and self._resting.pop(worker, None) is not None:
            self._tried.discard(worker)
            worker.freed()
        if worker.breaker.succeed(now, generation):
            self._returned(worker)

    def _returned(self, worker: Worker) -> None:
        self.events.returned(worker)
        worker.freed()

    def abandoned(self, worker: Worker, generation: int) -> None:
        """The request ended in a way that says nothing about the worker: its client left, or a bug of ours."""
        worker.progress.left_at = self._clock()
        worker.breaker.abandon(generation)

    def waited(
        self, worker: Worker, routing: RoutingFacts, like: tuple[str, bool, float], seconds: float, answered: bool
    ) -> None:
        """See `core.ports.WorkerPool`. Clients that leave one worker alone make it suspect (`departures`)."""
        if len(self.workers) > 1:
            operation, stream, output = like
            found = size_of(routing), output, seconds, answered, self._clock()
            since = self._departures.record(Wait(worker, (operation, stream), *found))
            if since is not None:
                self.events.left_alone(worker, since)

    def failed(self, worker: Worker, generation: int, error: GatewayError) -> None:
        """Learns from a failure, as its meaning says (`core.failures`), and masks workers' addresses in its message.

        A worker that rests does so for its Retry-After (1 s without one, 30 s at most) or until one of its requests
        succeeds, and then is tried by one request. A worker that should be ejected but cannot be spared rests for 1 s.
        """
        error.message = self._standing.masked(error.message)
        breaker, cause = worker.breaker, error.why
        if cause is None:
            breaker.abandon(generation)
            if error.lacks is not None and error.lacks not in worker.lacking:
                worker.lacking |= {error.lacks}
                self.events.lacks(worker)
            return
        worker.trouble = cause
        if (effect := MEANINGS[cause].on_worker) != "counts":
            breaker.abandon(generation)
            if effect == "rests":
                self._rest(worker, min(error.retry_after or _REST_S, _LONGEST_REST_S))
            return
        now = self._clock()
        if breaker.fail(now, generation, may_eject=self._can_spare(worker, MEANINGS[cause].word)):
            self.events.ejected(worker)
            # Serve the queue when the ejection ends: all other workers may be full then.
            asyncio.get_running_loop().call_later(breaker.open_until - now + _LATE_S, worker.freed)
        elif breaker.failures >= breaker.options.failures and not breaker.ejected:
            self._rest(worker, _REST_S)  # too many workers are ejected already
        self.events.suspect(worker)

    def _can_spare(self, worker: Worker, word: Word = "unavailable") -> bool:
        """Whether the worker may be left out beside those that are already: all of them, where another model can answer
        instead for the reason `word`."""
        if self.instead is not None and self.instead(word):
            return True
        out = sum(other.breaker.ejected for other in self.workers if other is not worker)
        return out + 1 <= self._max_eject_share * len(self.workers) and out + 1 < len(self.workers)

    def stall(self, worker: Worker) -> None:
        """Sends the worker nothing new until `resume`: it makes no progress. Call it again while that is so: a worker
        that cannot be spared rests meanwhile, so that others are preferred to it."""
        if worker.breaker.open_until != inf:
            if self._can_spare(worker):
                worker.breaker.hold()
            else:
                self._rest(worker, _STALLED_REST_S)

    def resume(self, worker: Worker) -> None:
        """The worker makes progress again: if it was left out, one request tries it."""
        worker.breaker.try_again(self._clock())
        worker.freed()

    def _rest(self, worker: Worker, seconds: float) -> None:
        """Prefers the other workers for a while. This worker is full, still loads its model or is broken. A worker that
        refuses at once has the fewest requests in flight, so least-busy would send it everything."""
        now = self._clock()
        if worker not in self.workers:  # it has left, and still ran a request
            return
        if worker in self._tried or self._resting.get(worker, now) <= now:
            self._tried.discard(worker)
            self._rest_until(worker, now, seconds)

    def _rest_until(self, worker: Worker, now: float, seconds: float) -> None:
        self._resting[worker] = now + seconds
        asyncio.get_running_loop().call_later(seconds + _LATE_S, worker.freed)

    def serve_waiting(self) -> None:
        """Hands free workers to waiting requests, and refuses those that no worker can serve. Call it whenever a
        worker's state may have changed."""
        if self.waking.since is not None:
            self._look_awake()
        if self._waiting.queue.count:
            self._waiting.serve()

    def refit_waiting(self) -> None:
        """As `serve_waiting`. Call it when the workers that have what a request asks for are others than before."""
        if self.waking.since is not None:
            self._look_awake()
        if self._waiting.queue.count:
            self._waiting.refit()

    def _look_awake(self) -> None:
        if self.ready:
            self.waking.served(self._clock())

    def _no_worker(self) -> GatewayError:
        now = self._clock()
        if self.ready:  # some worker serves, but not this request
            return self._standing.no_worker()
        self.waking.asked(now)
        return self._standing.no_worker(self.waking.left(now))

    def _hand_over(self, exclude: Collection[Worker], now: float, routing: RoutingFacts) -> Worker | None:
        worker = self._pick(exclude, now, routing)
        if worker is not None:
            self._take(worker, now, routing)
        return worker

    def _states(self, now: float) -> WorkerStates:
        able = self._standing.able(now)
        free = frozenset(open_workers(able, now))
        return WorkerStates(able, free, frozenset([worker for worker, until in self._resting.items() if until > now]))

    def _may_serve(self, exclude: Collection[Worker], now: float) -> bool:
        """Whether waiting helps: some worker is only full."""
        standing = self._standing
        return not standing.out(now) and any(
            worker.breaker.allows(now) and worker not in exclude for worker in standing.serving
        )

    def _pick(self, exclude: Collection[Worker], now: float, routing: RoutingFacts) -> Worker | None:
        if len(self.workers) == 1:
            routing.why = "only"
            (worker,) = self.workers
            return worker if is_open(worker, now) and worker not in exclude else None
        if self._resting:
            exclude = self._with_resting(exclude, now)
        excluded = frozenset(exclude)
        candidates = self._candidates.get(excluded)
        if candidates is None:
            if len(self._candidates) >= _SETS:
                self._candidates.clear()
            candidates = self._candidates[excluded] = Candidates(self.workers, excluded)
        looked = candidates.count_pick(now)
        picked = self.policy.pick(candidates, now, routing)
        if picked is None and not self._standing.out(now) and not looked:
            candidates.look(now)
            picked = self.policy.pick(candidates, now, routing)
        return picked

    def _with_resting(self, exclude: Collection[Worker], now: float) -> Collection[Worker]:
        """Excludes those that rest, too, unless no worker that is awake could serve, even after a wait."""
        resting = {worker for worker, until in self._resting.items() if until > now}
        for worker in self._tried - resting:  # its rest is over
            self._tried.discard(worker)
            del self._resting[worker]
        resting.update(exclude)
        return resting if self._may_serve(resting, now) else exclude

    def _take(self, worker: Worker, now: float, routing: RoutingFacts) -> None:
        self._turn += 1
        worker.turn = self._turn
        worker.in_flight += 1
        worker.breaker.begin(now)
        if len(self.workers) > 1:
            self._departures.begin(worker, routing, now)
        if self._resting and self._resting.get(worker, now + 1) <= now:
            self._tried.add(worker)
            self._rest_until(worker, now, _REST_S)
        policy = self.policy
        routing.policy = policy.name
        if routing.prompt:
            routing.charged = max(1, routing.prompt - routing.saved) + routing.output
            worker.tokens += routing.charged
            policy.sent(worker, routing)
        if self.idle is not None:
            self.idle.taken(worker)

    async def _wait(
        self, exclude: Sequence[Worker], lacks: Lacking | None, priority: int, now: float, routing: RoutingFacts
    ) -> Worker:
        if not self.ready:
            self.waking.asked(now)
        request = self._waiting.enter(exclude, lacks, priority, now, routing)
        if self.idle is not None:
            self.idle.queued()
        future = request.future
        try:
            return await future
        except BaseException:
            if future.done() and not future.cancelled() and future.exception() is None:
                # A worker was handed over in the same turn of the loop in which the wait ended.
                worker = future.result()
                worker.breaker.abandon(worker.generation)
                self.release(worker, routing)
            raise
        finally:
            self._waiting.leave(request)
