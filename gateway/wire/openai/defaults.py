"""What stands in for what a worker did not say of its reply: the time of creation, and ids."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from msgspec import Struct


def random_id(prefix: str) -> str:
    """`prefix` and 24 random hexadecimal digits."""
    return prefix + secrets.token_hex(12)


class ReplyDefaults(Struct, frozen=True):
    """now gives Unix seconds; new_id gives an id that begins with a prefix (`chatcmpl-`, `cmpl-`, `call_`)."""

    now: Callable[[], float] = time.time
    new_id: Callable[[str], str] = random_id


DEFAULTS = ReplyDefaults()
"""The real clock, and random ids."""
