"""File descriptors: as many as the system gives this process, and how many client connections they are enough for."""

from __future__ import annotations

import contextlib
import resource

RESERVED = 64
"""Descriptors for what is neither a client nor a request: listeners, log, Redis, probes, name lookups."""


def fitting_connections(max_connections: int) -> int:
    """How many client connections can be served at once: `max_connections`, or fewer where the limit on open files is
    too low. A client needs a descriptor, and its request another one for a worker.

    Raises the soft limit of this process (RLIMIT_NOFILE) first, as far as needed and as the hard one allows.
    """
    needed = 2 * max_connections + RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        # Some systems have a lower limit of their own that they do not name.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft == resource.RLIM_INFINITY:
        return max_connections
    return min(max_connections, max(1, (soft - RESERVED) // 2))
