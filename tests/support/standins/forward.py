"""A forward proxy: plain requests by their absolute URL, and tunnels by CONNECT."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class ForwardProxy:
    """asked: the first line of each request. credentials: `user:password` that it asks for, or "" for none. tunnels:
    the status that it answers CONNECT with."""

    def __init__(self, credentials: str = "", tunnels: int = 200) -> None:
        self.asked: list[str] = []
        self.open = 0
        self.url = ""
        self._wanted = base64.b64encode(credentials.encode()).decode() if credentials else ""
        self._tunnels = tunnels

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[ForwardProxy]:
        server = await asyncio.start_server(self._meet, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        with contextlib.suppress(OSError, EOFError):
            await self._serve(reader, writer)
        self.open -= 1
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, lines = await self._head(reader)
        method, target, _ = first.split(" ")
        if not self._may(lines):
            writer.write(b"HTTP/1.1 407 Who are you\r\ncontent-length: 0\r\n\r\n")
            return
        if method == "CONNECT" and self._tunnels != 200:
            writer.write(b"HTTP/1.1 %d No\r\ncontent-length: 0\r\n\r\n" % self._tunnels)
            return
        url = urlsplit(target if method != "CONNECT" else f"//{target}")
        try:
            there, to = await asyncio.open_connection(url.hostname, url.port)
        except OSError:
            writer.write(b"HTTP/1.1 502 Unreachable\r\ncontent-length: 0\r\n\r\n")
            return
        back = asyncio.ensure_future(_copy(there, writer))
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Go on\r\n\r\n")
            await _copy(reader, to)
        else:
            with contextlib.suppress(EOFError):
                while True:
                    kept = [line for line in lines if not line.lower().startswith("proxy-")]
                    origin_form = first.replace(f"http://{url.netloc}", "", 1)
                    to.write("\r\n".join([origin_form, *kept, "", ""]).encode("latin-1"))
                    lengths = [line for line in lines if line.lower().startswith("content-length:")]
                    to.write(await reader.readexactly(int(lengths[0].partition(":")[2]) if lengths else 0))
                    first, lines = await self._head(reader)
            to.close()
        await back

    async def _head(self, reader: asyncio.StreamReader) -> tuple[str, list[str]]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head[:-4].split("\r\n")
        self.asked.append(first)
        return first, lines

    def _may(self, lines: list[str]) -> bool:
        wanted = f"proxy-authorization: basic {self._wanted}".lower()
        return not self._wanted or any(line.lower() == wanted for line in lines)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
