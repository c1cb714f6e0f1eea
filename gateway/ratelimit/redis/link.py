"""Calls of the script on a connection to the server that has a hash slot."""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections import deque
from collections.abc import Callable, Sequence

from gateway.ratelimit.redis.reasons import Unsent
from gateway.redis import Connection, Refused, Servers
from gateway.redis.connection import begin, frame

OnAnswer = Callable[[bytes | Exception], None]


class Link:
    """The calls of one hash slot, on one connection that is opened when a call needs it."""

    def __init__(self, servers: Servers, key: bytes, script: bytes, sha: bytes) -> None:
        self._servers = servers
        self._key = key
        self._script = script
        self._sha = sha
        self._connection: Connection | None = None
        self._connecting: Task[None] | None = None
        self._tasks: set[Task[None]] = set()  # attempts to connect, also those given up
        self._calls: deque[tuple[Sequence[bytes], bytes, OnAnswer]] = deque()
        self._framed_keys: Sequence[bytes] | None = None
        self._framed = b""

    def call(self, keys: Sequence[bytes], payload: bytes, answered: OnAnswer) -> None:
        """Runs the script with these keys and this payload. Calls `answered` once, after this has returned: with the
        answer, with `Unsent` if the script certainly did not run, or with any other exception. After an exception the
        other calls under way get no answer."""
        self._calls.append((keys, payload, answered))
        if self._connection is not None:
            self._connection.write(self._frame(keys, payload))
        elif self._connecting is None:
            self._connecting = task = asyncio.get_running_loop().create_task(self._connect())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _frame(self, keys: Sequence[bytes], payload: bytes) -> bytes:
        """The call. All but its payload is kept for the next, which is mostly about the same keys."""
        if keys != self._framed_keys:
            self._framed_keys = keys
            self._framed = begin((b"EVALSHA", self._sha, b"%d" % len(keys), *keys), 1)
        return b"%b$%d\r\n%b\r\n" % (self._framed, len(payload), payload)

    async def close(self) -> None:
        """As `drop`; returns when no attempt to connect is running."""
        self.drop()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def drop(self) -> None:
        """Gives up all calls under way: none of them gets an answer."""
        self._calls.clear()
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def _connect(self) -> None:
        mine = asyncio.current_task()
        try:
            made = await self._servers.open(self._key, self._answered, self._lost)
        except Exception as error:
            if self._connecting is mine:
                self._connecting = None
                unsent = Unsent()
                unsent.__cause__ = error
                self._lost(unsent)
            return
        if self._connecting is not mine:  # dropped meanwhile
            made.close()
            return
        self._connecting, self._connection = None, made
        for keys, payload, _ in self._calls:
            made.write(self._frame(keys, payload))

    def _answered(self, answer: bytes | Refused) -> None:
        if not self._calls:  # nobody asked
            return
        call = self._calls.popleft()
        if isinstance(answer, Refused):
            if str(answer).startswith("NOSCRIPT") and self._connection is not None:
                # It did not run, so this is not a retry. Its answer comes after those of the calls under way.
                keys, payload, _ = call
                self._calls.append(call)
                self._connection.write(frame((b"EVAL", self._script, b"%d" % len(keys), *keys, payload)))
                return
            self.drop()  # a healthy primary does not answer so: the next call connects again
        call[2](answer)

    def _lost(self, why: Exception) -> None:
        self._connection = None
        if self._calls:
            answered = self._calls[0][2]
            self._calls.clear()
            answered(why)
