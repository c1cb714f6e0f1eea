"""A connection of our own to a Redis server: commands may overlap, answers come in the order of the commands.

The server's protocol is RESP 2 (https://redis.io/docs/latest/develop/reference/protocol-spec/). The gateway reads only
the kinds of answers that its commands get: simple strings, errors, bulk strings. redis-py finds the server (Sentinel,
Cluster). The connection of redis-py is not used here: a call through its public interface costs half as much again (the
figures are in docs/limits.md), and answers must be awaited one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import cast

from redis.crc import key_slot

from gateway.config import Redis
from gateway.redis.client import connect_s, node, sentinels
from gateway.redis.first_answer import FirstAnswer
from gateway.redis.settings import context, credentials, split_address

_LONGEST = 1 << 20
"""The most bytes of one answer. Ours have about 10 KB at most; a longer one does not come from a healthy server."""

_BEGIN_SHARE = 0.3
"""Share of the time for a connection after which all Sentinels or cluster nodes have been asked, even if the first ones
are silent: the rest is for the last one's answer, and for the server itself."""

Address = tuple[str, int]
Slots = Sequence[tuple[int, int, Address]]


class Refused(Exception):
    """The server answered with this error, which begins with its code."""


def frame(words: Sequence[bytes]) -> bytes:
    """A command as an array of bulk strings, in one piece."""
    return begin(words, 0)


def begin(words: Sequence[bytes], more: int) -> bytes:
    """A command without its last `more` words."""
    count = len(words) + more
    return b"*%d\r\n" % count + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


