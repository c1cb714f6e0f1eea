"""Waiting for a worker of one model: who may wait, for how long, and what those are told who may not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

from gateway.core.errors import Busy, GatewayError, Kind
from gateway.core.estimate import CHARACTERS, OUTPUT
from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.queue import Queue, Waiter, Without
from gateway.fleet.speed import Speed
from gateway.fleet.worker import OUTPUT_COSTS, Worker

# Kinds of requests whose speed is remembered while none of them waits.
_SPEEDS = 64

Refusal = Literal["full", "displaced", "slow", "late", "no_worker"]
"""Why a request got no worker: the queue was full; it had to make room for another one; the wait would have been too
long; it was; no worker could serve it."""


class QueuePolicy(Struct, frozen=True):
    """Bounds of a queue: requests, bytes of their bodies, seconds of each wait.

    cold_start_s  seconds that a request waits if no worker could serve it; 0: not at all
    """

    max_waiting: int = 1000
    timeout_s: float = 600.0
    max_bytes: int = 1 << 28
    cold_start_s: float = 0.0


class HandOver(Protocol):
    def __call__(self, exclude: Collection[Worker], now: float, routing: RoutingFacts) -> Worker | None:
        """A worker, taken, that is not in `exclude`; None if none is free."""
        ...


class State(NamedTuple):
    """Of the workers, at one time.

    able     those that serve, full or not
    free     those of them that are not full
    resting  before which the others are preferred
    """

    able: frozenset[Worker]
    free: frozenset[Worker]
    resting: frozenset[Worker]

    def suits(self, without: Without) -> bool:
        """Whether some worker that is free may be given to a request of this kind."""
        free = self.free
        if self.resting and not self.able - self.resting <= without:
            free = free - self.resting
        return not free <= without

    def adds_to(self, before: State) -> bool:
        """Whether those that found no worker `before` may find one now, or learn that there is none."""
        return self.able != before.able or self.resting != before.resting or not self.free <= before.free


Lacking = Callable[[], frozenset[Worker]]
"""Tells the workers that lack what a request asks for, at the time of the call."""


class Request(Waiter):
    """One that waits here.

    lacking  the workers that lack what it asks for; `lacks` tells them anew, None if none ever does
    tried    the workers that it has tried
    timer    ends its wait
    since    when it began
    """

    __slots__ = ("future", "lacking", "lacks", "routing", "since", "timer", "tried")

    without: frozenset[Worker]
    lacking: frozenset[Worker]
    lacks: Lacking | None
    tried: frozenset[Worker]
    routing: RoutingFacts
    future: asyncio.Future[Worker]
    since: float
    timer: asyncio.TimerHandle


class Waiting:
    """The requests that wait for a worker of one model.

    state      tells the state of the workers
    may_serve  (excluded workers, now) -> whether waiting helps: some worker is only full
    hand_over  takes a free worker
    on_wait    called with the seconds that a request waited
    on_refuse  called with the reason of every refusal
    """

    def __init__(
        self,
        policy: QueuePolicy,
        clock: Callable[[], float],
        state: Callable[[float], State],
        may_serve: Callable[[Collection[Worker], float], bool],
        hand_over: HandOver,
        on_wait: Callable[[float], None],
        on_refuse: Callable[[Refusal], None],
    ) -> None:
        self.policy = policy
        self.queue: Queue[Request] = Queue()
        self._clock = clock
        self._state = state
        # In this state no worker that was free suited anybody who waits.
        self._seen: State | None = None
        self._may_serve = may_serve
        self._hand_over = hand_over
        self._on_wait = on_wait
        self._on_refuse = on_refuse
        # How fast those of a kind are served, beside whoever else is.
        self._speeds: dict[frozenset[Worker], Speed] = {}

    def lets_pass(self, without: Collection[Worker]) -> bool:
        """Whether a newcomer may have a worker that is free: nobody waits whom it suits."""
        queue = self.queue
        if queue.count:
            if frozenset(without) in queue.kinds:
                return False
            self._serve_if_changed()
        return True

    def enter(
        self, tried: Collection[Worker], lacks: Lacking | None, priority: int, now: float, routing: RoutingFacts
    ) -> Request:
        """A request that waits; its worker may be there at once. To be followed by `leave`, whatever becomes of it.

        It is given none of those that it tried, and none of those that lack what it asks for. Raises GatewayError:
        NO_WORKER, `Busy`."""
        policy = self.policy
        lacking = lacks() if lacks is not None else frozenset[Worker]()
        without = lacking.union(tried)
        cold = not self._may_serve(without, now)
        if cold and (without or not policy.cold_start_s):
            self._on_refuse("no_worker")
            raise no_worker()
        # If the policy reads no prompts, the size of the body has to do.
        tokens = routing.prompt + routing.output or routing.size // CHARACTERS + OUTPUT_COSTS * OUTPUT
        request = Request(routing.tenant, priority, tokens, routing.size, without, bool(tried))
        request.lacking, request.lacks, request.tried = lacking, lacks, frozenset(tried)
        if not tried:  # a retry has waited already, and the retry budget bounds how many there are
            if not cold:
                self._check_wait(request, routing.until, now)
            self._make_room(request, now)
        loop = asyncio.get_running_loop()
        request.routing, request.since = routing, now
        request.future = loop.create_future()
        request.timer = loop.call_later(policy.cold_start_s if cold else policy.timeout_s, self._expire, request)
        if not tried and without not in self._speeds:
            self._new_speed(without)
        self.queue.add(request)
        if not cold and without in self._speeds:
            self._speeds[without].run(now)
        self._serve_if_changed()
        return request

    def leave(self, request: Request) -> None:
        """Its wait is over."""
        request.timer.cancel()
        if request.queued:
            self.queue.remove(request)
        now = self._clock()
        if request.without not in self.queue.kinds and (speed := self._speeds.get(request.without)) is not None:
            speed.rest(now)
        self._on_wait(now - request.since)

    def refit(self) -> None:
        """Which workers suit a request has changed: of all that wait, and serves them."""
        now, queue = self._clock(), self.queue
        told: dict[Lacking, frozenset[Worker]] = {}

        def kind_of(request: Request) -> frozenset[Worker]:
            lacks = request.lacks
            if lacks is None:
                return request.without
            if lacks not in told:
                told[lacks] = lacks()
            request.lacking = told[lacks]
            return request.lacking | request.tried if request.tried else request.lacking

        queue.regroup(kind_of)
        for kind, speed in self._speeds.items():
            if kind not in queue.kinds:
                speed.rest(now)
        new = [request.without for request in queue if request.without not in self._speeds and not request.again]
        if new:
            self._speeds = {known: speed for known, speed in self._speeds.items() if known in queue.kinds}
            self._speeds |= {kind: Speed() for kind in new}
        self.serve()

    def serve(self) -> None:
        """Hands out the workers that are free; refuses whom none can serve."""
        self._serve(self._state(self._clock()))

    def _serve_if_changed(self) -> None:
        """Serves if that may come to anything: else each arrival would look at all kinds that wait."""
        state = self._state(self._clock())
        if self._seen is None or state.adds_to(self._seen):
            self._serve(state)
        else:
            self._seen = state

    def _serve(self, state: State) -> None:
        """Takes a step for each kind and each worker that is handed out."""
        now, queue = self._clock(), self.queue
        for kind, speed in self._speeds.items():
            if not state.able:
                speed.rest(now)
            elif kind in queue.kinds:
                speed.run(now)
        blocked = {kind for kind in queue.kinds if not state.suits(kind)}
        while (first := queue.first(blocked)) is not None:
            if not self._give(first, now):
                blocked.add(first.without)
                continue
            after = self._state(now)
            if after != state:
                state = after
                blocked = {kind for kind in queue.kinds if not state.suits(kind)}
        self._seen = state
        if any(state.able <= kind for kind in queue.kinds):
            cold = self.policy.cold_start_s > 0
            for request in [one for one in queue if state.able <= one.without and (one.without or not cold)]:
                self._refuse(request, no_worker(), "no_worker")

    def _give(self, request: Request, now: float) -> bool:
        """Whether `request` is off the queue: served, or nobody's any more."""
        if request.future.done():  # cancelled, and not told yet
            self.queue.remove(request)
            return True
        worker = self._hand_over(request.without, now, request.routing)
        if worker is None:
            return False
        self.queue.take(request)
        if not request.again:
            self._speeds[request.without].served(request.tokens, now)
        request.future.set_result(worker)
        return True

    # -- refusals ---------------------------------------------------------------------------------------------------

    def _check_wait(self, request: Request, until: float | None, now: float) -> None:
        """Refuses what would wait for longer than it may: than `timeout_s`, and than its client does."""
        speed = self._speeds.get(request.without)
        if speed is None:
            return
        longest = self.policy.timeout_s if until is None else min(self.policy.timeout_s, until - now)
        most = speed.wait(self.queue.tokens(request.without), now)
        if most is None or most <= longest:
            return
        expected = speed.wait(self._ahead(request), now)
        if expected is not None and expected > longest:
            self._on_refuse("slow")
            message = f"the wait for a worker would be about {expected:.0f} s, longer than this request may wait"
            raise Busy(message, "wait_too_long", self._retry_after(request, now))

    def _make_room(self, request: Request, now: float) -> None:
        queue, policy = self.queue, self.policy
        over, excess = queue.count + 1 - policy.max_waiting, queue.size + request.size - policy.max_bytes
        if over <= 0 and (excess <= 0 or not queue.count):  # an empty queue takes a body of any size
            return
        going = queue.outranked(request, over, excess)
        if not going:
            self._on_refuse("full")
            raise Busy("the queue of this model is full", "queue_full", self._retry_after(request, now))
        for other in going:
            wait = self._retry_after(other, now)
            message = "the queue of this model is full, and this request had to make room"
            self._refuse(other, Busy(message, "queue_full", wait), "displaced")

    def _expire(self, request: Request) -> None:
        now = self._clock()
        if request.future.done():
            return
        if self._may_serve(request.without, now):
            message = "all workers of this model stayed busy for too long"
            wait = self._retry_after(request, now)
            self._refuse(request, GatewayError(Kind.OVERLOADED, message, retry_after=wait), "late")
        else:
            self._refuse(request, no_worker(), "no_worker")

    def _refuse(self, request: Request, error: GatewayError, reason: Refusal) -> None:
        self.queue.remove(request)
        if not request.future.done():
            self._on_refuse(reason)
            request.future.set_exception(error)

    def _ahead(self, request: Request) -> int:
        return self.queue.ahead(request.tenant, request.priority, request.tokens, request.lacking)

    def _retry_after(self, request: Request, now: float) -> float:
        speed = self._speeds.get(request.lacking) or Speed()
        return speed.send_back(self._ahead(request), request.tokens, now)

    def _new_speed(self, kind: frozenset[Worker]) -> None:
        if len(self._speeds) >= _SPEEDS:
            waiting = self.queue.kinds
            self._speeds = {known: speed for known, speed in self._speeds.items() if known in waiting}
        self._speeds[kind] = Speed()


def no_worker() -> GatewayError:
    return GatewayError(Kind.NO_WORKER, "no worker of this model is available", retry_after=1.0)
