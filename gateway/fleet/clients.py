"""HTTP clients for what the gateway asks workers beside the requests of its own clients."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import httpx

from gateway.core.http import Headers, Request

_MOST_BYTES = 1 << 20


async def read_document(client: httpx.AsyncClient, url: str, timeout_s: float, headers: Headers | None = None) -> bytes:
    """Returns the body of the answer to a GET. The whole answer has to come within `timeout_s`. Raises
    httpx.HTTPStatusError for a status that is not 2xx, ValueError for a body above 1 MiB, and httpx.HTTPError,
    TimeoutError, httpx.InvalidURL."""
    body = bytearray()
    plain = (b"accept-encoding", b"identity")  # a few bytes can unpack to any number
    async with (
        asyncio.timeout(timeout_s),
        client.stream("GET", url, headers=[*(headers or ()), plain], timeout=None) as answer,
    ):
        answer.raise_for_status()
        async for block in answer.aiter_raw():
            body += block
            if len(body) > _MOST_BYTES:
                raise ValueError("the answer is too large")
    return bytes(body)


class Clients:
    """One client for each model, made when it is first needed.

    trusted    the authorities by which a model's workers are trusted
    timeout_s  for a whole document
    """

    def __init__(self, trusted: Callable[[str], ssl.SSLContext], timeout_s: float) -> None:
        self._trusted = trusted
        self._timeout_s = timeout_s
        self._clients: dict[str, httpx.AsyncClient] = {}

    def of(self, model: str) -> httpx.AsyncClient:
        client = self._clients.get(model)
        if client is None:
            # A fresh connection each time: a kept one may be closed by the worker just as we use it.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
            client = httpx.AsyncClient(verify=self._trusted(model), trust_env=False, limits=limits)
            self._clients[model] = client
        return client

    async def document(self, model: str, url: str, headers: Headers) -> bytes:
        """Returns the body of a 2xx of at most 1 MiB; b"" for any other answer. Raises httpx.HTTPError, TimeoutError,
        httpx.InvalidURL."""
        try:
            return await read_document(self.of(model), url, self._timeout_s, headers)
        except (httpx.HTTPStatusError, ValueError):
            return b""

    async def status(self, model: str, url: str, request: Request, headers: Headers, limit_s: float) -> int:
        """Returns the status of the answer to a POST, once the whole answer has come; of an error its head is enough.
        Raises TimeoutError after `limit_s`, httpx.HTTPError, httpx.InvalidURL."""
        async with (
            asyncio.timeout(limit_s),
            self.of(model).stream(
                "POST", url, content=request.body, headers=[*request.headers, *headers], timeout=None
            ) as answer,
        ):
            if answer.status_code == 200:
                async for _ in answer.aiter_raw():
                    pass
            return answer.status_code

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()
