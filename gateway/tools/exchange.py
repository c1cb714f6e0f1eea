"""GET of one page from a server that nobody trusts: its bytes have bounds, whatever it makes of HTTP.

The work that a page makes grows with what the server writes, not with what it is worth: a chunk of one byte is six
bytes and a call, and interim answers (`100 Continue`) may come for ever. So what is not the page's text has a bound as
well, and pages are parsed in turns: in each turn of the event loop a piece of one page.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httptools
import httpx

_MOST_FRAMING = 1 << 16
"""Bytes of heads, chunk sizes and trailers of one answer; behind its head there may be as many more as its body has."""
_PIECE_BYTES = 1 << 14
"""So many are parsed in a turn: at worst 2,700 chunks, in about a millisecond."""


class Broken(Exception):
    """The server does not speak HTTP, breaks off, or writes more around the page than is read."""


class Answer:
    """One answer, as far as it has come.

    status   0 until its head is whole
    headers  names in lower case
    """

    def __init__(self, reader: asyncio.StreamReader, turn: asyncio.Lock) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._reader = reader
        self._turn = turn
        self._parser: Any = httptools.HttpResponseParser(self)
        self._raw = 0
        self._body = bytearray()
        self._whole = False
        self._head = False

    async def head(self) -> None:
        """Reads the head. Raises Broken, OSError."""
        while not self._head:
            if not await self._more():
                raise Broken

    async def body(self, most: int) -> bytes:
        """The first `most` bytes of the body, as they come. Raises Broken, OSError."""
        while not self._whole and len(self._body) < most:
            if not await self._more():
                if not {"content-length", "transfer-encoding"} & self.headers.keys():
                    break  # its end is that of the connection
                raise Broken
        return bytes(self._body[:most])

    async def _more(self) -> bool:
        """Parses what comes next. False at the end of the connection."""
        piece = await self._reader.read(_PIECE_BYTES)
        async with self._turn:
            await asyncio.sleep(0)
            try:
                self._parser.feed_data(piece)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade):
                raise Broken from None
        self._raw += len(piece)
        if self._raw - len(self._body) > _MOST_FRAMING + len(self._body):
            raise Broken
        return bool(piece)

    def close(self) -> None:
        self._parser = None  # it holds our methods: a cycle

    # -- parser callbacks -------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head:  # else a trailer
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1").rstrip(" \t")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self.headers = {}
        elif not self._head:
            self.status, self._head = status, True

    def on_body(self, body: bytes) -> None:
        if not self._whole:
            self._body += body

    def on_message_complete(self) -> None:
        self._whole = self._head


class Exchanges:
    """Asks for pages. most: connections at once."""

    def __init__(self, most: int) -> None:
        self._slots = asyncio.Semaphore(most)
        self._turn = asyncio.Lock()
        self._tls = httpx.create_ssl_context(trust_env=False)
        self._tls.set_alpn_protocols(["http/1.1"])

    @asynccontextmanager
    async def get(self, url: httpx.URL, address: str, headers: Sequence[tuple[str, str]]) -> AsyncIterator[Answer]:
        """Asks `address` for `url` over a connection of its own, and reads the head of the answer. Raises Broken,
        OSError."""
        lines = [f"GET {url.raw_path.decode('ascii')} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
        secure = url.scheme == "https"
        async with self._slots:
            reader, writer = await asyncio.open_connection(
                address,
                url.port or (443 if secure else 80),
                ssl=self._tls if secure else None,
                server_hostname=url.raw_host.decode("ascii") if secure else None,
            )
            answer = Answer(reader, self._turn)
            try:
                writer.write("\r\n".join([*lines, "connection: close", "", ""]).encode("ascii"))
                await writer.drain()
                await answer.head()
                yield answer
            finally:
                answer.close()
                writer.transport.abort()
