"""Host names -> addresses, by the system's resolver."""

from __future__ import annotations

import asyncio
import socket


async def look_up(host: str, port: int) -> list[str]:
    """Every A and AAAA address, in the resolver's order. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]
