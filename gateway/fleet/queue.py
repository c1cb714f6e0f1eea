"""Requests that wait for a worker of one model: which is next, and which goes when there is no room.

A higher priority goes first. Among requests of one priority, tenants share by start-time fair queueing over tokens
(Goyal, Vin and Cheng, 1996): a tenant's *turn* is a point on a clock of served tokens. The tenant with the earliest
turn goes first, and its next turn is as much later as its request costs. A tenant that is new or returns begins at the
clock's present time: idleness earns nothing, and the wait of one tenant does not grow with the queue of another.

Not every worker suits every request. Requests that the same workers suit are of one *kind*. While no worker is free for
a kind, its requests are passed over and keep their places: none blocks another one that a free worker suits. A tenant
has one turn, whatever its requests' kinds are.

No clock of seconds, no I/O. Adding and removing a request takes steps by the logarithm of the number of tenants, not by
the queue. Finding the next one takes a step for each kind.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, NamedTuple, TypeVar

Kind = frozenset[Hashable]
"""The workers that do not suit a request."""
ANY: Kind = frozenset()
"""The kind of requests that every worker suits."""
MOST_COST = 65_536
"""Tokens. A larger request costs its tenant no more than this."""
_FEW = 64
"""Useless entries that may be kept before any is looked for."""


class Waiter:
    """A request that waits.

    tenant      whose turn it takes
    priority    higher goes first
    tokens      what it costs its tenant: prompt and output, estimated
    size        bytes of its body
    unsuitable  its kind: the workers that lack what it asks for, or failed it
    is_retry    a worker failed it. It has waited before: it goes before those that take turns, and takes none
    queued      whether it is in a queue
    number      of its arrival
    """

    __slots__ = ("is_retry", "number", "priority", "queued", "size", "tenant", "tokens", "unsuitable")

    def __init__(
        self, tenant: str, priority: int, tokens: int, size: int, unsuitable: Kind = ANY, is_retry: bool = False
    ) -> None:
        self.tenant = tenant
        self.priority = priority
        self.tokens = tokens
        self.size = size
        self.unsuitable = unsuitable
        self.is_retry = is_retry
        self.queued = False
        self.number = 0


W = TypeVar("W", bound=Waiter)


class _Turn(NamedTuple):
    """at: on the clock of served tokens. number: makes turns differ, the earlier one is first."""

    at: int
    number: int


class _Flow(Generic[W]):
    """The requests of one tenant in order of arrival, all together and by kind. size: bytes of their bodies."""

    __slots__ = ("lines", "size", "turn", "waiters")

    def __init__(self, turn: _Turn) -> None:
        self.turn = turn
        self.waiters: OrderedDict[W, None] = OrderedDict()
        self.lines: dict[Kind, _Line[W]] = {}
        self.size = 0


class _Line(Generic[W]):
    """The requests of one tenant and kind in order of arrival."""

    __slots__ = ("flow", "tokens", "waiters")

    def __init__(self, flow: _Flow[W]) -> None:
        self.flow = flow
        self.waiters: OrderedDict[W, None] = OrderedDict()
        self.tokens = 0


class _Group(Generic[W]):
    """The lines of one kind, by the turns of their flows. The heap may hold an older turn of a flow, and lines that
    have emptied: these are put right when they are its first, or once they are more than half of it."""

    __slots__ = ("heap", "lines", "tokens")

    def __init__(self) -> None:
        self.heap: list[tuple[_Turn, _Line[W]]] = []
        self.lines = 0
        self.tokens = 0

    def add(self, waiter: W, flow: _Flow[W]) -> None:
        line = flow.lines.get(waiter.unsuitable)
        if line is None:
            line = flow.lines[waiter.unsuitable] = _Line(flow)
            self.lines += 1
            heappush(self.heap, (flow.turn, line))
        line.waiters[waiter] = None
        line.tokens += waiter.tokens
        self.tokens += waiter.tokens

    def remove(self, waiter: W, flow: _Flow[W]) -> None:
        line = flow.lines[waiter.unsuitable]
        del line.waiters[waiter]
        line.tokens -= waiter.tokens
        self.tokens -= waiter.tokens
        if not line.waiters:
            del flow.lines[waiter.unsuitable]
            self.lines -= 1
            if len(self.heap) > 2 * self.lines + _FEW:
                self.heap = [(other.flow.turn, other) for _, other in self.heap if other.waiters]
                heapify(self.heap)

    def first(self) -> _Flow[W]:
        """The flow whose turn is next; something must wait."""
        heap = self.heap
        while True:
            turn, line = heap[0]
            if not line.waiters:
                heappop(heap)
            elif turn != line.flow.turn:
                heapreplace(heap, (line.flow.turn, line))
            else:
                return line.flow


class _Level(Generic[W]):
    """The requests of one priority. flows: by tenant, also those without requests whose turn is still to come."""

    __slots__ = ("_clock", "_numbers", "_sweep_at", "count", "flows", "groups", "size")

    def __init__(self) -> None:
        self.flows: dict[str, _Flow[W]] = {}
        self.groups: dict[Kind, _Group[W]] = {}
        self.count = 0
        self.size = 0
        self._clock = 0
        self._numbers = 0
        self._sweep_at = _FEW

    def add(self, waiter: W, tenant: str) -> None:
        flow = self.flows.get(tenant)
        if flow is None:
            if len(self.flows) >= self._sweep_at:
                self.flows = {name: one for name, one in self.flows.items() if one.waiters or one.turn.at > self._clock}
                self._sweep_at = 2 * len(self.flows) + _FEW
            flow = self.flows[tenant] = _Flow(self._turn(0))
        elif not flow.waiters and flow.turn.at <= self._clock:
            flow.turn = self._turn(0)
        flow.waiters[waiter] = None
        flow.size += waiter.size
        self._group(waiter.unsuitable).add(waiter, flow)
        self.count += 1
        self.size += waiter.size

    def remove(self, waiter: W, tenant: str) -> None:
        flow, group = self.flows[tenant], self.groups[waiter.unsuitable]
        del flow.waiters[waiter]
        flow.size -= waiter.size
        group.remove(waiter, flow)
        if not group.lines:
            del self.groups[waiter.unsuitable]
        self.count -= 1
        self.size -= waiter.size

    def first(self, blocked: Collection[Kind]) -> W | None:
        """The next request of the kinds that are not blocked."""
        flows = [group.first() for kind, group in self.groups.items() if kind not in blocked]
        if not flows:
            return None
        flow = min(flows, key=lambda one: one.turn)
        heads = [next(iter(line.waiters)) for kind, line in flow.lines.items() if kind not in blocked]
        return min(heads, key=lambda waiter: waiter.number)

    def charge(self, tenant: str, tokens: int) -> None:
        """A request of `tenant` is served. A flow that was passed over for long does not catch up by more than it."""
        flow = self.flows[tenant]
        self._clock = max(self._clock, flow.turn.at)
        flow.turn = self._turn(min(tokens, MOST_COST))

    def _turn(self, tokens: int) -> _Turn:
        self._numbers += 1
        return _Turn(self._clock + tokens, self._numbers)

    def _group(self, kind: Kind) -> _Group[W]:
        group = self.groups.get(kind)
        if group is None:
            group = self.groups[kind] = _Group()
        return group

    def regroup(self) -> None:
        """The kinds of the requests have changed."""
        self.groups = {}
        for flow in self.flows.values():
            flow.lines = {}
            for waiter in flow.waiters:
                self._group(waiter.unsuitable).add(waiter, flow)


class Queue(Generic[W]):
    """The requests that wait; see the module.

    count   requests
    size    bytes of their bodies
    kinds   how many wait of each kind
    """

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.kinds: Counter[Kind] = Counter()
        self._arrived = 0
        # By priority. The retries of a priority are a level above the others, in which all are of one tenant.
        self._levels: dict[tuple[int, bool], _Level[W]] = {}
        self._ascending: list[tuple[int, bool]] = []

    def add(self, waiter: W) -> None:
        self._arrived += 1
        waiter.number = self._arrived
        waiter.queued = True
        self.count += 1
        self.size += waiter.size
        self.kinds[waiter.unsuitable] += 1
        key = waiter.priority, waiter.is_retry
        level = self._levels.get(key)
        if level is None:
            level = self._levels[key] = _Level()
            self._ascending = sorted(self._levels)
        level.add(waiter, _tenant_of(waiter))

    def remove(self, waiter: W) -> None:
        """Raises KeyError if it is not there."""
        waiter.queued = False
        key = waiter.priority, waiter.is_retry
        level = self._levels[key]
        level.remove(waiter, _tenant_of(waiter))
        if not level.count:
            del self._levels[key]
            self._ascending.remove(key)
        self.count -= 1
        self.size -= waiter.size
        self.kinds[waiter.unsuitable] -= 1
        if not self.kinds[waiter.unsuitable]:
            del self.kinds[waiter.unsuitable]

    def regroup(self, kind_of: Callable[[W], Kind]) -> None:
        """Gives all that wait the kinds that they have now. They keep their places. Takes a step for each."""
        for waiter in self:
            waiter.unsuitable = kind_of(waiter)
        self.kinds = Counter(waiter.unsuitable for waiter in self)
        for level in self._levels.values():
            level.regroup()

    def first(self, blocked: Collection[Kind] = ()) -> W | None:
        """The next request whose kind is not blocked. It stays in the queue."""
        if all(kind in blocked for kind in self.kinds):
            return None
        found = (self._levels[key].first(blocked) for key in reversed(self._ascending))
        return next((waiter for waiter in found if waiter is not None), None)

    def take(self, waiter: W) -> None:
        """Removes what `first` returned, as served."""
        level = self._levels[waiter.priority, waiter.is_retry]
        level.charge(_tenant_of(waiter), 0 if waiter.is_retry else waiter.tokens)
        self.remove(waiter)

    def __iter__(self) -> Iterator[W]:
        for level in self._levels.values():
            for flow in level.flows.values():
                yield from flow.waiters

    def tokens(self, kind: Kind, above: int | None = None) -> int:
        """The cost of those of this kind that take turns; with `above`, of those that have a higher priority."""
        return sum(
            level.groups[kind].tokens
            for (priority, is_retry), level in self._levels.items()
            if not is_retry and kind in level.groups and (above is None or priority > above)
        )

    def ahead(self, tenant: str, priority: int, tokens: int, kind: Kind = ANY) -> int:
        """Tokens of a kind that are served before a request of `tokens` that came now. Takes a step for each tenant."""
        found = self.tokens(kind, priority)
        level = self._levels.get((priority, False))
        if level is None or kind not in level.groups:
            return found
        flow = level.flows.get(tenant)
        own = flow.lines.get(kind) if flow is not None else None
        mine = own.tokens if own is not None else 0
        others = sum(min(line.tokens, mine + tokens) for _, line in level.groups[kind].heap if line is not own)
        return found + mine + others

    def outranked(self, newcomer: W, requests: int, size: int) -> list[W]:
        """The requests that have to go so that `requests` places and `size` bytes become free for `newcomer`; none if
        it has to go itself.

        They are the last of the tenant that holds most at the lowest priority, if that is lower than the newcomer's, or
        if this tenant holds more even without them than the newcomer's then does.
        """
        lowest = next((priority for priority, is_retry in self._ascending if not is_retry), None)
        if lowest is None or lowest > newcomer.priority:
            return []
        level = self._levels[lowest, False]
        by_size = size > 0
        held = 0
        if lowest == newcomer.priority:
            own = level.flows.get(newcomer.tenant)
            held = 0 if own is None else own.size if by_size else len(own.waiters)
            # A tenant with its part or more finds none that holds more than it, or need not: no step for each tenant.
            if held * len(level.flows) > (level.size if by_size else level.count):
                return []
            held += newcomer.size if by_size else 1
        largest = max(level.flows.values(), key=lambda flow: flow.size if by_size else len(flow.waiters))
        left_count, left_size = len(largest.waiters), largest.size
        found: list[W] = []
        for waiter in reversed(largest.waiters):
            if requests <= 0 and size <= 0:
                break
            found.append(waiter)
            requests -= 1
            size -= waiter.size
            left_count -= 1
            left_size -= waiter.size
        enough = requests <= 0 and size <= 0
        return found if enough and (left_size if by_size else left_count) >= held else []


def _tenant_of(waiter: Waiter) -> str:
    """The tenant whose turn it takes: retries take none."""
    return "" if waiter.is_retry else waiter.tenant
