"""The minimum that a Python gateway could do: copies bytes from one socket to another, without HTTP.

    python -m bench.relay PORT WORKER_PORT

No gateway on this event loop can cost less.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop


class End(asyncio.Protocol):
    """One side of a pair; keeps what arrives before the other side exists."""

    def __init__(self) -> None:
        self.peer: asyncio.Transport | None = None
        self.early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, not the class.
        self.transport = cast("asyncio.Transport", transport)

    def join(self, peer: asyncio.Transport) -> None:
        self.peer = peer
        if self.early:
            peer.write(self.early)

    def data_received(self, data: bytes) -> None:
        if self.peer is None:
            self.early += data
        else:
            self.peer.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.peer is not None:
            self.peer.abort()


class Front(End):
    """The client's side: opens the worker's."""

    def __init__(self, worker: int) -> None:
        super().__init__()
        self.worker = worker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.task = asyncio.get_running_loop().create_task(self.connect())

    async def connect(self) -> None:
        _, back = await asyncio.get_running_loop().create_connection(End, "127.0.0.1", self.worker)
        back.join(self.transport)
        self.join(back.transport)
        if self.transport.is_closing():
            back.transport.abort()


async def serve(port: int, worker: int) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Front(worker), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
