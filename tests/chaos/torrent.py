"""`python -m tests.chaos.torrent PORT BYTES`: a worker that looks at nothing it is sent, and says a lot.

A POST whose body holds `"stream":true` is answered by a chat of about BYTES bytes, as fast as it is taken, any other by
a short one. Every 50 ms it looks how much its reader has acknowledged; when a streamed reply or its connection ends it
writes {"event": "torrent", "id", "taken": bytes acknowledged, "last": when they last grew, "ended": when it ended}, by
the monotonic clock.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import re
import socket
import struct
import sys
import termios
import time
from typing import Any

import uvloop

from tests.chaos.odd import CHUNKED, DONE, END, chunked, counted, plain, serve, word

TEXT = "x" * 1000
_BLOCK = word(TEXT) * 50
_END = END + DONE
_OPEN = (1, 8)
"""TCP's states ESTABLISHED and CLOSE_WAIT, by Linux's numbers."""
_LENGTH = re.compile(rb"\r\ncontent-length: ([0-9]+)")
_ID = re.compile(rb"\r\nx-request-id: ([^\r]+)")


class Torrent(asyncio.Protocol):
    def __init__(self, size: int) -> None:
        self.size = size
        self.head = b""
        self.due = -1
        self.streamed = False
        self.left = 0
        self.written = self.taken = 0
        self.last = 0.0
        self.paused = False
        self.looking: asyncio.TimerHandle | None = None
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.due < 0:
            self.head += data
            if b"\r\n\r\n" not in self.head:
                return
            self.head, _, data = self.head.partition(b"\r\n\r\n")
            length = _LENGTH.search(self.head)
            self.due, self.streamed = int(length[1]) if length else 0, False
        self.streamed = self.streamed or b'"stream":true' in data
        self.due -= len(data)
        if self.due <= 0:
            self.answer()

    def answer(self) -> None:
        if not self.head.startswith(b"POST "):
            self.transport.write(counted(b"", status="200 OK" if b" /health " in self.head else "404 Not Found"))
        elif self.streamed:
            self.transport.write(CHUNKED)
            self.left, self.written, self.taken, self.last = self.size, 0, 0, time.monotonic()
            self.look()
            self.pour()
            return
        else:
            self.transport.write(counted(plain()))
        self.head, self.due = b"", -1

    def pour(self) -> None:
        while self.left > 0 and not self.paused and not self.transport.is_closing():
            self.say(_BLOCK)
            self.left -= len(_BLOCK)
            if self.left <= 0:
                self.say(_END)
                self.transport.write(b"0\r\n\r\n")
                self.ended()
                self.head, self.due = b"", -1

    def say(self, block: bytes) -> None:
        self.transport.write(chunked(block, len(block)))
        self.written += len(block)

    def look(self) -> None:
        raw = self.transport.get_extra_info("socket")
        if raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] not in _OPEN:
            return  # what was queued has been thrown away, not taken
        queued = fcntl.ioctl(raw.fileno(), termios.TIOCOUTQ, bytes(4))
        taken = self.written - self.transport.get_write_buffer_size() - struct.unpack("i", queued)[0]
        if taken > self.taken:
            self.taken, self.last = taken, time.monotonic()
        self.looking = asyncio.get_running_loop().call_later(0.05, self.look)

    def ended(self) -> None:
        if self.looking is None:
            return
        self.looking.cancel()
        self.looking = None
        id_ = _ID.search(self.head)
        line = {"event": "torrent", "id": id_[1].decode() if id_ else "", "taken": self.taken, "last": self.last}
        print(json.dumps({**line, "ended": time.monotonic()}))

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.pour()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended()


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    uvloop.run(serve(int(sys.argv[1]), lambda: Torrent(int(sys.argv[2]))))
