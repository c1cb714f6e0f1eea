"""GET with a bound on what comes: in bytes and, by its caller, in time."""

from __future__ import annotations

import httpx


class Refused(Exception):
    """The tool brings nothing. word: why, as one of Anthropic's words for its tools."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


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
