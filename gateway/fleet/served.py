"""A model as its workers are asked about it, beside the requests of clients."""

from __future__ import annotations

from typing import Protocol

import httpx

from gateway.core.http import Headers
from gateway.core.ports import Backend, Capabilities

_MOST_BYTES = 1 << 20


class Served(Protocol):
    """The part of a served model that the fleet uses; `gateway.pipeline.ServedModel` is one.

    headers  that every request to its workers carries
    paths    the workers' paths that may be used; None for all
    """

    backend: Backend
    can: Capabilities
    headers: Headers
    paths: frozenset[str] | None


async def small_body(client: httpx.AsyncClient, url: str, headers: Headers) -> bytes:
    """The body of a 200 of at most `_MOST_BYTES` bytes; b"" for any other answer. Raises httpx.HTTPError."""
    body = bytearray()
    plain = (b"accept-encoding", b"identity")  # a few bytes can unpack to any number
    async with client.stream("GET", url, headers=[*headers, plain]) as answer:
        if answer.status_code != 200:
            return b""
        async for block in answer.aiter_raw():
            body += block
            if len(body) > _MOST_BYTES:
                return b""
    return bytes(body)
