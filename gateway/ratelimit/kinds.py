"""The kinds of limits: what each charges, and what counts it.

A new kind is a class and a line in `KINDS`. If none of `COUNTERS` has its arithmetic, it brings a class with their
methods for this process (a line in `COUNTERS`), and a branch in `redis/admit.lua` for Redis.
"""

from __future__ import annotations

from datetime import datetime
from math import ceil, inf
from time import time
from typing import Literal, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from gateway.config import Limit
from gateway.config.sharing import KindOfLimit
from gateway.core.estimate import Cost
from gateway.core.money import shown
from gateway.core.usage import Usage
from gateway.ratelimit.calendar import Calendar
from gateway.ratelimit.expected import reserved_for_sure
from gateway.ratelimit.spent import FOREVER, Spent
from gateway.ratelimit.window import Shape, Slots, Window

AnyCounter = Window | Slots | Spent
COUNTERS: tuple[type[Window] | type[Slots] | type[Spent], ...] = (Window, Slots, Spent)
"""By `Shape.counter`."""

_LONGEST = 1.02
"""A window counts for its length, a slice of it and a guard, together less than so many windows: see `window`."""
_UNITS = {60.0: "a minute", 3600.0: "an hour", 86_400.0: "a day"}


class Wait(NamedTuple):
    """Seconds until a refused request may fit, those that are added so that not all clients come back at once, and
    those until it fits although no running request ends."""

    fits_s: float
    spread_s: float = 0.0
    latest_s: float = 0.0

    def text(self, per_s: float = inf) -> str:
        """The clause for the client, in whole seconds as `Retry-After` has them. A time above the window `per_s` is
        due to a debt."""
        whole = ceil(self.fits_s + self.spread_s)
        added = whole - ceil(self.fits_s)
        why = ["earlier requests used more than they had reserved"] if self.fits_s > per_s * _LONGEST + 1 else []
        if added:
            why.append(f"{added} s of it spread the requests that wait for this")
        return f"try again in {whole} s" + (f" ({'; '.join(why)})" if why else "")


