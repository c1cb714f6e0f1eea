"""Requests that wait for a worker of one model: who is next, and who goes when there is no room.

A higher priority goes first. Among requests of one priority, tenants take turns by deficit round robin over tokens
(Shreedhar and Varghese, 1995) with the two lists of FQ-CoDel (RFC 8290): a tenant of which nothing waited is served
before those of which something did, once. So the wait of one tenant does not grow with the queue of another.

Not every worker suits every request. Requests that the same workers suit are of one *kind*. While no worker is free for
a kind, its requests are passed over and keep their places: none blocks another one that a free worker suits. A tenant
has one account, whatever its requests' kinds are.

No clock, no I/O. Adding and removing a request take a number of steps on average that grows with the logarithm of that
of tenants, not with the queue. Who is next takes a step for each kind, and for each kind of each tenant that is passed
over: two rounds at most, however large the requests are.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

Without = frozenset[Hashable]
"""The workers that do not suit a request: its kind."""
ANY: Without = frozenset()
"""The kind of requests that every worker suits."""
QUANTUM = 1024
"""Tokens of each tenant's turn."""
_MOST_TURNS = 64
"""A request costs its tenant at most so many turns."""


class Waiter:
    """A request that waits.

    tenant    whose turn it takes
    priority  higher goes first
    tokens    what it costs its tenant: prompt and output, estimated
    size      bytes of its body
    without   its kind: the workers that lack what it asks for, or failed it
    again     a worker failed it. It has waited before: it goes before those that take turns, and takes none
    queued    whether it is in a queue
    number    of its arrival
    """

    __slots__ = ("again", "number", "priority", "queued", "size", "tenant", "tokens", "without")

    def __init__(
        self, tenant: str, priority: int, tokens: int, size: int, without: Without = ANY, again: bool = False
    ) -> None:
        self.tenant = tenant
        self.priority = priority
        self.tokens = tokens
        self.size = size
        self.without = without
        self.again = again
        self.queued = False
        self.number = 0


W = TypeVar("W", bound=Waiter)


class _Flow(Generic[W]):
    """What waits of one tenant, in order of arrival.

    lines    the same by kind; one that has emptied stays until its turn
    place    when its turn is: the lowest is first
    fresh    nothing of the tenant waited before: it goes before those that are not fresh
    deficit  tokens that it may still take in this round
    idle     it has emptied, and is kept until its turn
    """

    __slots__ = ("deficit", "fresh", "idle", "lines", "place", "size", "waiters")

    def __init__(self, place: int) -> None:
        self.waiters: OrderedDict[W, None] = OrderedDict()
        self.lines: dict[Without, _Line[W]] = {}
        self.place = place
        self.fresh = True
        self.deficit = QUANTUM
        self.idle = False
        self.size = 0

    def first(self, blocked: Collection[Without]) -> W:
        """Its oldest of a kind that is not blocked; there must be one."""
        if len(self.lines) == 1:
            return next(iter(self.waiters))
        heads = [next(iter(line.waiters)) for kind, line in self.lines.items() if line.waiters and kind not in blocked]
        return min(heads, key=lambda waiter: waiter.number)


class _Line(Generic[W]):
    """What waits of one tenant and kind, in order of arrival."""

    __slots__ = ("flow", "tokens", "waiters")

    def __init__(self, flow: _Flow[W]) -> None:
        self.flow = flow
        self.waiters: OrderedDict[W, None] = OrderedDict()
        self.tokens = 0


class _Turns(Generic[W]):
    """The lines of one kind at one priority, by the places of their flows.

    A flow that has moved back has its old place in the heap until that is the lowest. A line that has emptied stays as
    long, or until as many lines have emptied as there are others.
    """

    __slots__ = ("count", "empty", "heap", "kind", "tokens")

    def __init__(self, kind: Without) -> None:
        self.kind = kind
        self.heap: list[tuple[int, _Line[W]]] = []
        self.empty = 0
        self.count = 0
        self.tokens = 0

    def add(self, waiter: W, flow: _Flow[W]) -> None:
        line = flow.lines.get(self.kind)
        if line is None:
            line = flow.lines[self.kind] = _Line(flow)
            heappush(self.heap, (flow.place, line))
        elif not line.waiters:
            self.empty -= 1
        line.waiters[waiter] = None
        line.tokens += waiter.tokens
        self.count += 1
        self.tokens += waiter.tokens

    def remove(self, waiter: W, flow: _Flow[W]) -> None:
        line = flow.lines[self.kind]
        del line.waiters[waiter]
        line.tokens -= waiter.tokens
        self.count -= 1
        self.tokens -= waiter.tokens
        if not line.waiters:
            self.empty += 1
            if self.empty * 2 > len(self.heap):
                self._drop_empty()

    def _drop_empty(self) -> None:
        for _, line in self.heap:
            if not line.waiters:
                del line.flow.lines[self.kind]
        self.heap = [(line.flow.place, line) for _, line in self.heap if line.waiters]
        heapify(self.heap)
        self.empty = 0

    def first(self) -> _Flow[W]:
        """Whose turn it is; something of this kind must wait."""
        heap = self.heap
        while True:
            place, line = heap[0]
            if not line.waiters:
                heappop(heap)
                del line.flow.lines[self.kind]
                self.empty -= 1
            elif place != line.flow.place:
                heapreplace(heap, (line.flow.place, line))
            else:
                return line.flow


