"""Requests that wait for a worker of one model: who is next, and who goes when there is no room.

A higher priority goes first. Among requests of one priority, tenants take turns by deficit round robin over tokens
(Shreedhar and Varghese, 1995) with the two lists of FQ-CoDel (RFC 8290): a tenant of which nothing waited is served
before those of which something did, once. So the wait of one tenant does not grow with the queue of another.

No clock, no I/O. Adding, taking and removing a request take a constant number of steps on average, and one more for
each `QUANTUM` of its tokens.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

QUANTUM = 1024
"""Tokens of each tenant's turn."""
_MOST_TURNS = 64
"""A request costs its tenant at most so many turns: a bound on the steps to whoever is next."""


class Waiter:
    """A request that waits.

    tenant    whose turn it takes
    priority  higher goes first
    tokens    what it costs its tenant: prompt and output, estimated
    size      bytes of its body
    tried     what it may not be given: workers that failed it, or lack what it asks for. Such a request takes no turn;
              see `Queue.retries`
    queued    whether it is in a queue
    """

    __slots__ = ("priority", "queued", "size", "tenant", "tokens", "tried")

    def __init__(self, tenant: str, priority: int, tokens: int, size: int, tried: tuple[Hashable, ...] = ()) -> None:
        self.tenant = tenant
        self.priority = priority
        self.tokens = tokens
        self.size = size
        self.tried = tried
        self.queued = False


W = TypeVar("W", bound=Waiter)


class _Flow(Generic[W]):
    """What waits of one tenant, in order of arrival. deficit: tokens that it may still take in this round."""

    __slots__ = ("deficit", "size", "tokens", "waiters")

    def __init__(self) -> None:
        self.waiters: OrderedDict[W, None] = OrderedDict()
        self.deficit = QUANTUM
        self.tokens = 0
        self.size = 0


class _Level(Generic[W]):
    """What waits at one priority. flows holds every tenant on one of the two lists, also one that has just emptied."""

    __slots__ = ("count", "flows", "fresh", "rest", "size", "tokens")

    def __init__(self) -> None:
        self.flows: dict[str, _Flow[W]] = {}
        self.fresh: deque[str] = deque()
        self.rest: deque[str] = deque()
        self.count = 0
        self.size = 0
        self.tokens = 0

    def add(self, waiter: W) -> None:
        flow = self.flows.get(waiter.tenant)
        if flow is None:
            flow = self.flows[waiter.tenant] = _Flow()
            self.fresh.append(waiter.tenant)
        flow.waiters[waiter] = None
        flow.tokens += waiter.tokens
        flow.size += waiter.size
        self.count += 1
        self.size += waiter.size
        self.tokens += waiter.tokens

    def remove(self, waiter: W) -> None:
        flow = self.flows[waiter.tenant]
        del flow.waiters[waiter]
        flow.tokens -= waiter.tokens
        flow.size -= waiter.size
        self.count -= 1
        self.size -= waiter.size
        self.tokens -= waiter.tokens

    def first(self) -> W:
        """Who is next; something must wait."""
        while True:
            turns = self.fresh or self.rest
            tenant = turns[0]
            flow = self.flows[tenant]
            if flow.deficit <= 0:
                flow.deficit += QUANTUM
                turns.popleft()
                self.rest.append(tenant)
            elif flow.waiters:
                return next(iter(flow.waiters))
            else:
                turns.popleft()
                if turns is self.fresh and self.rest:
                    # Once round with those that wait: else who comes back at once would always be first.
                    self.rest.append(tenant)
                else:
                    del self.flows[tenant]

    def charge(self, waiter: W) -> None:
        self.flows[waiter.tenant].deficit -= min(waiter.tokens, QUANTUM * _MOST_TURNS)


class Queue(Generic[W]):
    """The requests that wait; see the module.

    count   requests
    size    bytes of their bodies
    tokens  what they cost
    """

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.tokens = 0
        self._levels: dict[int, _Level[W]] = {}
        self._priorities: list[int] = []  # of the levels, ascending
        self._retries: dict[tuple[int, tuple[Hashable, ...]], OrderedDict[W, None]] = {}

    def add(self, waiter: W) -> None:
        waiter.queued = True
        self.count += 1
        self.size += waiter.size
        self.tokens += waiter.tokens
        if waiter.tried:
            self._retries.setdefault((waiter.priority, waiter.tried), OrderedDict())[waiter] = None
            return
        level = self._levels.get(waiter.priority)
        if level is None:
            level = self._levels[waiter.priority] = _Level()
            self._priorities = sorted(self._levels)
        level.add(waiter)

    def remove(self, waiter: W) -> None:
        """Raises KeyError if it is not there."""
        waiter.queued = False
        if waiter.tried:
            key = (waiter.priority, waiter.tried)
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
        self.tokens -= waiter.tokens

    def first(self) -> W | None:
        """Who is next of those that any worker may serve. It stays there."""
        return self._levels[self._priorities[-1]].first() if self._priorities else None

    def take(self, waiter: W) -> None:
        """Removes what `first` or `retries` said, as served."""
        if not waiter.tried:
            self._levels[waiter.priority].charge(waiter)
        self.remove(waiter)

    def retries(self) -> list[W]:
        """The next of each kind of those that not every worker may serve, the highest priority first; only those that
        nobody outranks who takes turns."""
        if not self._retries:
            return []
        least = self._priorities[-1] if self._priorities else None
        keys = [key for key in self._retries if least is None or key[0] >= least]
        keys.sort(key=lambda key: -key[0])
        return [next(iter(self._retries[key])) for key in keys]

    def all_retries(self) -> list[W]:
        """All that not every worker may serve."""
        return [waiter for group in self._retries.values() for waiter in group]

    def __iter__(self) -> Iterator[W]:
        yield from self.all_retries()
        for level in self._levels.values():
            for flow in level.flows.values():
                yield from flow.waiters

    def ahead(self, tenant: str, priority: int, tokens: int) -> int:
        """Tokens that are served before a request of `tokens` that came now. Takes a step for each tenant."""
        found = sum(level.tokens for above, level in self._levels.items() if above > priority)
        level = self._levels.get(priority)
        if level is None:
            return found
        own = level.flows.get(tenant)
        mine = own.tokens if own is not None else 0
        others = sum(min(flow.tokens, mine + tokens) for flow in level.flows.values() if flow is not own)
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
