"""The server's life: listening, draining, reloading, ending."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvicorn

from gateway.server.edge import Edge
from gateway.server.protocol import protocol_class


class Server(uvicorn.Server):
    """uvicorn with our endings: on SIGTERM or SIGINT it goes on serving while `drain` runs, then closes; a second one
    ends it at once. SIGHUP calls `reload`."""

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Callable[[], Awaitable[None]],
        reload: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._reload = reload
        self._jobs: set[asyncio.Task[None]] = set()
        self._ending = False
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # signals reach only the main thread
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, self._start, self._reload)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _end(self) -> None:
        if self._ending:
            self.should_exit = self.force_exit = True
        else:
            self._ending = True
            self._start(self._drain_and_exit)

    async def _drain_and_exit(self) -> None:
        await self._drain()
        self.should_exit = True

    def _start(self, job: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await job()

        task = asyncio.get_running_loop().create_task(run())
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)


def server(
    app: Any,
    edge: Edge,
    keep_alive_s: float,
    drain: Callable[[], Awaitable[None]],
    reload: Callable[[], Awaitable[None]],
) -> Server:
    """A server for `app`; run it with `serve(sockets=[…])` on a uvloop."""
    config = uvicorn.Config(
        app,
        http=protocol_class(edge),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=max(1, round(keep_alive_s)),
        timeout_graceful_shutdown=5,
    )
    return Server(config, drain, reload)
