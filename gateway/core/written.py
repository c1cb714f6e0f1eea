"""Members of records that are written in a way of their own.

A Struct with `omit_defaults` leaves out each member that has its default, so nothing is written for None.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from msgspec import field

Plain = TypeVar("Plain", bound=str | int | float)


class Moment(float):
    """Unix seconds, which `gateway.moments` writes in ISO 8601."""

    __slots__ = ()


def always(value: Plain) -> Plain:
    """A default that is written, too: msgspec leaves out defaults, but not the product of a factory."""
    kind: Any = type(value)
    made: Callable[[], Plain] = partial(kind, value)
    return field(default_factory=made)
