"""`python -m tests.chaos.patient PORT EVERY_S TOKENS`: a worker of many slow streams, each with a clock of its own.

A chat that asks for a stream gets one of so many tokens, the first at once and each other EVERY_S after the one before;
any other gets a short reply.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from typing import Any

import uvloop

from tests.chaos.spiteful import CHUNKED, DONE, END, counted, plain, word

TOKEN = word("word ")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


FIRST, NEXT, LAST = CHUNKED + chunk(TOKEN), chunk(TOKEN), chunk(END) + chunk(DONE) + b"0\r\n\r\n"


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


async def main(port: int, every_s: float, tokens: int) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Patient(every_s, tokens), "127.0.0.1", port, backlog=4096)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


if __name__ == "__main__":
    gc.freeze()
    gc.disable()
    uvloop.run(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
