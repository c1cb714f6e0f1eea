"""Moments in ISO 8601 and UTC, `2026-11-29T14:00:00.250Z`, as records and APIs have them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gateway.core.written import Moment


def iso(seconds: float, unit: str = "milliseconds") -> str:
    """The moment of Unix seconds. Digits below `unit` are cut off, so that no day changes."""
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
