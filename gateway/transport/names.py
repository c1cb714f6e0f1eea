"""The addresses of a worker's name, also while no name server answers.

A name server that is away for a while says nothing about the workers. So the addresses that a name had last are used
then, as the stale answers of RFC 8767 are, for `KNOWN_S`: later they may be another server's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from gateway.resolve import look_up

KNOWN_S = 600.0
"""Seconds for which the last addresses of a name are used."""
_PATIENCE = 0.5
"""The share of the time for a connection after which a name server counts as silent, if addresses are known."""


class Name:
    """One host name, or an address, which stands for itself."""

    __slots__ = ("_host", "_known", "_literal", "_port", "_since")

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._known: list[str] = []
        self._since = 0.0
        try:
            ipaddress.ip_address(host)
            self._literal = True
        except ValueError:
            self._literal = False

    async def addresses(self, seconds: float) -> list[str]:
        """At least one. seconds: for the whole connection. Raises OSError if the name has none."""
        if self._literal:
            return [self._host]
        clock = asyncio.get_running_loop().time
        known = self._known if clock() - self._since < KNOWN_S else []
        try:
            async with asyncio.timeout(seconds * _PATIENCE if known else None):
                found = await look_up(self._host, self._port)
        except (TimeoutError, socket.gaierror) as error:
            silent = isinstance(error, TimeoutError) or error.errno == socket.EAI_AGAIN
            if not known or not silent:
                raise
            return known
        self._known, self._since = found, clock()
        return found
