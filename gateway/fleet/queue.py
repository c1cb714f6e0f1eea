"""Requests that wait for a worker of one model: which is next, and which goes when there is no room.

A higher priority goes first. Among requests of one priority, tenants share by start-time fair queueing over tokens
(Goyal, Vin and Cheng, 1996): a tenant's *turn* is a point on a clock of served tokens. The tenant with the earliest
turn goes first, and its next turn is as much later as its request costs. A tenant that is new or returns begins at the
clock's present time: idleness earns nothing, and the wait of one tenant does not grow with the queue of another.

Not every worker suits every request. Requests that the same workers suit are of one *kind*. While no worker is free for
a kind, its requests are passed over and keep their places: none blocks another one that a free worker suits. A tenant
has one turn, whatever its requests' kinds are.

No clock of seconds, no I/O. Adding and removing a request takes the same few steps however many wait. Finding the next
one, and one that has to go, takes a step for each tenant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Set
from heapq import merge
from itertools import chain
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

Kind = frozenset[Hashable]
"""The workers that do not suit a request."""
ANY: Kind = frozenset()
"""The kind of requests that every worker suits."""
MOST_COST = 65_536
"""Tokens. A larger request costs its tenant no more than this."""
_FEW = 64
"""Tenants without requests that may be kept before any is looked for."""
_TURN, _NUMBER = attrgetter("turn"), attrgetter("number")


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


class _Line(Generic[W]):
    """The requests of one tenant and kind in order of arrival."""

    __slots__ = ("tokens", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[W, None] = {}
        self.tokens = 0


class _Flow(Generic[W]):
    """The requests of one tenant by kind. size: bytes of their bodies."""

    __slots__ = ("count", "lines", "size", "turn")

    def __init__(self, turn: _Turn) -> None:
        self.turn = turn
        self.lines: dict[Kind, _Line[W]] = {}
        self.count = self.size = 0

    def __iter__(self) -> Iterator[W]:
        """In order of arrival."""
        return merge(*(line.waiters for line in self.lines.values()), key=_NUMBER)

    def __reversed__(self) -> Iterator[W]:
        return merge(*(reversed(line.waiters) for line in self.lines.values()), key=_NUMBER, reverse=True)

    def add(self, waiter: W) -> None:
        line = self.lines.get(waiter.unsuitable)
        if line is None:
            line = self.lines[waiter.unsuitable] = _Line()
        line.waiters[waiter] = None
        line.tokens += waiter.tokens
        self.count += 1
        self.size += waiter.size

    def remove(self, waiter: W) -> None:
        line = self.lines[waiter.unsuitable]
        del line.waiters[waiter]
        line.tokens -= waiter.tokens
        if not line.waiters:
            del self.lines[waiter.unsuitable]
        self.count -= 1
        self.size -= waiter.size

    def regroup(self) -> None:
        """The kinds of the requests have changed."""
        waiters, self.lines, self.count, self.size = list(self), {}, 0, 0
        for waiter in waiters:
            self.add(waiter)


class _Level(Generic[W]):
    """The requests of one priority. flows: by tenant, also those without requests whose turn is still to come. tokens:
    the cost of the requests, by kind."""

    __slots__ = ("_clock", "_numbers", "_sweep_at", "count", "flows", "size", "tokens")

    def __init__(self) -> None:
        self.flows: dict[str, _Flow[W]] = {}
        self.tokens: Counter[Kind] = Counter()
        self.count = self.size = 0
        self._clock = 0
        self._numbers = 0
        self._sweep_at = _FEW

    def add(self, waiter: W, tenant: str) -> None:
        flow = self.flows.get(tenant)
        if flow is None:
            if len(self.flows) >= self._sweep_at:
                self.flows = {name: one for name, one in self.flows.items() if one.count or one.turn.at > self._clock}
                self._sweep_at = 2 * len(self.flows) + _FEW
            flow = self.flows[tenant] = _Flow(self._turn(0))
        elif not flow.count and flow.turn.at <= self._clock:
            flow.turn = self._turn(0)
        flow.add(waiter)
        self.tokens[waiter.unsuitable] += waiter.tokens
        self.count += 1
        self.size += waiter.size

    def remove(self, waiter: W, tenant: str) -> None:
        self.flows[tenant].remove(waiter)
        self.tokens[waiter.unsuitable] -= waiter.tokens
        self.count -= 1
        self.size -= waiter.size

    def first(self, blocked: Set[Kind]) -> W | None:
        """The next request of the kinds that are not blocked."""
        flows = [flow for flow in self.flows.values() if not flow.lines.keys() <= blocked]
        if not flows:
            return None
        lines = min(flows, key=_TURN).lines
        return min([next(iter(line.waiters)) for kind, line in lines.items() if kind not in blocked], key=_NUMBER)

    def charge(self, tenant: str, tokens: int) -> None:
        """A request of `tenant` is served. A flow that was passed over for long does not catch up by more than it."""
        flow = self.flows[tenant]
        self._clock = max(self._clock, flow.turn.at)
        flow.turn = self._turn(min(tokens, MOST_COST))

    def _turn(self, tokens: int) -> _Turn:
        self._numbers += 1
        return _Turn(self._clock + tokens, self._numbers)

    def regroup(self) -> None:
        """The kinds of the requests have changed."""
        self.tokens.clear()
        for flow in self.flows.values():
            flow.regroup()
            for kind, line in flow.lines.items():
                self.tokens[kind] += line.tokens


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

    def first(self, blocked: Set[Kind] = frozenset()) -> W | None:
        """The next request whose kind is not blocked. It stays in the queue."""
        if self.kinds.keys() <= blocked:
            return None
        found = (self._levels[key].first(blocked) for key in reversed(self._ascending))
        return next((waiter for waiter in found if waiter is not None), None)

    def take(self, waiter: W) -> None:
        """Removes what `first` returned, as served."""
        level = self._levels[waiter.priority, waiter.is_retry]
        level.charge(_tenant_of(waiter), 0 if waiter.is_retry else waiter.tokens)
        self.remove(waiter)

    def __iter__(self) -> Iterator[W]:
        return chain.from_iterable(flow for level in self._levels.values() for flow in level.flows.values())

    def tokens(self, kind: Kind, above: int | None = None) -> int:
        """The cost of those of this kind that take turns; with `above`, of those that have a higher priority."""
        return sum(
            level.tokens[kind]
            for (priority, is_retry), level in self._levels.items()
            if not is_retry and (above is None or priority > above)
        )

    def ahead(self, tenant: str, priority: int, tokens: int, kind: Kind = ANY) -> int:
        """Tokens of a kind that are served before a request of `tokens` that came now. Takes a step for each tenant."""
        found = self.tokens(kind, priority)
        level = self._levels.get((priority, False))
        if level is None:
            return found
        waiting = {name: flow.lines[kind].tokens for name, flow in level.flows.items() if kind in flow.lines}
        mine = waiting.pop(tenant, 0)
        return found + mine + sum([min(other, mine + tokens) for other in waiting.values()])

    def outranked(self, newcomer: W, requests: int, size: int) -> list[W]:
        """The requests that have to go so that `requests` places and `size` bytes become free for `newcomer`; none if
        it has to go itself.

        They are the last of the tenant that holds most at the lowest priority, if that is lower than the newcomer's, or
        if this tenant holds more even without them than the newcomer's then does. A tenant whose bytes are above an
        equal part gives way, too, to one whose bytes then are not: one large body leaves room to others.
        """
        lowest = next((priority for priority, is_retry in self._ascending if not is_retry), None)
        if lowest is None or lowest > newcomer.priority:
            return []
        level = self._levels[lowest, False]
        by_size, room = size > 0, self.size + newcomer.size - size
        held = 0
        if lowest == newcomer.priority:
            own = level.flows.get(newcomer.tenant)
            held = 0 if own is None else own.size if by_size else own.count
            # A tenant with its part or more finds none that holds more than it, or need not: no step for each tenant.
            if held * len(level.flows) > (level.size if by_size else level.count):
                return []
            held += newcomer.size if by_size else 1
        largest = max(level.flows.values(), key=attrgetter("size" if by_size else "count"))
        left = largest.size if by_size else largest.count
        found: list[W] = []
        for waiter in reversed(largest):
            if requests <= 0 and size <= 0:
                break
            found.append(waiter)
            requests -= 1
            size -= waiter.size
            left -= waiter.size if by_size else 1
        if requests > 0 or size > 0:
            return []
        tenants = sum(flow.count > 0 and name != newcomer.tenant for name, flow in level.flows.items()) + 1
        part = room / tenants
        return found if left >= held or (by_size and held <= part < largest.size) else []


def _tenant_of(waiter: Waiter) -> str:
    """The tenant whose turn it takes: retries take none."""
    return "" if waiter.is_retry else waiter.tenant
