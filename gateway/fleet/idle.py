"""Capacity of a model's workers that is idle now, for requests that nobody waits for.

Such a request takes a slot only while no other one waits for a worker, and while its worker would have room for more
behind it. It gives its slot back, and is asked to come again, as soon as others need it:

- a request waits in the queue, or
- a request takes the last room of a worker, or
- a worker's metrics show that other gateways have taken its last room, or, twice in a row, that requests wait there.

How much an engine takes is what `max_in_flight` says, or is learnt: slots grow while the engine reports that nothing
waits; when something does, it takes what it runs then. A share of that stays free: `headroom`. Requests begin one after
the other on a worker, in the gaps in which they end on average: many prompts at once would hold up those of others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from math import ceil, inf
from typing import Protocol

from msgspec import Struct

from gateway.core.charged import YIELDED
from gateway.core.errors import GatewayError, Kind
from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.adapters import AdapterPool
from gateway.fleet.capacity import READINGS
from gateway.fleet.pool import Pool
from gateway.fleet.worker import EngineLoad, Worker, is_open

_INITIAL_SLOTS = 8
"""Slots in an engine of which nothing is known yet."""
_UNKNOWN_SLOTS = 4
"""Requests of any kind, on a worker that reports no load and has no `max_in_flight`."""
_GROWTH_DIVISOR = 16
"""An engine that was full once is tried with so small a part more."""
_GROWS_ABOVE = 0.75
"""The share of an engine's slots that must be taken before there are more."""
_GROWTH_PAUSE_S = 30.0
"""After an engine was seen to be full, its slots grow no more for so long."""
_COOLDOWN_S = 1.0
"""No slot is given after others had to wait, for so long."""
_LOOK_S, _SOONEST_LOOK_S = 0.1, 0.005
_LONGEST_GAP_S = 0.1
_GAP_SHARE = 0.7
"""Requests may begin somewhat faster than they end, so that lost slots are taken again."""
_EWMA = 0.1
"""Weight of the last request in the average of how long they take."""
_LOOP_LATE_S = 0.05
"""While the event loop is later than this, no slot is given: the requests would cost it more."""


class Background(Protocol):
    """A request that nobody waits for."""

    def give_back(self) -> None:
        """It ends now, without an outcome: its slot is for others. Called once."""

    def leaves(self, absence: GatewayError) -> bool:
        """Whether it does not wait for a worker, because another model may answer it. absence: none can serve it."""


class _Sight(Struct):
    """The requests that one engine was seen to take.

    load      the reading that was looked at last
    full      so many readings in a row showed that requests wait
    capacity  requests that it runs at once; None while it was never full
    slots     requests that it may have altogether before it gets no more
    grow_at   until then they do not grow
    next_at   until then no request begins there
    lasts_s   how long requests take on average; None while none has ended
    """

    load: EngineLoad | None = None
    full: int = 0
    capacity: float | None = None
    slots: float = _INITIAL_SLOTS
    grow_at: float = 0.0
    next_at: float = 0.0
    lasts_s: float | None = None


