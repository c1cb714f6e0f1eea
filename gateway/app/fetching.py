"""Small documents by HTTP: what workers say of themselves, an identity provider's keys."""

from __future__ import annotations

import asyncio

import httpx

from gateway.core.http import Headers

_FETCH_S = 5.0
_FETCH_BYTES = 1 << 20


async def small_body(client: httpx.AsyncClient, url: str, headers: Headers) -> bytes:
    """The body of a 200 of at most `_FETCH_BYTES` bytes; b"" for any other answer. Raises httpx.HTTPError."""
    body = bytearray()
    plain = (b"accept-encoding", b"identity")  # a few bytes can unpack to any number
    async with client.stream("GET", url, headers=[*headers, plain]) as answer:
        if answer.status_code != 200:
            return b""
        async for block in answer.aiter_raw():
            body += block
            if len(body) > _FETCH_BYTES:
                return b""
    return bytes(body)


async def fetch(url: str) -> bytes:
    """The body of a GET, within _FETCH_S and _FETCH_BYTES: a slow or endless reply must not keep us from starting.

    Raises TimeoutError, ValueError, httpx.HTTPError.
    """
    body = bytearray()
    plain = {"accept-encoding": "identity"}  # a few bytes can unpack to any number
    async with (
        asyncio.timeout(_FETCH_S),
        httpx.AsyncClient(trust_env=False, timeout=None) as client,
        client.stream("GET", url, headers=plain) as answer,
    ):
        answer.raise_for_status()
        async for block in answer.aiter_raw():
            body += block
            if len(body) > _FETCH_BYTES:
                raise ValueError("the answer is too large")
    return bytes(body)
