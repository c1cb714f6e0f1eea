"""Waiting for a worker of one model: which requests may wait, for how long, and how the others are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Literal, NamedTuple

from msgspec import Struct

from gateway.config import Queue as QueueOptions
from gateway.core.errors import Busy, GatewayError, Kind
from gateway.core.estimate import CHARACTERS, OUTPUT
from gateway.core.routing_facts import RoutingFacts
from gateway.fleet import queue
from gateway.fleet.queue import Queue, Waiter
from gateway.fleet.speed import Speed
from gateway.fleet.worker import OUTPUT_COSTS, Worker

Refusal = Literal["full", "displaced", "slow", "late", "no_worker"]
"""Why a request got no worker: the queue was full; it had to make room for another one; the wait would have been too
long; it was; no worker could serve it."""


def _nothing(*_: object) -> None:
    pass


class PoolEvents(Struct):
    """Functions to call with what becomes of the workers of a pool, and of the requests that wait for one.

    suspect     a request to this worker has failed: it should be probed at once
    ejected     this worker gets no requests for a while
    lacks       `Worker.lacking` of this worker has grown
    returned    this worker may take requests again
    left_alone  since then clients have left this worker unanswered, and would not have left others; see `departures`
    waited      a wait for a worker is over after so many seconds, whatever ended it
    refused     a request was refused a place in the queue, or its wait ended without a worker
    """

    suspect: Callable[[Worker], None] = _nothing
    ejected: Callable[[Worker], None] = _nothing
    lacks: Callable[[Worker], None] = _nothing
    returned: Callable[[Worker], None] = _nothing
    left_alone: Callable[[Worker, float], None] = _nothing
    waited: Callable[[float], None] = _nothing
    refused: Callable[[Refusal], None] = _nothing


class WorkerStates(NamedTuple):
    """The workers at one time.

    able     those that serve, full or not
    free     those of them that are not full
    resting  before which the others are preferred
    """

    able: frozenset[Worker]
    free: frozenset[Worker]
    resting: frozenset[Worker]

    def suit(self, unsuitable: queue.Kind) -> bool:
        """Whether some worker that is free may be given to a request of this kind."""
        free = self.free
        if self.resting and not self.able - self.resting <= unsuitable:
            free = free - self.resting
        return not free <= unsuitable

    def add_to(self, before: WorkerStates) -> bool:
        """Whether requests that found no worker `before` may find one now, or must be refused."""
        return self.able != before.able or self.resting != before.resting or not self.free <= before.free


Lacking = Callable[[], frozenset[Worker]]
"""Returns the workers that lack what a request asks for, at the time of the call."""


def joined(lacking: frozenset[Worker], tried: Collection[Worker]) -> frozenset[Worker]:
    """The workers in either: the same object as `lacking` for the first attempt of a request. It knows its hash."""
    return lacking.union(tried) if tried else lacking


class QueuedRequest(Waiter):
    """A request that waits for a worker of one model.

    lacking  the workers that lack what it asks for; `lacks` returns the current ones, or is None if no worker ever does
    tried    the workers that it has tried
    patient  no worker could serve it when it came, and it waits for one to return
    timer    ends its wait
    since    when it began
    """

    __slots__ = ("future", "lacking", "lacks", "patient", "routing", "since", "timer", "tried")

    unsuitable: frozenset[Worker]
    lacking: frozenset[Worker]
    lacks: Lacking | None
    tried: frozenset[Worker]
    patient: bool
    routing: RoutingFacts
    future: asyncio.Future[Worker]
    since: float
    timer: asyncio.TimerHandle


class WaitQueue:
    """The requests that wait for a worker of one model.

    states     returns the states of the workers
    may_serve  (excluded workers, now) -> whether waiting helps: some worker is only full
    absent     makes the error of a request that no worker can serve
    hand_over  (excluded workers, now, request) -> takes and returns a worker; None if none is free
    """

    def __init__(
        self,
        options: QueueOptions,
        clock: Callable[[], float],
        states: Callable[[float], WorkerStates],
        may_serve: Callable[[Collection[Worker], float], bool],
        hand_over: Callable[[Collection[Worker], float, RoutingFacts], Worker | None],
        events: PoolEvents,
        absent: Callable[[], GatewayError],
    ) -> None:
        self._no_worker = absent
        self.options = options
        self.queue: Queue[QueuedRequest] = Queue()
        self._clock = clock
        self._states = states
        # In these states no worker that was free suited any request that waits.
        self._last_states: WorkerStates | None = None
        self._may_serve = may_serve
        self._hand_over = hand_over
        self._events = events
        self._speed = Speed()

    def lets_pass(self, unsuitable: Collection[Worker]) -> bool:
        """Whether a newcomer may have a worker that is free: no request waits that the worker suits."""
        queue = self.queue
        if queue.count:
            if frozenset(unsuitable) in queue.kinds:
                return False
            self._serve_if_changed()
        return True

    def enter(
        self, tried: Collection[Worker], lacks: Lacking | None, priority: int, now: float, routing: RoutingFacts
    ) -> QueuedRequest:
        """Returns a request that waits; its worker may be there at once. Call `leave` in the end, whatever becomes of
        the request.

        It is given none of the workers that it tried, and none that lacks what it asks for. Raises GatewayError:
        NO_WORKER, `Busy`."""
        options = self.options
        lacking = lacks() if lacks is not None else frozenset[Worker]()
        unsuitable = joined(lacking, tried)
        cold, patience = not self._may_serve(unsuitable, now), routing.patience
        if cold and not patience and (unsuitable or not options.cold_start_s):
            self._events.refused("no_worker")
            raise self._no_worker()
        # If the policy reads no prompts, the size of the body has to do.
        tokens = routing.prompt + routing.output or routing.size // CHARACTERS + OUTPUT_COSTS * OUTPUT
        is_retry = bool(tried or patience)
        request = QueuedRequest(routing.tenant, priority, tokens, routing.size, unsuitable, is_retry)
        request.lacking, request.lacks, request.tried = lacking, lacks, frozenset(tried)
        request.patient = cold and patience > 0
        if not is_retry:  # a retry has waited already, and the retry budget bounds how many there are
            if not cold:
                self._check_wait(request, routing.until, now)
            self._make_room(request, now)
        loop = asyncio.get_running_loop()
        request.routing, request.since = routing, now
        request.future = loop.create_future()
        longest = options.timeout_s if not cold else patience or options.cold_start_s
        request.timer = loop.call_later(longest, self._expire, request)
        self.queue.add(request)
        if not cold:
            self._speed.run(now)
        self._serve_if_changed()
        return request

    def leave(self, request: QueuedRequest) -> None:
        """Its wait is over."""
        request.timer.cancel()
        if request.queued:
            self.queue.remove(request)
        now = self._clock()
        if not self.queue.count:
            self._speed.rest(now)
        self._events.waited(now - request.since)

    def refit(self) -> None:
        """Serves the requests that wait, after the workers that suit them have changed."""
        found: dict[Lacking, frozenset[Worker]] = {}

        def kind_of(request: QueuedRequest) -> frozenset[Worker]:
            lacks = request.lacks
            if lacks is None:
                return request.unsuitable
            if lacks not in found:
                found[lacks] = lacks()
            request.lacking = found[lacks]
            return joined(request.lacking, request.tried)

        self.queue.regroup(kind_of)
        self.serve()

    def serve(self) -> None:
        """Hands out the workers that are free; refuses the requests that none can serve."""
        self._serve(self._states(self._clock()))

    def _serve_if_changed(self) -> None:
        """Serves if that may come to anything. Otherwise each arrival would look at all kinds that wait."""
        states = self._states(self._clock())
        if self._last_states is None or states.add_to(self._last_states):
            self._serve(states)
        else:
            self._last_states = states

    def _serve(self, states: WorkerStates) -> None:
        """Takes a step for each kind and each worker that is handed out."""
        now, queue = self._clock(), self.queue
        if not states.able:
            self._speed.rest(now)
        elif queue.count:
            self._speed.run(now)
        blocked = {kind for kind in queue.kinds if not states.suit(kind)}
        while (first := queue.first(blocked)) is not None:
            if not self._give(first, now):
                blocked.add(first.unsuitable)
                continue
            after = self._states(now)
            if after != states:
                states = after
                blocked = {kind for kind in queue.kinds if not states.suit(kind)}
        self._last_states = states
        if any(states.able <= kind for kind in queue.kinds):
            cold = self.options.cold_start_s > 0
            for request in list(queue):
                if states.able <= request.unsuitable and not request.patient and (request.unsuitable or not cold):
                    self._refuse(request, self._no_worker(), "no_worker")

    def _give(self, request: QueuedRequest, now: float) -> bool:
        """Whether `request` is off the queue: served, or cancelled."""
        if request.future.done():  # cancelled, and still to leave
            self.queue.remove(request)
            return True
        worker = self._hand_over(request.unsuitable, now, request.routing)
        if worker is None:
            return False
        self.queue.take(request)
        if not request.is_retry:
            self._speed.served(request.tokens, now)
        request.future.set_result(worker)
        return True

    # -- refusals ---------------------------------------------------------------------------------------------------

    def _check_wait(self, request: QueuedRequest, until: float | None, now: float) -> None:
        """Refuses a request that would wait for longer than `timeout_s`, or than its client does."""
        longest = self.options.timeout_s if until is None else min(self.options.timeout_s, until - now)
        most = self._speed.wait(self.queue.tokens(request.unsuitable), now)
        if most is None or most <= longest:
            return
        expected = self._speed.wait(self._ahead(request), now)
        if expected is not None and expected > longest:
            self._events.refused("slow")
            message = f"the wait for a worker would be about {expected:.0f} s, longer than this request may wait"
            raise Busy(message, "wait_too_long", self._retry_after(request, now))

    def _make_room(self, request: QueuedRequest, now: float) -> None:
        queue, options = self.queue, self.options
        over, excess = queue.count + 1 - options.max_waiting, queue.size + request.size - options.max_bytes
        if over <= 0 and (excess <= 0 or not queue.count):  # an empty queue takes a body of any size
            return
        displaced = queue.outranked(request, over, excess)
        if not displaced:
            self._events.refused("full")
            raise Busy("the queue of this model is full", "queue_full", self._retry_after(request, now))
        for other in displaced:
            wait = self._retry_after(other, now)
            message = "the queue of this model is full, and this request had to make room"
            self._refuse(other, Busy(message, "queue_full", wait), "displaced")

    def _expire(self, request: QueuedRequest) -> None:
        now = self._clock()
        if request.future.done():
            return
        if self._may_serve(request.unsuitable, now):
            message = "all workers of this model stayed busy for too long"
            wait = self._retry_after(request, now)
            self._refuse(request, GatewayError(Kind.OVERLOADED, message, retry_after=wait), "late")
        else:
            self._refuse(request, self._no_worker(), None if request.patient else "no_worker")

    def _refuse(self, request: QueuedRequest, error: GatewayError, reason: Refusal | None) -> None:
        """reason: None if the request will come again."""
        self.queue.remove(request)
        if not request.future.done():
            if reason is not None:
                self._events.refused(reason)
            request.future.set_exception(error)

    def _ahead(self, request: QueuedRequest) -> int:
        return self.queue.ahead(request.tenant, request.priority, request.tokens, request.lacking)

    def _retry_after(self, request: QueuedRequest, now: float) -> float:
        return self._speed.send_back(self._ahead(request), request.tokens, now)
