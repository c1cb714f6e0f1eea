"""Ports for servers that must be told theirs before they start."""

from __future__ import annotations

import random
import socket

# The kernel gives outgoing connections ports from 32768 on (Linux's default): below it none is taken by a client.
_FIRST, _END = 20_000, 32_000
_given: set[int] = set()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has, and that no outgoing connection takes before its server does.

    No port is given twice by one process; another process draws the same one rarely.
    """
    draw = random.SystemRandom()  # not the generator that a plugin may have seeded alike in all processes
    while True:
        port = draw.randrange(_FIRST, _END)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