def _turns_left(flow: _Flow[W]) -> int:
    """Until it may take something."""
    return -flow.deficit // QUANTUM + 1 if flow.deficit <= 0 else 0


_BEHIND = 1 << 62
"""Added to the places of flows that are not fresh."""


class _Level(Generic[W]):
    """What waits at one priority. flows holds each tenant whose turn is still to come, also one that has just emptied;
    behind is how many of them are not fresh."""

    __slots__ = ("behind", "count", "flows", "idle", "kinds", "place", "size")

    def __init__(self) -> None:
        self.flows: dict[str, _Flow[W]] = {}
        self.kinds: dict[Without, _Turns[W]] = {}
        self.idle: list[tuple[int, str, _Flow[W]]] = []
        self.behind = 0
        self.place = 0
        self.count = 0
        self.size = 0

    def add(self, waiter: W) -> None:
        kind = waiter.without
        flow = self.flows.get(waiter.tenant)
        if flow is None:
            flow = self.flows[waiter.tenant] = _Flow(self._last_place())
        turns = self.kinds.get(kind)
        if turns is None:
            turns = self.kinds[kind] = _Turns(kind)
        turns.add(waiter, flow)
        flow.waiters[waiter] = None
        flow.size += waiter.size
        self.count += 1
        self.size += waiter.size

    def remove(self, waiter: W) -> None:
        kind = waiter.without
        flow, turns = self.flows[waiter.tenant], self.kinds[kind]
        turns.remove(waiter, flow)
        del flow.waiters[waiter]
        flow.size -= waiter.size
        self.count -= 1
        self.size -= waiter.size
        if not turns.count:
            del self.kinds[kind]
        if not flow.waiters and not flow.idle:
            flow.idle = True
            heappush(self.idle, (flow.place, waiter.tenant, flow))

    def first(self, blocked: Collection[Without]) -> W | None:
        """Who is next of the kinds that are not blocked."""
        open_kinds = [turns for kind, turns in self.kinds.items() if kind not in blocked]
        if not open_kinds:
            return None
        begun: int | None = _BEHIND + self.place
        while True:
            flow = open_kinds[0].first()
            for turns in open_kinds[1:]:
                other = turns.first()
                if other.place < flow.place:
                    flow = other
            if self.idle and self.idle[0][0] < flow.place:
                self._pass_idle()
            elif flow.deficit > 0:
                return flow.first(blocked)
            elif len(self.flows) == 1:  # it takes all its turns at once
                flow.deficit += QUANTUM * _turns_left(flow)
                self._move_back(flow)
            elif begun is not None and flow.place > begun:
                self._go_round(open_kinds)
                begun = None
            else:
                flow.deficit += QUANTUM
                self._move_back(flow)

    def _go_round(self, open_kinds: Sequence[_Turns[W]]) -> None:
        """The walk was past everyone and begins anew: all rounds at once in which nobody can take anything. Each would
        cost a step for every kind of every tenant."""
        walked = {line.flow for turns in open_kinds for _, line in turns.heap if line.waiters}
        rounds = min(map(_turns_left, walked))
        for flow in walked:
            flow.deficit += QUANTUM * rounds
        staying = []
        for entry in self.idle:
            _, tenant, flow = entry
            if _turns_left(flow) < rounds:
                self.behind -= 1
                del self.flows[tenant]
            else:
                flow.deficit += QUANTUM * rounds
                staying.append(entry)
        heapify(staying)
        self.idle = staying

    def _pass_idle(self) -> None:
        """It is the turn of a tenant of which nothing waits."""
        place, tenant, flow = self.idle[0]
        if flow.waiters:
            heappop(self.idle)
            flow.idle = False
        elif place != flow.place:
            heapreplace(self.idle, (flow.place, tenant, flow))
        elif flow.deficit <= 0 or (flow.fresh and self.behind):
            # Once round with those that wait: else who comes back at once would always be first.
            flow.deficit += QUANTUM if flow.deficit <= 0 else 0
            self._move_back(flow)
            heapreplace(self.idle, (flow.place, tenant, flow))
        else:
            heappop(self.idle)
            self.behind -= not flow.fresh
            del self.flows[tenant]

    def _move_back(self, flow: _Flow[W]) -> None:
        self.behind += flow.fresh
        flow.fresh = False
        flow.place = _BEHIND + self._last_place()

    def _last_place(self) -> int:
        self.place += 1
        return self.place

    def regroup(self) -> None:
        """The kinds of those that wait have changed."""
        self.kinds = {}
        for flow in self.flows.values():
            flow.lines = {}
            for waiter in flow.waiters:
                turns = self.kinds.get(waiter.without)
                if turns is None:
                    turns = self.kinds[waiter.without] = _Turns(waiter.without)
                turns.add(waiter, flow)

    def charge(self, waiter: W) -> None:
        self.flows[waiter.tenant].deficit -= min(waiter.tokens, QUANTUM * _MOST_TURNS)


