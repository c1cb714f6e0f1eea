"""`python -m tests.chaos.tap '{"links": [[PORT, "HOST:PORT"], ...], "idle_s": 1.0, "late_s": 0.005, "seed": 1}'`.

Stands before workers on ports of its own and is the one that closes idle connections, as seen from `late_s` away: what
was sent meanwhile comes to nobody. Half of the ends are a FIN, half a reset. Writes a line for each `x-request-id` that
came: {"event": "asked", "id", "lost": whether the connection was at its end already}.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import socket
import struct
import sys
from typing import Any

import uvloop

_ID = re.compile(rb"\r\nx-request-id: ([^\r]+)\r\n")


class Far(asyncio.Protocol):
    """The connection to the worker."""

    def __init__(self, near: Near) -> None:
        self.near = near

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.near.joined(transport)

    def data_received(self, data: bytes) -> None:
        self.near.answered(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.near.transport.close()


class Near(asyncio.Protocol):
    """The connection from the gateway."""

    def __init__(self, address: str, idle_s: float, late_s: float, draw: random.Random) -> None:
        self.host, _, self.port = address.rpartition(":")
        self.idle_s, self.late_s, self.draw = idle_s, late_s, draw
        self.loop = asyncio.get_running_loop()
        self.transport: Any = None
        self.far: Any = None
        self.early = b""
        self.over = False
        self.timer: asyncio.TimerHandle | None = None
        self.joining: asyncio.Task[Any] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.joining = self.loop.create_task(self.loop.create_connection(lambda: Far(self), self.host, int(self.port)))

    def joined(self, transport: asyncio.BaseTransport) -> None:
        self.far = transport
        if self.early:
            self.far.write(self.early)

    def data_received(self, data: bytes) -> None:
        for name in _ID.findall(data):
            print(json.dumps({"event": "asked", "id": name.decode(), "lost": self.over}))
        if self.over:
            return
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.far is None:
            self.early += data
        else:
            self.far.write(data)

    def answered(self, data: bytes) -> None:
        self.transport.write(data)
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.loop.call_later(self.idle_s, self.expire)

    def expire(self) -> None:
        self.over = True
        self.timer = self.loop.call_later(self.late_s, self.end)

    def end(self) -> None:
        if self.draw.random() < 0.5:
            raw = self.transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True
        if self.timer is not None:
            self.timer.cancel()
        if self.far is not None:
            self.far.abort()


async def main(settings: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    draw = random.Random(settings["seed"])
    for port, address in settings["links"]:
        await loop.create_server(
            lambda address=address: Near(address, settings["idle_s"], settings["late_s"], draw),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    uvloop.run(main(json.loads(sys.argv[1])))