class LimitKind:
    """Counts requests per window. Others override what differs.

    measured   the charge depends on what the request holds: it is reserved before, and corrected after the request
    in_flight  a request is counted while it runs, so its end gives back what it held
    adds_up    what a request cost is charged for good, instead of its tokens
    sized      the prompt and the cap on the output decide what a request reserves
    shown      replies have headers about it, OpenAI's and Anthropic's
    unit       in headers of the IETF's draft; None for none. Tokens are not in its registry
    """

    measured = False
    in_flight = False
    adds_up = False
    sized = False
    shown = True
    unit: str | None = "requests"

    def shape(self, rule: Limit, most: int) -> Shape:
        """The numbers of `rule` with the limit `most`, of which its burst has the same share."""
        burst = 0 if rule.burst is None or rule.burst >= rule.limit else max(1, rule.burst * most // rule.limit)
        return Window.shape(most, rule.per_s, burst, rule.shadow, self.measured)

    def counter(self, rule: Limit) -> str:
        """The beginning of its counters' names: rules with unequal ones share no counter."""
        return f"{rule.kind[0]}{rule.per_s:g}"

    def counter_before(self, rule: Limit) -> str | None:
        """The same of the counter whose debt this one begins with, if there is such a counter."""
        return None

    def reserves(self, cost: Cost) -> int:
        """The charge before the request, if measured."""
        raise NotImplementedError

    def uses(self, usage: Usage) -> int:
        """The charge after the request, if measured."""
        raise NotImplementedError

    def never_fits(self, cost: Cost, rule: Limit) -> tuple[str, str | None] | None:
        """A request reserves more than the limit: (why it can never be admitted, the field that asks for too
        much); None if it can."""
        return None

    def advice(self, cost: Cost, left: int) -> str:
        """The clause for the client: the part of a refused request that is too large for what is left. Empty if no
        smaller request fits."""
        if not self.sized or left <= 0:
            return ""
        if cost.each > 1 and self.reserves(cost.with_outputs_of(1)) <= left:
            return "; a smaller cap on its output (such as max_tokens) reserves less"
        bare = replace(cost, prompt=0, least=0).with_outputs_of(min(cost.each, 1))
        return "; a shorter prompt reserves less" if cost.prompt and self.reserves(bare) <= left else ""

    def refusal(self, rule: Limit, limit: int, remaining: int, charge: int, wait: Wait) -> str:
        reserves = f" and this request reserves {charge}" if self.measured else ""
        if wait.latest_s > wait.fits_s:
            reserves += f"; running or expected requests hold what is missing, for {ceil(wait.latest_s)} s at most"
        return (
            f"limit '{rule.name}' reached: {limit} {rule.kind} {per(rule)}, {remaining} left{reserves}; "
            f"{wait.text(rule.per_s)}"
        )


class Tokens(LimitKind):
    """Counts input and output. A request is refused for good if it surely uses more than the limit, or if its choices
    may have more tokens together."""

    measured = sized = True
    unit = "tokens"

    def reserves(self, cost: Cost) -> int:
        return cost.tokens if cost.tokens > cost.least else cost.least

    def uses(self, usage: Usage) -> int:
        return (usage.input or 0) + (usage.output or 0)

    def never_fits(self, cost: Cost, rule: Limit) -> tuple[str, str | None] | None:
        limit = f"the limit '{rule.name}' of {rule.limit}"
        if cost.least > rule.limit:
            return f"this request needs at least {cost.least} tokens, above {limit} {per(rule)}", None
        expected = rule.reserve == "expected"
        each = reserved_for_sure(cost.each) if expected else cost.each
        if cost.field and cost.choices * each > rule.limit:
            reserves = f", each of which reserves at least {each}," if expected else ","
            return (
                f"'{cost.field}' asks for {cost.choices} outputs of up to {cost.each} tokens each{reserves} together "
                f"more than {limit} tokens {per(rule)}; ask for fewer, or send a smaller cap on the output (such as "
                "max_tokens)"
            ), cost.field
        return None


class AudioSeconds(LimitKind):
    """Counts seconds of sound, if the file or the worker reports them."""

    measured = True
    shown = False
    unit = None

    def reserves(self, cost: Cost) -> int:
        return cost.audio_s

    def uses(self, usage: Usage) -> int:
        return 0 if usage.audio_s is UNSET else ceil(usage.audio_s)


class InFlight(LimitKind):
    """Counts the requests that run."""

    in_flight = True
    shown = False
    unit = "concurrent-requests"

    def shape(self, rule: Limit, most: int) -> Shape:
        return Slots.shape(most, rule.shadow)

    def counter(self, rule: Limit) -> str:
        return rule.kind[0]

    def refusal(self, rule: Limit, limit: int, remaining: int, charge: int, wait: Wait) -> str:
        return f"limit '{rule.name}' reached: {limit} requests in flight; {wait.text()}, or when one has ended"


class BudgetRule(Limit):
    """A budget as a limit whose amounts are nano. Made by `rules`, not read from a file.

    levels    sums at which it warns
    warn_at   the same as shares
    currency  its code
    """

    kind: Literal["cost"]  # type: ignore[assignment]  # no limit of the configuration has this kind
    calendar: Calendar
    levels: tuple[int, ...]
    warn_at: tuple[float, ...]
    currency: str

    model_config = {"arbitrary_types_allowed": True}


class Spending(LimitKind):
    """Counts what requests cost, by the calendar."""

    measured = sized = adds_up = True
    shown = False
    unit = None

    def shape(self, rule: Limit, most: int) -> Shape:
        assert isinstance(rule, BudgetRule)
        levels = rule.levels if most == rule.limit else ()  # a share of it warns of nothing
        owes = rule.reserve == "expected" and rule.calendar.per != "total" and most == rule.limit
        return Spent.shape(most, rule.calendar.days, levels, rule.shadow, owes)

    def counter(self, rule: Limit) -> str:
        assert isinstance(rule, BudgetRule)
        return f"c{rule.calendar.per}{rule.calendar.label(time())}"

    def counter_before(self, rule: Limit) -> str | None:
        assert isinstance(rule, BudgetRule)
        before = rule.calendar.label_before(time())
        return None if before is None or rule.reserve != "expected" else f"c{rule.calendar.per}{before}"

    def reserves(self, cost: Cost) -> int:
        return cost.money

    def refusal(self, rule: Limit, limit: int, remaining: int, charge: int, wait: Wait) -> str:
        assert isinstance(rule, BudgetRule)
        ends = rule.calendar.ends(time())
        again = "" if ends == inf else f"; it starts again on {datetime.fromtimestamp(ends, rule.calendar.zone):%F}"
        per = "in total" if rule.calendar.per == "total" else f"a {rule.calendar.per}"
        left = max(remaining, 0)
        reached = f"the budget '{rule.name}' of {shown(limit)} {rule.currency} {per}"
        if wait.fits_s < FOREVER / 1e6:
            return f"running requests have reserved what is left of {reached}; {wait.text()}"
        if left == 0:
            return f"{reached} is spent{again}"
        least = "at least " if rule.reserve == "expected" else ""
        return f"{reached} has {shown(left)} left, and this request reserves {least}{shown(charge)}{again}"


KINDS: dict[KindOfLimit, LimitKind] = {
    "requests": LimitKind(),
    "tokens": Tokens(),
    "concurrency": InFlight(),
    "audio_seconds": AudioSeconds(),
    "cost": Spending(),
}
"""By the names in gateway.yaml, in the order of headers."""


def per(rule: Limit) -> str:
    return _UNITS.get(rule.per_s, f"in {rule.per_s:g} s")
