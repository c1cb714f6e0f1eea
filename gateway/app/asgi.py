"""The gateway as a Starlette application, for servers other than its own: lifespan, exception handlers and mounts are
Starlette's, and any ASGI middleware may be put around it.

All paths are one mount: `app/routes.py` finds them without Starlette's router, which tries one pattern after the other.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount

from gateway.app import Gateway
from gateway.config import Config, ConfigError, Fault
from gateway.config.faults import Position
from gateway.core.byte_budget import SMALL, Held
from gateway.kernel import Receive, Scope, Send
from gateway.observe.log import Log
from gateway.server.protocol import decoded

_TRY_AGAIN = 1013
"""RFC 6455 and its registry of codes: the server is overloaded."""


def application(read: Callable[[], Config]) -> Starlette:
    """The application. read: called when it starts; what it raises ends the start.

    An application that mounts this one must run its lifespan (`app.router.lifespan_context`)."""
    served = _Served()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[Mapping[str, Any]]:
        config = read()
        if config.metrics.listen is not None:
            needs = "needs `dragoman serve`: another server has one listener"
            raise ConfigError([Fault(Position("configuration", path=("metrics", "listen")), needs)])
        log = Log(config.log.level, config.log.requests, form=config.log.format)
        served.gateway = gateway = Gateway(config, log)
        try:
            await gateway.start()
            yield {"gateway": gateway}
            await gateway.drain()
        finally:
            await gateway.close()
            log.close()

    return _Application(lifespan=lifespan, routes=[Mount("/", served)], exception_handlers={Exception: _failed})


class _Application(Starlette):
    """Names the faults of its configuration to the server, which would get a traceback from Starlette."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "lifespan.startup.failed" and isinstance(error := sys.exception(), ConfigError):
                message["message"] = f"the configuration has faults:\n{error}"
            await send(message)

        await super().__call__(scope, receive, answer if scope["type"] == "lifespan" else send)


async def _failed(request: Request, error: Exception) -> Response:
    return PlainTextResponse("internal error\n", 500)


class _Served:
    """The gateway's paths, as another server's scopes have them."""

    gateway: Gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = _path(scope)
        raw = scope.get("raw_path") or quote(path).encode()
        raw = raw.removeprefix(quote(scope.get("root_path", "")).encode())
        own = dict(scope, path=path, raw_path=raw, root_path="", query_string=scope.get("query_string", b""))
        if scope["type"] == "http":
            await self.gateway.direct(own, receive, send)
        else:
            await self._socket(own, receive, send)

    async def _socket(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """A web socket; one that may not be opened has the answer to a GET, where the server can send it."""
        await receive()  # websocket.connect
        connection = _Connection()
        opened = self.gateway.opens_socket(scope, connection)
        try:
            if opened is not None:
                session, room = opened
                await send({"type": "websocket.accept"})
                socket = _Socket(receive, send, room)
                try:
                    await session(socket)
                finally:
                    room.resize(0)
                    await socket.ended()
            elif "websocket.http.response" in scope.get("extensions", {}):
                await self.gateway.direct({**scope, "type": "http", "method": "GET"}, _nothing, _refusing(send))
            else:
                await send({"type": "websocket.close", "code": 1008})
        finally:
            if connection.on_lost is not None:
                connection.on_lost(connection.owner)


def _path(scope: Scope) -> str:
    """The path below what mounts the application. An encoded slash separates nothing, as at the own server."""
    raw: bytes | None = scope.get("raw_path")
    path: str = scope["path"] if raw is None or b"%" not in raw else decoded(raw.decode("latin-1"))
    return path.removeprefix(scope.get("root_path", "")) or "/"


async def _nothing() -> Mapping[str, Any]:
    """The body of a GET."""
    return {"type": "http.request", "body": b"", "more_body": False}


def _refusing(send: Send) -> Send:
    """https://asgi.readthedocs.io/en/latest/extensions.html#websocket-denial-response"""

    async def answer(message: MutableMapping[str, Any]) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    return answer


class _Connection:
    """Implements core.ports.CountedConnection."""

    def __init__(self) -> None:
        self.owner = ""
        self.on_lost: Callable[[str], None] | None = None


class _Socket:
    """Implements core.ports.Socket by plain ASGI. The server bounds a message (uvicorn: `--ws-max-size`)."""

    def __init__(self, receive: Receive, send: Send, room: Held) -> None:
        self._receive = receive
        self._send = send
        self._room = room
        self._closing: asyncio.Task[None] | None = None
        self.gone = False

    async def receive(self) -> bytes | None:
        self._room.resize(0)
        if self.gone:
            return None
        message: Mapping[str, Any] = await self._receive()
        if self.gone or message["type"] != "websocket.receive":
            self.gone = True
            return None
        text: str | None = message.get("text")
        data: bytes = text.encode() if text is not None else message.get("bytes") or b""
        if len(data) > SMALL and not self._room.resize(len(data)):
            self.close(_TRY_AGAIN, "no room for this message now")
            return None
        return data

    async def send(self, messages: Iterable[bytes]) -> None:
        for message in messages:
            if not self.gone:
                await self._sent({"type": "websocket.send", "text": message.decode()})

    def close(self, code: int, reason: str) -> None:
        if not self.gone:
            self.gone = True
            closing = self._sent({"type": "websocket.close", "code": code, "reason": reason})
            self._closing = asyncio.get_running_loop().create_task(closing)

    async def ended(self) -> None:
        """Returns once it is closed."""
        if self._closing is not None:
            await self._closing

    async def _sent(self, message: dict[str, Any]) -> None:
        try:
            await self._send(message)
        except Exception:  # each server has its own for a client that has left
            self.gone = True
