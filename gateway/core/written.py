"""How records are written: moments in ISO 8601, and members that are there whatever they hold.

A Struct with `omit_defaults` leaves out a member whose value is its default: so what is None is absent.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from msgspec import field

Plain = TypeVar("Plain", str, int, float, bool)


class Moment(float):
    """Unix seconds, written as `iso` has them."""

    __slots__ = ()


def always(value: Plain) -> Plain:
    """A default that is written, too: msgspec leaves out defaults, and not what a factory makes."""
    return field(default_factory=partial(type(value), value))


def iso(seconds: float, unit: str = "milliseconds") -> str:
    """Unix seconds as `2026-11-29T14:00:00.250Z`. What is less than `unit` is cut off, so that no day changes."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=unit)[:-6] + "Z"


def write(value: Any) -> str:
    """For `enc_hook` of msgspec. Raises NotImplementedError for all but a Moment."""
    if isinstance(value, Moment):
        return iso(value)
    raise NotImplementedError


def read(_: type, value: Any) -> Moment:
    """For `dec_hook` of msgspec: a moment as it is written, or Unix seconds, as up to 0.9. Raises ValueError."""
    if isinstance(value, str):
        found = datetime.fromisoformat(value)
        if found.tzinfo is not None:
            return Moment(found.timestamp())
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return Moment(value)
    raise ValueError("not a moment")
