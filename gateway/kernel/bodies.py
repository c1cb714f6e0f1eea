"""Compressed request bodies: what they expand to counts as a body does, while it expands.

A first piece is expanded in the event loop; whatever is longer in threads, once its caller has passed the limits that
count requests.
"""

from __future__ import annotations

from io import BytesIO

from gateway.core.byte_budget import SMALL
from gateway.core.http import Headers
from gateway.core.ports import Client
from gateway.kernel.client import TakeRoom, announced, body_too_large, next_block
from gateway.offload import Share, offload
from gateway.wire.codings import Decoder

_PIECE = 1 << 18


def expand_small(body: bytes, coding: str, limit: int) -> bytes | None:
    """The text that `body` expands to; None if that is not small. Raises GatewayError as `Decoder.take` does."""
    if len(body) > SMALL:
        return None
    decoder = Decoder(coding, limit)
    decoder.feed(body)
    text = decoder.take(SMALL)
    if not decoder.hungry:
        return None
    decoder.end()
    return text


async def expand(body: bytes, coding: str, limit: int, take_room: TakeRoom, share: Share) -> bytes:
    """The text that `body` expands to. `take_room` is awaited with the bytes in memory. Raises GatewayError as
    `Decoder.take` and `take_room` do."""
    decoder = Decoder(coding, limit)
    decoder.feed(body)
    text, beside = BytesIO(), len(body) + decoder.memory
    await take_room(beside)
    while not decoder.hungry:
        text.write(await offload(decoder.take, _PIECE, share=share))
        await take_room(beside + text.tell())
    decoder.end()
    share.grow(text.tell())
    return text.getvalue()


class Blocks:
    """A body as it comes, expanded. take_room: awaited with the bytes of memory that a decoder needs."""

    def __init__(self, client: Client, headers: Headers, coding: str | None, limit: int, take_room: TakeRoom) -> None:
        """Raises GatewayError(TOO_LARGE) if the head announces more than `limit` bytes."""
        self.announced = announced(headers, limit)
        self._last = False
        self._client = client
        self._limit = limit
        self._take_room = take_room
        self._received = 0
        self._decoder = None if coding is None else Decoder(coding, limit)

    async def next(self) -> bytes | None:
        """The next bytes, None at the end. Raises GatewayError: TOO_LARGE beyond the limit, CLIENT_GONE, and what
        `Decoder.take` and `take_room` do."""
        decoder = self._decoder
        if decoder is not None and not decoder.hungry:
            return await offload(decoder.take, _PIECE)
        if decoder is not None and not self._received:
            await self._take_room(decoder.memory)
        if self._last:
            if decoder is not None:
                decoder.end()
            return None
        block, more = await next_block(self._client)
        self._last = not more
        self._received += len(block)
        if self._received > self._limit:
            raise body_too_large(self._limit)
        if decoder is None:
            return block
        decoder.feed(block)
        return decoder.take(SMALL)
