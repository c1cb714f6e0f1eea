"""Money: amounts, and what requests cost. Whole numbers of a billionth (nano) of the currency, never floats.

A price of 0.15 for a million tokens is 150 nano for a token. So prices with up to three decimals cost a whole number of
nano for each token; finer ones are rounded up once for each request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal

from msgspec import Struct

from gateway.core.usage import Usage

NANO = 10**9
"""Smallest units of 1 of the currency."""
MOST = 9_000_000
"""The largest amount. Redis' scripts count in doubles, which are exact up to 2**53 nano."""

_PER = 1_000_000


class Rates(Struct, frozen=True):
    """Prices: nano for a million tokens of the prompt, of its cached part and of the output, for the request, and an
    image that is made."""

    input: int = 0
    cached: int = 0
    output: int = 0
    request: int = 0
    image: int = 0

    def cost(self, input: int, output: int, cached: int = 0, images: int = 0) -> int:
        """Nano for so many tokens and images, rounded up, at most `MOST`. cached: of `input`, those that a prefix cache
        served."""
        cached = min(cached, input)
        tokens = (input - cached) * self.input + cached * self.cached + output * self.output
        return min(self.request + images * self.image - (-tokens // _PER), MOST * NANO)

    def of(self, usage: Usage) -> int:
        return self.cost(usage.input or 0, usage.output or 0, usage.cached or 0, usage.images or 0)


class Tariff:
    """The prices of a model. rates: each with the Unix second from which it is valid; clock: Unix seconds."""

    def __init__(self, rates: Sequence[tuple[float, Rates]], clock: Callable[[], float]) -> None:
        self._rates = sorted(rates, key=lambda one: one[0], reverse=True)
        self._clock = clock

    def now(self) -> Rates | None:
        """The prices that are valid now; None before the first."""
        now = self._clock()
        return next((rates for begin, rates in self._rates if begin <= now), None)


def shown(nano: int) -> str:
    """The amount in the currency, without needless zeros: 1500000 is `0.0015`."""
    return f"{(Decimal(nano) / NANO).normalize():f}"
