"""The clocks for times in replies, and the ids of what has none. Call them as `clock.seconds()`, so that a test can
replace them."""

from __future__ import annotations

import secrets
import time

nanoseconds = time.perf_counter_ns
"""Nanoseconds of a monotonic clock, for durations."""
seconds = time.time
"""Seconds since 1970, for moments."""


def new_id(prefix: str) -> str:
    """`prefix` (`chatcmpl-`, `cmpl-`, `call_`) followed by 24 random hexadecimal digits."""
    return prefix + secrets.token_hex(12)
