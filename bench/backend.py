"""The canned worker: vLLM's wire with no engine behind it, fast enough not to be what is measured.

    python -m bench.backend PORT [PORT...]

A request for a stream gets one chunk every INTERVAL until its client leaves. All streams get theirs at the same moment,
as after an engine's step, so that the figures do not depend on when the streams began.

A prompt that holds `bench.replies.wanted(number)` gets that number of chunks, whatever the language it came in: the
first comes at once, the last is followed by the stream's end. With a number of 0 one chunk comes, and then nothing.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

from bench.replies import REPLIES, WANTED, Canned

INTERVAL = 0.010
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


def whole(reply: Canned) -> bytes:
    """A plain reply as uvicorn frames it."""
    head = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n"
    return head % len(reply.whole) + reply.whole


def chunked(data: bytes) -> bytes:
    """One HTTP/1.1 chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def opening(reply: Canned) -> bytes:
    """Response head and first event of a stream."""
    head = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n"
    return head % reply.media_type + (chunked(reply.head) if reply.head else b"")


WHOLE = {path: whole(reply) for path, reply in REPLIES.items()}
OPENING = {path: opening(reply) for path, reply in REPLIES.items() if reply.chunk}
CHUNK = {path: chunked(reply.chunk) for path, reply in REPLIES.items() if reply.chunk}
TAIL = {path: chunked(reply.tail) + b"0\r\n\r\n" for path, reply in REPLIES.items() if reply.tail}


class Worker(asyncio.Protocol):
    """One connection; HTTP/1.1 keep-alive, one request at a time, bodies by content-length."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.buffer = b""
        self.due = 0.0
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, not the class.
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            _, found, rest = head.partition(b"\r\ncontent-length:")
            start = end + 4
            stop = start + (int(rest.partition(b"\r\n")[0]) if found else 0)
            if len(self.buffer) < stop:
                return
            self.answer(self.buffer.split(b" ", 2)[1], self.buffer[start:stop])
            self.buffer = self.buffer[stop:]

    def answer(self, path: bytes, body: bytes) -> None:
        path = path.partition(b"?")[0]
        if path in OPENING and (not REPLIES[path].whole or b'"stream":true' in body.replace(b'": ', b'":')):
            self.transport.write(OPENING[path])
            self.due = (self.loop.time() // INTERVAL + 2) * INTERVAL
            wanted = WANTED.search(body)
            if wanted is None:
                self.timer = self.loop.call_at(self.due, self.tick, CHUNK[path])
                return
            self.transport.write(CHUNK[path])
            if more := int(wanted[1]):
                self.timer = self.loop.call_at(self.due, self.count_down, path, more - 1)
        else:
            self.transport.write(WHOLE.get(path, NOT_FOUND))

    def tick(self, chunk: bytes) -> None:
        self.transport.write(chunk)
        # From the due time, not from now: lateness must not lower the rate.
        self.due += INTERVAL
        self.timer = self.loop.call_at(self.due, self.tick, chunk)

    def count_down(self, path: bytes, left: int) -> None:
        if left == 0:
            self.transport.write(TAIL[path])
            return
        self.transport.write(CHUNK[path])
        self.due += INTERVAL
        self.timer = self.loop.call_at(self.due, self.count_down, path, left - 1)


async def serve(ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(lambda: Worker(loop), "127.0.0.1", port, backlog=1024) for port in ports]
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    uvloop.run(serve([int(port) for port in sys.argv[1:]]))
