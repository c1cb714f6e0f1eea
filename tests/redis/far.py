"""A server that is far away: `python -m tests.redis.far PORT TO DELAY` listens on PORT and carries all bytes to port
TO and back, each way DELAY seconds late. It is a process of its own, so that a busy test adds nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from types import TracebackType

from tests.harness import until
from tests.ports import free_port


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


class Far:
    """Such a server, a round trip away."""

    def __init__(self, to: int, round_trip: float) -> None:
        self.port = free_port()
        words = [sys.executable, "-m", "tests.redis.far", str(self.port), str(to), str(round_trip / 2)]
        self._process = subprocess.Popen(words)
        try:
            until(self._listens, 60)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def _listens(self) -> bool:
        assert self._process.poll() is None, "it ended at once"
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        return False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Far:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()


if __name__ == "__main__":
    asyncio.run(carry(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