class Connection(asyncio.Protocol):
    """One connection to Redis: writes commands, and parses the answers.

    answered is called with each answer: bytes, or `Refused`. lost is called once, with the reason, when the
    connection ends by itself; not after `close`."""

    def __init__(self, answered: Callable[[bytes | Refused], None], lost: Callable[[Exception], None]) -> None:
        self._answered = answered
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._piece = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's inherits from none of asyncio's

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        if self._piece:
            data = self._piece + data
            self._piece = b""
        at, size = 0, len(data)
        while at < size:
            line = data.find(b"\r\n", at)
            if line < 0:
                break
            kind = data[at]
            if kind == 36:  # $
                length = data[at + 1 : line]
                end = line + 2 + int(length) if length.isdigit() and len(length) < 8 else -1
                if end < 0 or end - line > _LONGEST:
                    self._end(Refused("not a Redis server's answer"))
                    return
                if size < end + 2:
                    break
                at, answer = end + 2, data[line + 2 : end]
                self._answered(answer)
            elif kind == 45:  # -
                refused = Refused(data[at + 1 : line].decode(errors="replace"))
                at = line + 2
                self._answered(refused)
            elif kind == 43:  # +
                answer, at = data[at + 1 : line], line + 2
                self._answered(answer)
            else:
                self._end(Refused("not a Redis server's answer"))
                return
            if not self._is_open():  # the callback has closed it
                return
        if at < size:
            if size - at > _LONGEST:
                self._end(Refused("not a Redis server's answer"))
            else:
                self._piece = data[at:]

    def _is_open(self) -> bool:
        return self._transport is not None

    def eof_received(self) -> None:
        self._end(ConnectionResetError("the server closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionResetError("the server closed the connection"))

    def _end(self, why: Exception) -> None:
        if self._transport is not None:
            self.close()
            self._lost(why)

    def close(self) -> None:
        """Ends the connection at once. Nothing is answered after it."""
        transport, self._transport = self._transport, None
        self._piece = b""
        if transport is not None:
            transport.abort()

    async def log_in(self, words: Sequence[Sequence[bytes]]) -> None:
        """Sends these commands and waits for their answers, before any other. Raises `Refused` when one is refused, and
        the reason when the connection ends."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answered, lost, left = self._answered, self._lost, len(words)

        def on_answer(answer: bytes | Refused) -> None:
            nonlocal left
            left -= 1
            if done.done():
                return
            if isinstance(answer, Refused):
                done.set_exception(answer)
            elif not left:
                done.set_result(None)

        def end(why: Exception) -> None:
            if not done.done():
                done.set_exception(why)

        self._answered, self._lost = on_answer, end
        self.write(b"".join(map(frame, words)))
        await done
        self._answered, self._lost = answered, lost


def _step(settings: Redis) -> float:
    return _BEGIN_SHARE * connect_s(settings) / len(settings.server.addresses)


class Servers:
    """The servers of `settings`: which of them has a key, and connections to it."""

    def __init__(self, settings: Redis) -> None:
        self._settings = settings
        step = _step(settings)
        self._primary = FirstAnswer(settings.server.addresses, self._ask_sentinel, step)
        self._map = FirstAnswer(settings.server.addresses, self._ask_node, step)
        self._slots: Slots = ()
        self._slots_read = 0.0
        self._reading = asyncio.Lock()

    def use(self, settings: Redis) -> None:
        """As a new one with `settings`, which have the same addresses; connections stay."""
        self._settings = settings
        self._primary.step = self._map.step = _step(settings)

    async def open(
        self, key: bytes, answered: Callable[[bytes | Refused], None], lost: Callable[[Exception], None]
    ) -> Connection:
        """A connection to the server that has `key`, logged in. Raises OSError, `Refused` or an error of redis-py.
        The caller's deadline ends it where nothing else does."""
        async with asyncio.timeout(connect_s(self._settings)):
            host, port = await self._find(key)
            tls, login = None, credentials(self._settings)
            if self._settings.server.tls:
                # Reading the system's certificates takes many milliseconds.
                tls = await asyncio.to_thread(context, self._settings)
            made = Connection(answered, lost)
            await asyncio.get_running_loop().create_connection(lambda: made, host, port, ssl=tls)
            words: list[Sequence[bytes]] = []
            if login is not None:
                words.append((b"AUTH", *(one.encode() for one in login)))
            if self._settings.server.db:
                words.append((b"SELECT", b"%d" % self._settings.server.db))
            if words:
                try:
                    await made.log_in(words)
                except BaseException:
                    made.close()
                    raise
            return made

    async def _find(self, key: bytes) -> Address:
        settings = self._settings
        if settings.mode == "cluster":
            return await self._node_of(key_slot(key))
        if settings.mode == "sentinel":
            return await self._primary.answer()
        return split_address(settings.server.addresses[0])

    async def _node_of(self, slot: int) -> Address:
        """The primary that serves `slot`. The map is read again for each connection, once for all that connect at the
        same time: a connection is made at the start, and after a node answered that it does not serve the slot."""
        asked = asyncio.get_running_loop().time()
        async with self._reading:
            if self._slots_read < asked:
                self._slots = await self._map.answer()
                self._slots_read = asyncio.get_running_loop().time()
        for first, last, address in self._slots:
            if first <= slot <= last:
                return address
        raise ConnectionError("no node of the cluster serves this slot")

    async def _ask_sentinel(self, address: str) -> Address:
        settings = self._settings
        asked = sentinels(settings, [address], connect_s(settings))
        try:
            host, port = await asked.discover_master(settings.sentinel_name)
            return str(host), int(port)
        finally:
            for one in asked.sentinels:
                with contextlib.suppress(Exception):
                    await one.aclose()

    async def _ask_node(self, address: str) -> Slots:
        client = node(self._settings, address)
        try:
            slots = await client.execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]  # redis-py's
        finally:
            with contextlib.suppress(Exception):
                await client.aclose()
        asked = split_address(address)[0]
        found = []
        for first, last, primary, *_ in slots:
            host = primary[0].decode() if isinstance(primary[0], bytes) else primary[0]
            # No name, or "?", stands for the address that was asked.
            found.append((first, last, (host if host and host != "?" else asked, primary[1])))
        return found

    async def close(self) -> None:
        await self._primary.close()
        await self._map.close()