class Queue(Generic[W]):
    """The requests that wait; see the module.

    count   requests
    size    bytes of their bodies
    kinds   how many wait of each kind
    """

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.kinds: Counter[Without] = Counter()
        self._arrived = 0
        self._levels: dict[int, _Level[W]] = {}
        self._priorities: list[int] = []  # of the levels, ascending
        self._retries: dict[tuple[int, Without], OrderedDict[W, None]] = {}

    def add(self, waiter: W) -> None:
        self._arrived += 1
        waiter.number = self._arrived
        waiter.queued = True
        self.count += 1
        self.size += waiter.size
        self.kinds[waiter.without] += 1
        if waiter.again:
            self._retries.setdefault((waiter.priority, waiter.without), OrderedDict())[waiter] = None
            return
        level = self._levels.get(waiter.priority)
        if level is None:
            level = self._levels[waiter.priority] = _Level()
            self._priorities = sorted(self._levels)
        level.add(waiter)

    def remove(self, waiter: W) -> None:
        """Raises KeyError if it is not there."""
        waiter.queued = False
        if waiter.again:
            key = (waiter.priority, waiter.without)
            group = self._retries[key]
            del group[waiter]
            if not group:
                del self._retries[key]
        else:
            level = self._levels[waiter.priority]
            level.remove(waiter)
            if not level.count:
                del self._levels[waiter.priority]
                self._priorities.remove(waiter.priority)
        self.count -= 1
        self.size -= waiter.size
        self.kinds[waiter.without] -= 1
        if not self.kinds[waiter.without]:
            del self.kinds[waiter.without]

    def regroup(self, kind_of: Callable[[W], Without]) -> None:
        """Gives all that wait the kinds that they have now. They keep their places. Takes a step for each."""
        for waiter in self:
            waiter.without = kind_of(waiter)
        self.kinds = Counter(waiter.without for waiter in self)
        retries = sorted((waiter for group in self._retries.values() for waiter in group), key=lambda one: one.number)
        self._retries = {}
        for waiter in retries:
            self._retries.setdefault((waiter.priority, waiter.without), OrderedDict())[waiter] = None
        for level in self._levels.values():
            level.regroup()

    def first(self, blocked: Collection[Without] = ()) -> W | None:
        """Who is next of those whose kind is not blocked. It stays there."""
        if all(kind in blocked for kind in self.kinds):
            return None
        retries = [
            (key[0], -next(iter(group)).number, key) for key, group in self._retries.items() if key[1] not in blocked
        ]
        retry = max(retries, key=lambda found: found[:2])[2] if retries else None
        for priority in reversed(self._priorities):
            if retry is not None and retry[0] >= priority:
                break
            waiter = self._levels[priority].first(blocked)
            if waiter is not None:
                return waiter
        return next(iter(self._retries[retry])) if retry is not None else None

    def take(self, waiter: W) -> None:
        """Removes what `first` said, as served."""
        if not waiter.again:
            self._levels[waiter.priority].charge(waiter)
        self.remove(waiter)

    def __iter__(self) -> Iterator[W]:
        for group in self._retries.values():
            yield from group
        for level in self._levels.values():
            for flow in level.flows.values():
                yield from flow.waiters

    def tokens(self, kind: Without) -> int:
        """What those of this kind cost that take turns."""
        return sum(level.kinds[kind].tokens for level in self._levels.values() if kind in level.kinds)

    def ahead(self, tenant: str, priority: int, tokens: int, kind: Without = ANY) -> int:
        """Tokens of a kind that are served before a request of `tokens` that came now. Takes a step for each tenant."""
        levels = self._levels.items()
        found = sum(level.kinds[kind].tokens for above, level in levels if above > priority and kind in level.kinds)
        level = self._levels.get(priority)
        if level is None or kind not in level.kinds:
            return found
        flow = level.flows.get(tenant)
        own = flow.lines.get(kind) if flow is not None else None
        mine = own.tokens if own is not None else 0
        others = sum(min(line.tokens, mine + tokens) for _, line in level.kinds[kind].heap if line is not own)
        return found + mine + others

    def outranked(self, newcomer: W, requests: int, size: int) -> list[W]:
        """Who has to go so that `requests` places and `size` bytes become free for `newcomer`; nobody if it has to go
        itself.

        They are the last of the tenant that holds most at the lowest priority, if that is lower than the newcomer's, or
        if this tenant holds more even without them than the newcomer's then does.
        """
        if not self._priorities or self._priorities[0] > newcomer.priority:
            return []
        level = self._levels[self._priorities[0]]
        by_size = size > 0
        held = 0
        if self._priorities[0] == newcomer.priority:
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
