"""`python -m tests.chaos.patient PORT EVERY_S TOKENS`: a worker of many slow streams, each with a clock of its own.

A chat that asks for a stream gets one of so many tokens, the first at once and each other EVERY_S after the one before;
any other gets a short reply.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

import uvloop

from tests.chaos.odd import CHUNKED, DONE, END, chunked, counted, plain, serve, word

TOKEN = word("word ")


FIRST, NEXT, LAST = CHUNKED + chunked(TOKEN), chunked(TOKEN), chunked(END) + chunked(DONE) + b"0\r\n\r\n"


class Patient(asyncio.Protocol):
    def __init__(self, every_s: float, tokens: int) -> None:
        self.every_s, self.tokens = every_s, tokens
        self.loop = asyncio.get_running_loop()
        self.read = b""
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.read += data
        head, found, body = self.read.partition(b"\r\n\r\n")
        if not found:
            return
        lines = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if len(body) < int(lines[0].partition(b":")[2] if lines else 0):
            return
        self.read = b""
        if b'"stream":true' not in body.replace(b" ", b""):
            self.transport.write(counted(plain() if body else b"{}"))
            return
        self.transport.write(FIRST)
        self.loop.call_later(self.every_s, self.say, self.tokens - 1)

    def say(self, left: int) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(NEXT if left else LAST)
        if left:
            self.loop.call_later(self.every_s, self.say, left - 1)


if __name__ == "__main__":
    gc.freeze()
    gc.disable()
    uvloop.run(serve(int(sys.argv[1]), lambda: Patient(float(sys.argv[2]), int(sys.argv[3]))))
