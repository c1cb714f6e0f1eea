"""The clock for durations in replies."""

from __future__ import annotations

import time

nanoseconds = time.perf_counter_ns
"""Nanoseconds of a monotonic clock. Call it as `clock.nanoseconds()`, so that a test can replace it."""
