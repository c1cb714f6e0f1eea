"""A client of one keep-alive connection: small, so that what is measured is not the client, and rude where asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from time import monotonic
from typing import Any

from msgspec import Struct


class Answer(Struct):
    """seconds is until the end of the reply, first_s until the first bytes of its body; body is whole unless the
    client left."""

    status: int
    headers: dict[str, str]
    body: bytes
    began: float
    first_s: float
    seconds: float

    def json(self) -> Any:
        return json.loads(self.body)


def request(method: str, target: str, headers: Mapping[str, str], body: bytes = b"", host: str = "gateway") -> bytes:
    """A request's bytes, as they are: nothing is escaped."""
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}", *(f"{name}: {value}" for name, value in headers.items())]
    if body or method == "POST":
        lines.append(f"content-length: {len(body)}")
        lines.append("content-type: application/json")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def connected(address: str, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to host:port, for a client that does as it likes."""
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port), **options)


async def to_the_end(address: str, data: bytes, most_s: float = 600.0) -> tuple[bytes, float]:
    """What is answered to `data` until the connection ends, and the seconds that it took."""
    began, found = monotonic(), b""
    reader, writer = await connected(address)
    writer.write(data)
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(most_s):
            while block := await reader.read(65536):
                found += block
    writer.close()
    return found, monotonic() - began


@contextlib.contextmanager
def links(address: str, count: int) -> Iterator[list[Link]]:
    """So many connections to one address."""
    found = [Link(address) for _ in range(count)]
    try:
        yield found
    finally:
        for link in found:
            link.close()


async def repeated(address: str, data: bytes, going: Callable[[], bool], pause_s: float) -> AsyncIterator[Answer]:
    """The answers to one request after another, while `going` and `pause_s` after each."""
    link = Link(address)
    while going():
        yield await link.send(data)
        await asyncio.sleep(pause_s)
    link.close()


async def lag(address: str, over: asyncio.Future[Any], pause_s: float = 0.005) -> list[float]:
    """Milliseconds that another client waits for its smallest request, each time, until `over` is done."""
    asked = request("GET", "/livez", {})
    return [answer.seconds * 1000 async for answer in repeated(address, asked, lambda: not over.done(), pause_s)]


class Link:
    """One connection to host:port, opened when needed."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: Any, headers: Mapping[str, str], leave_after: int | None = None) -> Answer:
        return await self.send(request("POST", path, headers, json.dumps(body).encode()), leave_after)

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return await self.send(request("GET", path, headers or {}))

    async def send(self, data: bytes, leave_after: int | None = None) -> Answer:
        """leave_after: hang up after so many chunks of a streamed reply."""
        if self._writer is not None and self._reader.at_eof():
            self.close()  # the server has said that it is over, as every client sees before it asks again
        if self._writer is None:
            self._reader, self._writer = await connected(self._address, limit=1 << 22)
        began = monotonic()
        try:
            self._writer.write(data)
            return await self._answer(began, leave_after, data.startswith(b"HEAD "))
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            raise

    async def _answer(self, began: float, leave_after: int | None, bare: bool) -> Answer:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        answer = Answer(int(head[0].split()[1]), headers, b"", began, 0.0, 0.0)
        if bare:
            answer.first_s = monotonic() - began
        elif headers.get("transfer-encoding") != "chunked":
            answer.body = await self._reader.readexactly(int(headers.get("content-length", 0)))
            answer.first_s = monotonic() - began
        elif not await self._chunks(answer, leave_after):
            self.close()
        answer.seconds = monotonic() - began
        if headers.get("connection") == "close":
            self.close()
        return answer

    async def _chunks(self, answer: Answer, leave_after: int | None) -> bool:
        count = 0
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            answer.body += await self._reader.readexactly(size)
            await self._reader.readexactly(2)
            answer.first_s = answer.first_s or monotonic() - answer.began
            count += 1
            if count == leave_after:
                return False
        await self._reader.readexactly(2)
        return True

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None