class Idle:
    """The idle capacity of one pool, and the requests that use it.

    headroom  the share of what an engine takes that stays free for others
    pool      of all workers of the model
    """

    headroom = 1 / 16

    def __init__(self, pool: Pool, clock: Callable[[], float]) -> None:
        self.pool = pool
        self._clock = clock
        self._sights: dict[Worker, _Sight] = {}
        self._used: dict[Background, tuple[Worker, float]] = {}  # by age, and when each began
        self._granted: set[Background] = set()
        self._leaving: set[Background] = set()
        self._waiting: deque[tuple[Background, asyncio.Future[None]]] = deque()
        self._rests_until = 0.0
        self._taking = False
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    @classmethod
    def of(cls, pool: Pool | AdapterPool, clock: Callable[[], float]) -> Idle:
        """That of `pool`, which exists once."""
        whole = pool.whole if isinstance(pool, AdapterPool) else pool
        if whole.idle is None:
            whole.idle = cls(whole, clock)
        return whole.idle

    async def wait(self, request: Background) -> None:
        """Returns once the request may take a slot: it then calls `take`, or `left`. Raises GatewayError(NO_WORKER) if
        no worker can serve it and it leaves."""
        if (absence := self.pool.absence()) is not None and request.leaves(absence):
            raise absence
        if self._waiting or self._room(self._clock()) < 1:
            future = asyncio.get_running_loop().create_future()
            entry = (request, future)
            self._waiting.append(entry)
            self._look_soon()
            try:
                await future
            except BaseException:
                self._granted.discard(request)
                raise
            finally:
                if entry in self._waiting:
                    self._waiting.remove(entry)
        self._granted.add(request)

    def take(
        self, request: Background, pool: Pool | AdapterPool, exclude: Sequence[Worker], routing: RoutingFacts
    ) -> Worker | None:
        """A worker of `pool`, as its `try_acquire` gives one; None if no capacity is idle."""
        now = self._clock()
        self._granted.discard(request)
        if self.pool.waiting or now < self._rests_until:
            return None
        full = [worker for worker in self.pool.workers if self._free(worker, now) < 1]
        self._taking = True
        worker = pool.try_acquire([*exclude, *full], routing)
        self._taking = False
        if worker is not None:
            self._used[request] = worker, now
            worker.background += 1
            sight = self._look(worker, now)
            lasts_s = _LONGEST_GAP_S if sight.lasts_s is None else sight.lasts_s
            sight.next_at = now + min(_LONGEST_GAP_S, _GAP_SHARE * lasts_s / sight.slots)
            self._look_soon()
        return worker

    def left(self, request: Background) -> None:
        """It has no slot any more, if it had one."""
        self._granted.discard(request)
        slot = self._used.pop(request, None)
        if slot is not None:
            worker, began = slot
            worker.background -= 1
        if slot is not None and request not in self._leaving:
            sight, lasts_s = self._look(worker, now := self._clock()), now - began
            sight.lasts_s = lasts_s if sight.lasts_s is None else sight.lasts_s + _EWMA * (lasts_s - sight.lasts_s)
        self._leaving.discard(request)
        if self._waiting:
            self.serve()

    def _look_soon(self) -> None:
        now = self._clock()
        soonest = min([one.next_at for one in self._sights.values() if one.next_at > now], default=now + _LOOK_S)
        due = min(max(soonest, now + _SOONEST_LOOK_S), now + _LOOK_S)
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = asyncio.get_running_loop().call_later(due - now, self._look_now)

    def _look_now(self) -> None:
        """Nothing else notices that an engine has become idle, or busy for others."""
        self._timer = None
        if self._clock() < self._due + _LOOP_LATE_S:
            self.serve()
        if self._waiting or self._used:
            self._look_soon()

    def serve(self) -> None:
        """Lets requests that wait have the slots that are free."""
        now = self._clock()
        for worker in self.pool.workers if self._used else ():
            # Slots may be more than `capacity`, to see whether the engine takes more by now.
            self._give_back(self._over(worker, self._look(worker, now).slots), worker)
        if self._waiting and (absence := self.pool.absence()) is not None:
            for request, future in [entry for entry in self._waiting if entry[0].leaves(absence)]:
                self._waiting.remove((request, future))
                if not future.done():
                    future.set_exception(self.pool.absence() or absence)
        room = self._room(now) if self._waiting else 0
        while self._waiting and room >= 1:
            request, future = self._waiting.popleft()
            if not future.done():
                self._granted.add(request)
                future.set_result(None)
                room -= 1
        if self.pool.waiting:
            self.queued()

    # -- called by the pool for the requests of others ----------------------------------------------------------------

    def taken(self, worker: Worker) -> None:
        """A request has taken a slot on `worker`; one of ours takes none of another one."""
        if self._used and not self._taking:
            self._give_back(self._over(worker), worker)

    def queued(self) -> None:
        """A request waits in the pool's queue."""
        waiting = self.pool.waiting
        if waiting and (self._used or self._granted or self._waiting):
            self._rests_until = self._clock() + _COOLDOWN_S
            self._give_back(waiting - len(self._leaving))

    def _give_back(self, count: int, worker: Worker | None = None) -> None:
        """The youngest requests have done the least."""
        for request, (other, _) in reversed(list(self._used.items())) if count > 0 else ():
            if request not in self._leaving and worker in (None, other):
                self._leaving.add(request)
                request.give_back()
                count -= 1
                if count <= 0:
                    return

    # -- what is idle -------------------------------------------------------------------------------------------------

    def _room(self, now: float) -> float:
        if self.pool.waiting or now < self._rests_until:
            return 0
        free = [self._free(worker, now) for worker in self.pool.workers if is_open(worker, now)]
        return sum([min(1, max(0, int(one))) for one in free]) - len(self._granted)

    def _free(self, worker: Worker, now: float) -> float:
        """Slots on `worker` that requests may have for which nobody waits."""
        sight = self._look(worker, now)
        if now < sight.next_at:
            return 0
        load, most = worker.reported, worker.max_in_flight
        mine = inf if most is None else most - worker.in_flight - (0 if worker.learns else self._spare(most))
        if load is None:
            return mine if most is not None else _UNKNOWN_SLOTS - self._spare(_UNKNOWN_SLOTS) - worker.in_flight
        if load.waiting > 0:
            return 0
        return min(mine, sight.slots - _total(worker, load))

    def _over(self, worker: Worker, slots: float = 0.0) -> int:
        """Requests on `worker` beyond those that leave half of the spare room free; in its engine `slots` too."""
        load, most = worker.reported, worker.max_in_flight
        leaving = sum(self._used[one][0] is worker for one in self._leaving)
        over = 0.0 if most is None else worker.in_flight - leaving - most + self._spare(most) // 2
        sight = self._sights.get(worker)
        if load is not None and sight is not None and sight.capacity is not None:
            least = sight.capacity - self._spare(sight.capacity) // 2
            over = max(over, _total(worker, load) - leaving - max(least, slots))
        return ceil(over)

    def _look(self, worker: Worker, now: float) -> _Sight:
        """Takes a new reading of the worker's engine in."""
        sight = self._sights.get(worker)
        if sight is None:
            if len(self._sights) > 2 * len(self.pool.workers):
                self._sights = {one: self._sights[one] for one in self.pool.workers if one in self._sights}
            sight = self._sights[worker] = _Sight()
        load = worker.reported
        if load is sight.load or load is None:
            return sight
        sight.load = load
        if load.waiting > 0:
            sight.full += 1
            if sight.full >= READINGS:
                sight.capacity = load.running
                sight.slots = max(1.0, load.running - self._spare(load.running))
                sight.grow_at = now + _GROWTH_PAUSE_S
                self._give_back(ceil(load.waiting), worker)
        else:
            sight.full = 0
            if load.running >= _GROWS_ABOVE * sight.slots and now >= sight.grow_at:
                sight.slots += max(1, sight.slots // (2 if sight.capacity is None else _GROWTH_DIVISOR))
        return sight

    def _spare(self, capacity: float) -> int:
        return max(1, int(capacity * self.headroom)) if capacity > 1 else 0


def _total(worker: Worker, load: EngineLoad) -> float:
    """Requests in the engine of `worker`: those that it reported, and the change of ours since then."""
    return load.running + load.waiting + worker.in_flight - load.in_flight


class IdlePool:
    """The slots of one request that nobody waits for. Implements core.ports.Pool; it waits in no queue."""

    def __init__(self, pool: Pool | AdapterPool, idle: Idle, request: Background) -> None:
        self._pool = pool
        self._idle = idle
        self._request = request
        self.routing = pool.routing
        self.borrow = pool.borrow
        self.may_serve = pool.may_serve
        self.answered = pool.answered
        self.succeeded = pool.succeeded
        self.failed = pool.failed
        self.abandoned = pool.abandoned

    @property
    def ready(self) -> bool:
        return self._pool.ready

    @property
    def suspects(self) -> Collection[Worker]:
        return self._pool.suspects

    @property
    def without_cache_events(self) -> frozenset[Worker] | None:
        return self._pool.without_cache_events

    def try_acquire(self, exclude: Sequence[Worker], routing: RoutingFacts) -> Worker | None:
        return self._idle.take(self._request, self._pool, exclude, routing)

    async def acquire(self, exclude: Sequence[Worker], priority: int, routing: RoutingFacts) -> Worker:
        # No fallback is asked instead: that is for requests that clients wait for.
        raise GatewayError(Kind.LIMITED, "no capacity of this model is idle now", code=YIELDED)

    def waited(self, *_: object) -> None:
        """Nobody waits for it: neither its times nor a slot that it gives back say anything about a worker."""

    def release(self, worker: Worker, routing: RoutingFacts) -> None:
        self._pool.release(worker, routing)
        self._idle.left(self._request)
