"""Answers with a bound on what comes: in bytes and, by their caller or here, in time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

import httpx

_SOON_S = 5.0
_MOST_BYTES = 1 << 20


class Refused(Exception):
    """The tool brings nothing. word: why, as one of Anthropic's words for its tools."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


async def fetch_soon(
    url: str, form: Mapping[str, str] | None = None, *, ca_file: str | None = None, **headers: str
) -> bytes:
    """The answer of an identity provider to a GET, or to a POST of `form`. It comes soon or not at all, because a start
    waits for it, or somebody who logs in. ca_file: the PEM bundle that its certificate must chain to, in place of the
    web's. Raises httpx.HTTPStatusError for a status that is not 2xx, ValueError for a body above 1 MiB, and
    httpx.HTTPError, TimeoutError, httpx.InvalidURL, and OSError for a bundle that cannot be read."""
    plain = {"accept-encoding": "identity"}  # a few bytes can unpack to any number
    method = "GET" if form is None else "POST"
    trust: ssl.SSLContext | bool = True
    async with asyncio.timeout(_SOON_S):
        if ca_file is not None:
            trust = await asyncio.to_thread(ssl.create_default_context, cafile=ca_file)
        async with (
            httpx.AsyncClient(trust_env=False, verify=trust) as client,
            client.stream(method, url, data=form, headers=plain | headers, timeout=None) as answer,
        ):
            answer.raise_for_status()
            body, whole = await read(answer, _MOST_BYTES)
    if not whole:
        raise ValueError("the answer is too large")
    return body


async def get(client: httpx.AsyncClient, url: str, most: int) -> bytes:
    """The body of a 200 from the service at `url`. Raises Refused: "too_many_requests" for a 429, "unavailable" for any
    other status and for more than `most` bytes. Raises httpx.HTTPError."""
    # Uncoded: a few coded bytes may stand for any number.
    async with client.stream("GET", url, headers={"accept-encoding": "identity"}) as reply:
        if reply.status_code != 200:
            raise Refused("too_many_requests" if reply.status_code == 429 else "unavailable")
        body, whole = await read(reply, most)
    if not whole:
        raise Refused("unavailable")
    return body


async def read(reply: httpx.Response, most: int) -> tuple[bytes, bool]:
    """(the first `most` bytes of the body as they come, whether that is all of it)."""
    found = bytearray()
    async for piece in reply.aiter_raw():
        found += piece
        if len(found) > most:
            return bytes(found[:most]), False
    return bytes(found), True
