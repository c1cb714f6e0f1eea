"""The sliding window: never above N in any interval of W seconds, at least 0.98 N under saturation.

Time is cut into slices of w = ceil(W / 120). A counter holds, for every slice, what was admitted in it. A request of
cost c at time t is admitted if and only if the sum of the slices that still count, plus c, is at most N; it is then
added to the slice of t. Slice b covers [b w, (b+1) w) and counts until (b+1) w + W + g, with a guard
g = min(w, 100 ms).

docs/limits.md (*How it counts*) has the proofs. A rule with burst < limit also paces (GCRA): it has a theoretical
arrival time p, each unit costs W/N, and a request must leave p at most burst * W/N ahead. Settling moves p at most W
ahead; otherwise a reply of many times N would block the counter for longer than the counter is kept.

Refunds.  Settling for less than was reserved takes the difference out of the slice that was charged, if it still
counts; after that there is nothing to refund.

Debt.  Settling for more than was reserved adds the difference to the current slice, as far as the sum of the slices
stays at N; the rest is a debt. When slice b stops counting, slice b + 121 (the current one then, or one just before it)
takes as much of the debt as the sum leaves room for. Nothing is admitted before the debt is paid. A refund pays debt
first.

Holds.  A slice remembers how much of it running requests have reserved. A request that would fit without that may fit
as soon as one of them ends, and at the latest when slices stop counting.
"""

from __future__ import annotations

from msgspec import Struct

SLICES = 120
CYCLE = SLICES + 1
"""A slice takes the place of the one so many before it."""
MAX_GUARD = 100_000
RETRY_SLOT = 1_000_000
"""Microseconds. The end of a request frees a slot, not time, so clients get a wait of a second."""


class Shape(Struct, frozen=True, array_like=True):
    """The numbers of one limit; `redis/admit.lua` gets them in this order.

    counter  0: `Window`, 1: `Slots`, 2: `spent.Spent`
    width    of a slice, in microseconds, as are guard and span = 120 width + guard
    burst    0: no pacing
    shadow   1: it refuses nothing
    keep     milliseconds after which an untouched counter may be forgotten; 0: the life of a slot
    levels   see `spent.Spent`
    owes     1: a new counter begins with the debt of the one before it
    reserves  1: a charge is a reservation until it is settled
    """

    counter: int
    limit: int
    width: int
    guard: int
    burst: int
    shadow: int
    span: int
    keep: int
    levels: tuple[int, ...] = ()
    owes: int = 0
    reserves: int = 0


class Counted(Struct, array_like=True, gc=False):
    """One counter after a decision.

    remaining  what would be admitted now, never negative; with a burst often less than what the window has left
    reset_us   microseconds until all of the limit is free if nothing more is admitted; 0 for requests in flight
    entry      the slice that was charged; -1 if none was (refused, or a shadow limit would have refused). After `look`
               what the counter holds
    charged    of a budget: what the request has reserved
    held       of a budget: what running requests have reserved, this one too
    """

    remaining: int
    reset_us: int
    entry: int
    charged: int = 0
    held: int = 0


