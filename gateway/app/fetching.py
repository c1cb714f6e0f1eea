"""A small document by HTTP: the keys of an identity provider."""

from __future__ import annotations

import asyncio

import httpx

_FETCH_S = 5.0
_FETCH_BYTES = 1 << 20


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
