"""The server's life cycle: listen, reload, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

import uvicorn
from msgspec import Struct
from uvicorn.server import ServerState

from gateway.config import Listen
from gateway.core.ports import OpensSockets
from gateway.server.protocol import HttpProtocol, no_sockets, protocol_class
from gateway.server.refusal import RefusalHeaders

_OPERATIONS = Listen(max_connections=100)

# The bound on unsent bytes in the kernel for each client; connections inherit it from their listener. By default the
# kernel buffers megabytes for each slow reader before the gateway notices and can pause the worker.
_UNSENT = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_UNSENT_BYTES = 131072
_LAST_S = 5
"""Seconds that requests have at least when the server closes."""


class OperationsListener(Struct, frozen=True):
    """A second ASGI application with its own listener, which stays reachable when the first one is full."""

    app: Any
    listener: socket.socket


class Server(uvicorn.Server):
    """uvicorn with graceful shutdown: after SIGTERM or SIGINT it goes on serving while `drain` runs, then closes.
    Requests that run then have the seconds that `drain` returns, or 5. A second signal ends it at once. SIGHUP calls
    `reload`. Run it with `serve(sockets=[...])` on a uvloop."""

    def __init__(
        self,
        app: Any,
        listen: Listen,
        drain: Callable[[], Awaitable[float]],
        reload: Callable[[], Awaitable[None]],
        refused: RefusalHeaders,
        opens: OpensSockets = no_sockets,
        operations: OperationsListener | None = None,
    ) -> None:
        super().__init__(_config(app, protocol_class(listen, refused, opens), listen.keep_alive_s))
        self._operations = operations
        self._operations_state = ServerState()
        self._drain = drain
        self._reload = reload
        self._jobs: set[asyncio.Future[None]] = set()
        self._ending = False
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if _UNSENT is not None:
            for listener in sockets or ():
                listener.setsockopt(socket.IPPROTO_TCP, _UNSENT, _UNSENT_BYTES)
        await super().startup(sockets)
        if not self.started:
            return
        if self._operations is not None:
            refused = self.protocol.refused
            # The other headers are for clients of the dialects.
            protocol = protocol_class(_OPERATIONS, lambda *refusal: refused(*refusal)[:1])
            config = _config(self._operations.app, protocol, self.config.timeout_keep_alive)
            listening = await asyncio.get_running_loop().create_server(
                lambda: protocol(config, self._operations_state, {}), sock=self._operations.listener
            )
            self.servers.append(listening)
        self.listening.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for connection in list(self._operations_state.connections):
            connection.shutdown()
        await super().shutdown(sockets)

    def configure(self, listen: Listen) -> None:
        """Applies new settings. An open connection keeps its old keep-alive time."""
        self.protocol.listen = listen
        self.config.timeout_keep_alive = _whole_seconds(listen.keep_alive_s)

    @property
    def protocol(self) -> type[HttpProtocol]:
        """The class of this server's connections; what belongs to all of them is set on it."""
        return cast("type[HttpProtocol]", self.config.http)

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
        # Answers now close their connections. Otherwise clients that keep connections open (as all do behind a TCP load
        # balancer) would send requests here until the connection is cut.
        self.protocol.draining = True
        left = await self._drain()
        # A request may come between the last look of `drain` and the close of its connection.
        self.config.timeout_graceful_shutdown = max(_LAST_S, round(left))
        self.should_exit = True

    def _start(self, job: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.ensure_future(job())
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)


def _config(app: Any, protocol: type[HttpProtocol], keep_alive_s: float) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=protocol,
        interface="asgi3",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=_whole_seconds(keep_alive_s),
        timeout_graceful_shutdown=_LAST_S,
    )


def _whole_seconds(seconds: float) -> int:
    return max(1, round(seconds))
