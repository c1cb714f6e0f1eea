"""A server that is far away: `python -m tests.support.far PORT TO DELAY` listens on PORT and carries all bytes to port
TO and back, each way DELAY seconds late. It is a process of its own, so that a busy test adds nothing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.daemon import Daemon


class Late(asyncio.Protocol):
    """One end of a connection; what it receives is written to the other end later."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.other: Late | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._loop.call_later(self._delay, self._carry, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._loop.call_later(self._delay, self._carry, None)

    def _carry(self, data: bytes | None) -> None:
        if self.other is not None and self.other.transport is not None:
            if data is None:
                self.other.transport.close()
            else:
                self.other.transport.write(data)


async def carry(port: int, to: int, delay: float) -> None:
    loop = asyncio.get_running_loop()

    class Near(Late):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            assert isinstance(transport, asyncio.Transport)
            transport.pause_reading()
            self.joining = loop.create_task(self.join())

        async def join(self) -> None:
            far = Late(delay)
            far.other, self.other = self, far
            await loop.create_connection(lambda: far, "127.0.0.1", to)
            assert self.transport is not None
            self.transport.resume_reading()

    server = await loop.create_server(lambda: Near(delay), "127.0.0.1", port)
    await server.serve_forever()


class Far(Daemon):
    """Such a server, a round trip away."""

    def __init__(self, directory: Path, to: int, round_trip: float) -> None:
        super().__init__(directory)
        self._words = [sys.executable, "-m", "tests.support.far", str(self.port), str(to), str(round_trip / 2)]

    def words(self) -> Sequence[str]:
        return self._words


if __name__ == "__main__":
    asyncio.run(carry(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
