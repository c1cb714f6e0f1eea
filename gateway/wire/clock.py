"""The clocks for times in replies. Call them as `clock.seconds()`, so that a test can replace them."""

from __future__ import annotations

import time

nanoseconds = time.perf_counter_ns
"""Nanoseconds of a monotonic clock, for durations."""
seconds = time.time
"""Seconds since 1970, for moments."""
