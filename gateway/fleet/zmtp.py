"""ZeroMQ's wire protocol, as much of it as listening takes: a SUB or a DEALER that connects (ZMTP 3.0, mechanism NULL).

libzmq bounds a frame and not a message: it holds what comes of a message until the last frame, however many there are.
Here a message is bounded before it is held, and what is not read yet waits at its sender.

Source: https://rfc.zeromq.org/spec/23/ (and /37/ for PING, which newer peers send).
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Literal

_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_MORE, _LONG, _COMMAND = 1, 2, 4
_MOST_FRAMES = 8
"""Frames of a message; vLLM's have three."""
_MOST_COMMAND = 1024
_HANDSHAKE_S = 5.0
_REST_S = 0.001
"""Seconds of rest after each command; an honest peer sends a few a minute. Bytes that have arrived are read without a
step of the loop, so that thousands of commands in a row would let nothing else run."""
# A connection that died without a word is noticed after half a minute.
_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))


class Unfit(Exception):
    """The peer sent bytes that are not ZMTP, or a message that is too large."""


class Peer:
    """One connection. Its errors are OSError, EOFError and Unfit; it is of no use after one of them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most_bytes: int) -> None:
        self._reader = reader
        self._writer = writer
        self._most_bytes = most_bytes

    @classmethod
    async def connect(cls, host: str, port: int, kind: Literal["SUB", "DEALER"], most_bytes: int) -> Peer:
        """A connection to the socket at this address, ready for messages of at most `most_bytes`. A SUB has subscribed
        to everything. Raises TimeoutError too."""
        async with asyncio.timeout(_HANDSHAKE_S):
            reader, writer = await asyncio.open_connection(host, port)
            peer = cls(reader, writer, most_bytes)
            try:
                await peer._shake_hands(kind)
            except BaseException:
                peer.close()
                raise
        return peer

    async def _shake_hands(self, kind: str) -> None:
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._writer.write(_GREETING)
        greeting = await self._reader.readexactly(len(_GREETING))
        if greeting[0] != 0xFF or greeting[9] != 0x7F or greeting[10] < 3 or greeting[12:32].rstrip(b"\0") != b"NULL":
            raise Unfit("not a ZMTP 3 peer without security")
        self._write(_COMMAND, b"\x05READY" + _property(b"Socket-Type", kind.encode()) + _property(b"Identity", b""))
        flags, size = await self._head()
        if not flags & _COMMAND or size > _MOST_COMMAND:
            raise Unfit("no READY")
        if not (await self._reader.readexactly(size)).startswith(b"\x05READY"):
            raise Unfit("no READY")
        if kind == "SUB":
            self._write(0, b"\x01")

    def send(self, *frames: bytes) -> None:
        for frame in frames[:-1]:
            self._write(_MORE, frame)
        self._write(0, frames[-1])

    async def receive(self) -> list[bytes]:
        """The frames of the next message."""
        frames: list[bytes] = []
        left = self._most_bytes
        while True:
            flags, size = await self._head()
            if flags & _COMMAND:
                if size > _MOST_COMMAND:
                    raise Unfit("a command is small")
                self._obey(await self._reader.readexactly(size))
                await asyncio.sleep(_REST_S)
                continue
            left -= size
            if left < 0 or len(frames) == _MOST_FRAMES:
                raise Unfit("a message is larger than it may be")
            frames.append(await self._reader.readexactly(size))
            if not flags & _MORE:
                return frames

    async def _head(self) -> tuple[int, int]:
        flags = (await self._reader.readexactly(1))[0]
        return flags, int.from_bytes(await self._reader.readexactly(8 if flags & _LONG else 1), "big")

    def _obey(self, command: bytes) -> None:
        if command.startswith(b"\x04PING"):
            self._write(_COMMAND, b"\x04PONG" + command[7:23])  # behind the name: two bytes of a TTL, then a context

    def _write(self, flags: int, body: bytes) -> None:
        assert len(body) < 256
        if self._writer.transport.get_write_buffer_size() > _MOST_COMMAND:
            raise Unfit("it sends and does not read")
        self._writer.write(bytes((flags, len(body))) + body)

    def close(self) -> None:
        with suppress(Exception):
            self._writer.transport.abort()


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value
