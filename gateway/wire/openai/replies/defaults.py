"""Default values for what a worker left out of its reply: the creation time and ids."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from msgspec import Struct


def random_id(prefix: str) -> str:
    """`prefix` followed by 24 random hexadecimal digits."""
    return prefix + secrets.token_hex(12)


class ReplyDefaults(Struct, frozen=True):
    """now returns Unix seconds; new_id returns an id with the given prefix (`chatcmpl-`, `cmpl-`, `call_`)."""

    now: Callable[[], float] = time.time
    new_id: Callable[[str], str] = random_id


DEFAULTS = ReplyDefaults()
"""The real clock, and random ids."""