class Window:
    """One rate counter in this process. All times in integer microseconds of one monotonic clock."""

    __slots__ = ("debt", "expires", "floor", "held", "paced", "slices", "stale", "used")

    def __init__(self) -> None:
        self.used = 0  # the sum of the slices, and the debt
        self.debt = 0
        self.slices: dict[int, int] = {}  # ascending, as requests come in the order of the clock
        self.held: dict[int, int] = {}  # of slices, by running requests
        self.stale = 0  # until then every slice counts
        self.floor = 0  # slices below it were forgotten by a reset
        self.paced = 0.0
        self.expires = 0

    @staticmethod
    def shape(limit: int, per_s: float, burst: int, shadow: bool, reserves: bool = False) -> Shape:
        width = -(-round(per_s * 1_000_000) // SLICES)
        guard = min(width, MAX_GUARD)
        span = SLICES * width + guard
        keep = (span + 2 * width) // 1000 + 1000
        return Shape(0, limit, width, guard, burst, int(shadow), span, keep, reserves=int(reserves))

    def share(self, shape: Shape) -> float | None:
        """The part of the limit that is used; None if the counter must not be forgotten."""
        return self.used / shape.limit

    def slide(self, now: int, shape: Shape) -> None:
        """Forgets the slices that no longer count. The debt takes their room."""
        over = (now - shape.guard) // shape.width - SLICES - 1
        slices = self.slices
        if self.held:
            self.held = {index: amount for index, amount in self.held.items() if index > over}
        while slices:
            oldest = next(iter(slices))
            if oldest > over:
                self.stale = (oldest + 1) * shape.width + shape.span
                return
            if self.debt >= shape.limit == self.used - self.debt and oldest + CYCLE <= over:
                # Whole windows have passed, each with the same slices: they are not walked through one by one.
                passed = min((over - oldest) // CYCLE, self.debt // shape.limit)
                self.slices = slices = {index + passed * CYCLE: amount for index, amount in slices.items()}
                self.debt -= passed * shape.limit
                self.used -= passed * shape.limit
                continue
            amount = slices.pop(oldest)
            self.used -= amount
            if self.debt and amount:
                self.pay(oldest + CYCLE, shape)

    def pay(self, index: int, shape: Shape) -> None:
        """Moves debt into slice `index`, as far as the sum of the slices leaves room."""
        paid = min(self.debt, shape.limit - (self.used - self.debt))
        if paid > 0:
            self.slices[index] = self.slices.get(index, 0) + paid
            self.debt -= paid

    def delay(self, now: int, cost: int, shape: Shape) -> int:
        """Microseconds until `cost` fits; 0 when it fits now, as a cost of 0 does. Forgets what no longer counts."""
        if now >= self.stale:
            self.slide(now, shape)
        if not cost:
            return 0
        if self.debt:
            self.pay(max(now // shape.width, self.floor), shape)  # a reload may have raised the limit
        return self._until(now, cost, shape, {})

    def sooner(self, now: int, cost: int, shape: Shape, wait: int) -> int:
        """The same if running requests end and give back all that they hold; `delay` returned `wait`."""
        return max(self._until(now, cost, shape, self.held), min(wait, RETRY_SLOT)) if self.held and wait else wait

    def _until(self, now: int, cost: int, shape: Shape, held: dict[int, int]) -> int:
        """`delay` without what is `held` of slices."""
        used, later, wait = self.used - sum(held.values()), 0, 0
        over = used + cost - shape.limit
        if over > 0:
            counting = used - self.debt
            if self.debt and over > counting:
                # So many windows of debt first. The slices of each repeat those of today.
                passed = -(-(over - counting) // shape.limit)
                later = passed * CYCLE
                over -= counting + (passed - 1) * shape.limit - max(counting - shape.limit, 0)
            wait = shape.width  # kept only for a cost above the limit, which never fits
            for index, amount in self.slices.items():
                over -= amount - held.get(index, 0)
                if over <= 0:
                    wait = (index + later + 1) * shape.width + shape.span - now
                    break
        if shape.burst:
            unit = SLICES * shape.width / shape.limit
            ahead = max(self.paced - now, 0.0) + min(cost, shape.burst) * unit - shape.burst * unit
            if ahead > 0.5:  # half a microsecond: below it is rounding
                wait = max(wait, int(ahead) + 1)
        return wait

    def take_at_once(self, now: int, cost: int, shape: Shape, holder: str, ttl: int) -> Counted | None:
        """As `delay` and `take`; None, and nothing is charged, where that takes a closer look."""
        left = shape.limit - self.used - cost
        index = now // shape.width
        if left < 0 or now >= self.stale or self.debt or shape.burst or not cost or index < self.floor:
            return None
        slices = self.slices
        if index in slices:
            slices[index] += cost
        else:
            slices[index] = cost
            self.expires = max(self.expires, now + shape.keep * 1000)  # beyond the end of the slice
        self.used += cost
        if shape.reserves:
            self.held[index] = self.held.get(index, 0) + cost
        return Counted(left, (index + 1) * shape.width + shape.span - now, index)

    def undo(self, index: int, cost: int, holder: str) -> None:
        """Takes back what `take_at_once` did just now."""
        self.used -= cost
        self.slices[index] -= cost
        if index in self.held:
            self.held[index] -= cost
        if not self.slices[index]:
            del self.slices[index]

    def take(self, now: int, cost: int, shape: Shape, holder: str, ttl: int) -> Counted:
        """Charges `cost`, after `delay`."""
        index = self.charge(now, cost, shape)
        if shape.reserves and cost:
            self.held[index] = self.held.get(index, 0) + cost
        if shape.burst or not cost:
            return Counted(*self.state(now, shape), index)
        left = shape.limit - self.used
        reset = (index + 1) * shape.width + shape.span - now if self.used > 0 else 0
        return Counted(left if left > 0 else 0, reset, index)

    def charge(self, now: int, cost: int, shape: Shape) -> int:
        """Adds `cost` and returns the slice that holds it."""
        index = now // shape.width
        if index < self.floor:
            index = self.floor
        if not cost:
            return index
        slices = self.slices
        slices[index] = slices.get(index, 0) + cost
        self.used += cost
        keep = now + shape.keep * 1000
        if keep > self.expires:
            self.expires = keep
        if shape.burst:
            self.paced = max(self.paced, now) + cost * (SLICES * shape.width / shape.limit)
        return index

    def settle(self, now: int, index: int, delta: int, shape: Shape, holder: str, held: int) -> None:
        """Settles what was charged to slice `index`: gives back -delta, or charges delta to now and to what is owed.
        held: of the slice, by this request."""
        if now >= self.stale:
            self.slide(now, shape)
        if index in self.held:
            self.held[index] -= held
        if delta > 0:
            fits = min(delta, max(shape.limit - (self.used - self.debt), 0))
            self.charge(now, fits, shape)
            if delta > fits:
                self.debt += delta - fits
                self.used += delta - fits
                self.expires = max(self.expires, now + shape.keep * 1000 + self._owed(shape) * shape.width)
            if shape.burst:
                ahead = max(self.paced, now) + (delta - fits) * (SLICES * shape.width / shape.limit)
                self.paced = min(ahead, now + SLICES * shape.width)
            return
        charged = self.slices.get(index, 0)
        back = min(charged, -delta)
        if back > 0:
            self.used -= back
            forgiven = 0
            if self.debt:
                forgiven = min(back, self.debt)
                self.debt -= forgiven
            self.slices[index] = charged - back + forgiven
            if shape.burst:
                self.paced -= back * (SLICES * shape.width / shape.limit)

    def reset(self, now: int, shape: Shape) -> None:
        """Forgets all. Earlier charges can no longer be refunded, so the next slice is a fresh one."""
        self.slices.clear()
        self.held.clear()
        self.used = self.debt = 0
        self.stale = 0
        self.paced = 0.0
        self.floor = now // shape.width + 1
        self.expires = now + shape.keep * 1000

    def state(self, now: int, shape: Shape) -> tuple[int, int]:
        """(remaining, reset in microseconds). `slide` or `delay` came before."""
        left = shape.limit - self.used
        if shape.burst:
            unit = SLICES * shape.width / shape.limit
            left = min(left, int(shape.burst - max(self.paced - now, 0.0) / unit + 1e-6))
        reset = 0
        if self.used > 0:
            reset = (next(reversed(self.slices)) + self._owed(shape) + 1) * shape.width + shape.span - now
        return max(left, 0), reset

    def _owed(self, shape: Shape) -> int:
        """Slices in which the debt is paid, at most."""
        return -(-self.debt // shape.limit) * CYCLE


class Slots:
    """Requests in flight: holder id -> when it expires unless renewed. The methods are those of `Window`."""

    __slots__ = ("expires", "held", "stale")
    debt = 0

    def __init__(self) -> None:
        self.held: dict[str, int] = {}  # ascending by expiry, as every renewal moves to the end
        self.stale = 0  # until then none has expired
        self.expires = 0

    @staticmethod
    def shape(limit: int, shadow: bool) -> Shape:
        return Shape(1, limit, 0, 0, 0, int(shadow), 0, 0)

    @property
    def used(self) -> int:
        return len(self.held)

    def share(self, shape: Shape) -> float | None:
        return None if self.held else 0.0

    def slide(self, now: int, shape: Shape) -> None:
        held = self.held
        while held:
            oldest = next(iter(held))
            if held[oldest] > now:
                self.stale = held[oldest]
                return
            del held[oldest]

    def delay(self, now: int, cost: int, shape: Shape) -> int:
        if now >= self.stale:
            self.slide(now, shape)
        return RETRY_SLOT if len(self.held) >= shape.limit else 0

    def take_at_once(self, now: int, cost: int, shape: Shape, holder: str, ttl: int) -> Counted | None:
        if now >= self.stale:
            self.slide(now, shape)
        held = self.held
        left = shape.limit - len(held) - 1
        if left < 0 or holder in held:
            return None
        held[holder] = self.expires = now + ttl
        return Counted(left, 0, 0)

    def undo(self, index: int, cost: int, holder: str) -> None:
        del self.held[holder]

    def take(self, now: int, cost: int, shape: Shape, holder: str, ttl: int) -> Counted:
        self.hold(now, holder, ttl)
        return Counted(shape.limit - len(self.held), 0, 0)

    def hold(self, now: int, holder: str, ttl: int) -> None:
        """Takes a slot, or renews it."""
        self.held.pop(holder, None)
        self.held[holder] = self.expires = now + ttl

    def settle(self, now: int, index: int, delta: int, shape: Shape, holder: str, held: int) -> None:
        self.held.pop(holder, None)

    def reset(self, now: int, shape: Shape) -> None:
        self.held.clear()

    def state(self, now: int, shape: Shape) -> tuple[int, int]:
        return max(shape.limit - len(self.held), 0), 0
