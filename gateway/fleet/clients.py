"""Asks workers beside the requests of clients: whether they live, what they can do, what they have to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Protocol
from urllib.parse import unquote

from gateway.core.errors import GatewayError, Kind
from gateway.core.failures import Cause, needs_tls
from gateway.core.http import Headers, Request
from gateway.core.ports import Deadlines, Transport

_MOST_BYTES = 1 << 20


class AskingTransport(Transport, Protocol):
    def forget(self, address: str) -> None:
        """The worker at `address` has left."""


class Clients:
    """Asks each time over a connection of its own: that shows that a worker still takes connections, and a kept one may
    be closed just as it is used. All raise GatewayError.

    transport_of  makes the transport to a model's workers, which keeps no connection
    timeout_s     for a whole document
    """

    def __init__(self, transport_of: Callable[[str], AskingTransport], timeout_s: float) -> None:
        self._transport_of = transport_of
        self._timeout_s = timeout_s
        self._transports: dict[str, AskingTransport] = {}

    def _of(self, model: str) -> AskingTransport:
        transport = self._transports.get(model)
        if transport is None:
            transport = self._transports[model] = self._transport_of(model)
        return transport

    async def probe(self, model: str, address: str, path: str, limit_s: float) -> int:
        """The status of the answer to a GET: nothing of a body is read, which may have any length, but the beginning of
        a 400, by which TLS servers answer plain HTTP."""
        request = Request("GET", unquote(path))
        with closing(await self._of(model).send(request, address, Deadlines(limit_s, limit_s))) as answer:
            if answer.status == 400 and needs_tls(await answer.read()):
                raise GatewayError(Kind.UPSTREAM, "the worker answers TLS only", cause=Cause.NEEDS_TLS)
            return answer.status

    async def document(self, model: str, address: str, path: str, headers: Headers) -> bytes:
        """Returns the body of a 2xx of at most 1 MiB; b"" for any other answer. Raises TimeoutError, too."""
        status, body = await self.answer(model, address, path, headers)
        return body if status // 100 == 2 else b""

    async def answer(self, model: str, address: str, path: str, headers: Headers) -> tuple[int, bytes]:
        """The status and the body of the answer to a GET; b"" for one of more than 1 MiB. Raises TimeoutError, too."""
        request, limit_s = Request("GET", unquote(path), headers), self._timeout_s
        async with asyncio.timeout(limit_s):
            with closing(await self._of(model).send(request, address, Deadlines(limit_s, limit_s))) as answer:
                try:
                    return answer.status, await answer.body(_MOST_BYTES)
                except GatewayError as error:
                    if error.code == "upstream_too_large":
                        return answer.status, b""
                    raise

    async def status(self, model: str, address: str, request: Request, limit_s: float) -> int:
        """Returns the status of the answer once the whole answer has come; of an error its head is enough. Raises
        TimeoutError after `limit_s`."""
        async with asyncio.timeout(limit_s):
            with closing(await self._of(model).send(request, address, Deadlines(limit_s, limit_s, limit_s))) as answer:
                while answer.status == 200 and await answer.read():
                    pass
                return answer.status

    def forget(self, model: str, address: str) -> None:
        """The worker has left."""
        if model in self._transports:
            self._transports[model].forget(address)

    async def close(self) -> None:
        for transport in self._transports.values():
            await transport.close()


def unreachable(error: BaseException) -> bool:
    """Whether `error` says that the worker takes no connection, and not only that none was made in time."""
    return (
        isinstance(error, GatewayError)
        and error.kind is Kind.UPSTREAM
        and (error.__cause__ is not None or error.cause is Cause.NEEDS_TLS)
    )
