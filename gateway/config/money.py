"""Options of money: prices, budgets, and what of them is shown."""

from __future__ import annotations

from datetime import date, datetime, tzinfo
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gateway.config.kinds import Budgeted, Flag, Money, ServiceUrl, Share, Zone
from gateway.config.section import Section
from gateway.config.sharing import Dimension, Reserve, SharedSecret
from gateway.core.money import Rates

Period = Literal["day", "week", "month", "total"]


def _day(value: Any) -> Any:
    try:
        return date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError("must be a date such as 2026-11-01") from None


class Price(Section):
    """The price of a model's requests, in the currency of `spend`."""

    input: Money = 0
    """A million tokens of the prompt."""
    cached_input: Money | None = None
    """A million tokens of the prompt that a prefix cache served. Absent: as `input`."""
    output: Money = 0
    """A million tokens of the reply."""
    request: Money = 0
    """Each request."""
    image: Money = 0
    """Each image that is generated, edited or varied, as many as the reply has."""
    from_: Annotated[date | None, BeforeValidator(_day)] = Field(default=None, alias="from")
    """The day from whose beginning this price is valid, in the time zone of `spend`. Absent: always."""

    @property
    def rates(self) -> Rates:
        cached = self.input if self.cached_input is None else self.cached_input
        return Rates(self.input, cached, self.output, self.request, self.image)

    def begins(self, zone: tzinfo) -> float:
        """The Unix second from which it is valid."""
        day = self.from_
        return 0.0 if day is None else datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()


class _OrOne:
    """Adds a single item to a list's JSON Schema."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        found = handler(schema)
        return {"anyOf": [found["items"], found]}


Prices = Annotated[
    tuple[Price, ...], BeforeValidator(lambda value: [value] if isinstance(value, dict) else value), _OrOne()
]
"""One price, or a list of prices with their days."""


class Spend(Section):
    """Money: the currency of prices and budgets, and what is shown of costs."""

    FEATURES = {"header": "pricing"}

    currency: str | None = Field(default=None, pattern=r"^[A-Z]{3}$")
    """Its code, such as EUR. Required if there are prices."""
    time_zone: Zone = "UTC"
    """In which days begin: of prices, of reports, and of budgets without a time zone of their own."""
    daily: Flag = False
    """Keep sums of requests, tokens and costs by day, key, team and model in `redis`, for 13 months of reports."""
    header: Flag = False
    """Name the cost in `x-dragoman-cost` of replies that are not streamed."""


class Budget(Section):
    """The most that may be spent in a day, week or month of the calendar, or in total; see docs/spend.md."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """Shown to clients. If several budgets have one name, the first that matches a request applies."""
    amount: Budgeted
    """How much, in the currency of `spend`."""
    per: Period = "month"
    """A week begins on Monday. `total` has no end."""
    time_zone: Zone | None = None
    """In which its days begin. Absent: as in `spend`."""
    scope: tuple[Dimension, ...] = ("key",)
    """Dimensions with budgets of their own. Empty: one for all."""
    match: dict[Dimension, tuple[str, ...]] = {}
    """Applies only where these dimensions have one of these values."""
    warn_at: tuple[Share, ...] = Field(default=(0.8,), max_length=3)
    """Shares of the amount at which it warns: up to three, ascending."""
    shadow: Flag = False
    """Warns, and refuses nothing."""
    reserve: Reserve | None = None
    """The reservation of each request. Absent: as `limiter.reserve`."""
    on_redis_failure: Literal["local", "open", "closed"] = "local"
    """While Redis is away: a share of what was left is spent here, no bound, or no request (503)."""


class BudgetWebhook(SharedSecret):
    """An address that gets an event when a share of a budget is passed, or all of it; see docs/spend.md."""

    url: ServiceUrl
    """It takes posts, which the secret signs."""
