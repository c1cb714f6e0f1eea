"""The load of the comparison: raw HTTP/1.1 that counts chunks and takes their times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import cast

from msgspec import Struct

from bench.load import HOST
from bench.process import BenchError
from bench.replies import MARK, MODEL, wanted
from bench.rows import DONE, PHRASE

# Of the chunked framing.
LAST = b"0\r\n\r\n"
# More bytes than any end of a stream that is looked for.
LONGEST = 64
# Bytes of a status line that say the status.
STATUS = 12
PATIENCE_S = 120.0


def body(size: int, chunks: int | None = None) -> bytes:
    """An OpenAI chat of `size` bytes; with `chunks` one that wants a stream of that many (see bench.backend)."""
    more = ', "stream": true' if chunks is not None else ""
    begin = f"{wanted(chunks)} " if chunks is not None else ""
    head = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "{begin}'
    tail = f'"}}], "temperature": 0.7, "max_tokens": 600{more}}}'
    text = PHRASE * (size // len(PHRASE) + 1)
    return (head + text[: max(size - len(head) - len(tail), 1)] + tail).encode()


def request(path: str, headers: dict[str, str], data: bytes) -> bytes:
    """The bytes of one POST."""
    fields = {"host": HOST, "content-type": "application/json", **headers, "content-length": str(len(data))}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + data


class Taken(Struct):
    """The reply to one request: chunks of text, whether the stream had its terminal mark, and seconds to the first
    chunk and to the end. refusal: the beginning of a reply with any status but 200."""

    refusal: str = ""
    chunks: int = 0
    ended: bool = False
    first_s: float = 0.0
    whole_s: float = 0.0


class Caller(asyncio.Protocol):
    """One connection; `ask` sends a request and returns what came of it. end: what a whole stream holds at its end."""

    def __init__(self, name: str, end: bytes = DONE) -> None:
        self._name = name
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[Taken] | None = None
        self.first: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, not the class.
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(BenchError(f"{self._name} closed a connection during the run: {exc}"))

    def ask(self, data: bytes, stream: bool) -> asyncio.Future[Taken]:
        """Sends `data`. The future ends when the reply is whole."""
        self._stream, self._taken = stream, Taken()
        self._tail, self._length, self._head = b"", -1, b""
        self._answer = self._loop.create_future()
        self._began = time.perf_counter()
        self.transport.write(data)
        return self._answer

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            return
        if self._stream:
            self._events(data)
        else:
            self._whole(data)

    def _refused(self, data: bytes) -> bool:
        if data.startswith(b"HTTP/1.1 200"):
            return False
        self._taken.refusal = data[:600].decode(errors="replace")
        self._finish()
        return True

    def _events(self, data: bytes) -> None:
        if len(self._head) < STATUS:
            self._head += data[:STATUS]
            if len(self._head) < STATUS or self._refused(self._head + data[STATUS:]):
                return
        taken = self._taken
        # No mark twice, and none missed that lies in two blocks.
        found = (self._tail[1 - len(MARK) :] + data).count(MARK)
        self._tail += data
        if found and not taken.chunks:
            taken.first_s = time.perf_counter() - self._began
            if not self.first.done():
                self.first.set_result(None)
        taken.chunks += found
        taken.ended = taken.ended or self._end in self._tail
        # After the last chunk of the framing the connection may be used again.
        if taken.ended and self._tail.endswith(LAST):
            self._finish()
        self._tail = self._tail[-LONGEST:]

    def _whole(self, data: bytes) -> None:
        self._head += data
        if self._length < 0:
            end = self._head.find(b"\r\n\r\n")
            if end < 0 or self._refused(self._head):
                return
            fields = self._head[:end].lower()
            _, found, rest = fields.partition(b"\r\ncontent-length:")
            if found:
                self._length = end + 4 + int(rest.partition(b"\r\n")[0])
            elif b"chunked" in fields:
                self._length = 1 << 40
        if len(self._head) >= self._length or (self._length == 1 << 40 and self._head.endswith(LAST)):
            self._taken.chunks, self._taken.ended = self._head.count(MARK), True
            self._finish()

    def _finish(self) -> None:
        assert self._answer is not None
        self._taken.whole_s = time.perf_counter() - self._began
        self._answer.set_result(self._taken)


async def connect(name: str, port: int, number: int, end: bytes = DONE) -> list[Caller]:
    """`number` connections to the subject `name`, whose streams end with `end`."""
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(partial(Caller, name, end), HOST, port))[1] for _ in range(number)]


async def batch(callers: Sequence[Caller], data: bytes, stream: bool) -> list[Taken]:
    """One request on each connection at once; returns when all are answered."""
    return list(await asyncio.wait_for(asyncio.gather(*(one.ask(data, stream) for one in callers)), PATIENCE_S))


def hang_up(callers: Sequence[Caller]) -> None:
    """Closes all."""
    for one in callers:
        one.transport.abort()
