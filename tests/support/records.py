"""Lines of a log as tests read them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

_LISTS = frozenset(("continued", "dropped", "moved"))


class Members(dict[str, Any]):
    """An object of a record. A member that is absent reads as None, or as an empty list if it is one."""

    def __missing__(self, name: str) -> list[Any] | None:
        return [] if name in _LISTS else None


def parsed(line: bytes | str) -> Members:
    """Raises ValueError for what is not JSON."""
    found: Members = json.loads(line, object_hook=Members)
    return found


def seconds(time: str) -> float:
    """The Unix seconds of a record's time."""
    return datetime.fromisoformat(time).timestamp()
