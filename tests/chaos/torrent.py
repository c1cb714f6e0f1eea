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
import signal
import socket
import struct
import sys
import termios
import time
from typing import Any

import uvloop

TEXT = "x" * 1000
_CHUNK = {"id": "t", "object": "chat.completion.chunk", "created": 1, "model": "sim"}
_FRAME = (
    "data: "
    + json.dumps(
        {**_CHUNK, "choices": [{"index": 0, "delta": {"content": TEXT}, "finish_reason": None}]},
        separators=(",", ":"),
    )
    + "\n\n"
)
_BLOCK = _FRAME.encode() * 50
_LAST = {**_CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
_END = f"data: {json.dumps(_LAST, separators=(',', ':'))}\n\ndata: [DONE]\n\n".encode()
_PLAIN = json.dumps(
    {
        "id": "t",
        "object": "chat.completion",
        "created": 1,
        "model": "sim",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "ok"}, "text": "ok", "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
).encode()
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
            status = "200 OK" if b" /health " in self.head else "404 Not Found"
            self.transport.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode())
        elif self.streamed:
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            self.left, self.written, self.taken, self.last = self.size, 0, 0, time.monotonic()
            self.look()
            self.pour()
            return
        else:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            self.transport.write(head % len(_PLAIN) + _PLAIN)
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
        self.transport.write(b"%x\r\n%b\r\n" % (len(block), block))
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


async def main(port: int, size: int) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Torrent(size), "127.0.0.1", port, backlog=1024)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
