"""Caps of single keys on what they hold open in this process: connections, and streams under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

from gateway.auth import Principal
from gateway.core.errors import Busy
from gateway.core.ports import CountedConnection
from gateway.kernel.call import Call
from gateway.kernel.feature import Feature, Step

# As with limits on concurrency, it is not known when a place becomes free.
_AGAIN_S = 1.0


class Caps(Feature):
    """Streams and connections that keys hold now, and their bounds. on_refuse: called with "streams" or
    "connections"."""

    def __init__(self, on_refuse: Callable[[str], None]) -> None:
        self._on_refuse = on_refuse
        self._streams: Counter[str] = Counter()
        self._connections: Counter[str] = Counter()

    def around_receive(self, inner: Step) -> Step:
        def receive(call: Call) -> Awaitable[None]:
            if not call.proven:
                return self._receive_signed(call, inner)
            self._connected(call)
            return inner(call)

        return receive

    async def _receive_signed(self, call: Call, inner: Step) -> None:
        await inner(call)
        self._connected(call)

    def _connected(self, call: Call) -> None:
        connection, principal = call.client.connection, call.principal
        if (
            connection is not None
            and connection.owner != principal.key
            and (principal.connections is not None or connection.owner)
        ):
            try:
                self.connected(principal, connection)
            except Busy:
                call.reply.headers.append((b"connection", b"close"))
                raise

    def around_answer(self, inner: Step) -> Step:
        def answer(call: Call) -> Awaitable[None]:
            return inner(call) if call.principal.streams is None or not call.record.stream else counted(call)

        async def counted(call: Call) -> None:
            self.open_stream(call.principal)
            try:
                await inner(call)
            finally:
                self.close_stream(call.principal.key)

        return answer

    def open_stream(self, principal: Principal) -> None:
        """Counts a stream of a key with a cap, until `close_stream`. Raises `Busy`."""
        self._add(self._streams, principal.key, principal.streams, "streams")

    def close_stream(self, key: str) -> None:
        _drop(self._streams, key)

    def connected(self, principal: Principal, connection: CountedConnection) -> None:
        """The key has sent a request by `connection`, which counts as its until it ends or another key sends one.
        Raises `Busy`."""
        key = principal.key
        if connection.owner == key:
            return
        if connection.on_lost is not None:
            connection.on_lost()
            connection.owner, connection.on_lost = "", None
        if principal.connections is None:
            return
        self._add(self._connections, key, principal.connections, "connections")
        connection.owner = key
        connection.on_lost = lambda: _drop(self._connections, key)

    def _add(self, counts: Counter[str], key: str, most: int | None, what: str) -> None:
        if most is not None and counts[key] >= most:
            self._on_refuse(what)
            message = f"no more than {most} of this API key's {what} may be open at once"
            refusal = Busy(message, f"too_many_{what}", _AGAIN_S)
            refusal.final = True  # whatever the model is
            raise refusal
        counts[key] += 1


def _drop(counts: Counter[str], key: str) -> None:
    """A key of which nothing is left is forgotten: tokens of an identity provider name any number of them."""
    counts[key] -= 1
    if counts[key] <= 0:
        del counts[key]
