"""Caps of single keys on what they hold open in this process: connections, and streams under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from gateway.auth import Principal
from gateway.core.errors import Busy
from gateway.core.ports import CountedConnection
from gateway.features import Built, Parts
from gateway.kernel.call import Call
from gateway.kernel.feature import Feature, Step

# As with limits on concurrency, it is not known when a slot becomes free.
_AGAIN_S = 1.0


class Caps(Feature):
    """Connections that keys hold now, and their bounds. on_refuse: called with "streams" or "connections".

    connections  so many each key holds now; a key that holds none is not there
    streams      the same for streams, a feature of its own: it refuses as soon as a request is read
    """

    def __init__(self, on_refuse: Callable[[str], None]) -> None:
        self._on_refuse = on_refuse
        self.streams = Streams(self)
        self.connections: Counter[str] = Counter()
        self._lost = partial(_drop, self.connections)  # one for all connections

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

    def connected(self, principal: Principal, connection: CountedConnection) -> None:
        """The key has sent a request by `connection`, which counts as its until it ends or another key sends one.
        Raises `Busy`."""
        key = principal.key
        if connection.owner == key:
            return
        if connection.on_lost is not None:
            connection.on_lost(connection.owner)
            connection.owner, connection.on_lost = "", None
        if principal.connections is None:
            return
        self.add(self.connections, key, principal.connections, "connections")
        connection.owner = key
        connection.on_lost = self._lost

    def add(self, counts: Counter[str], key: str, most: int | None, what: str) -> None:
        """Counts one more. Raises `Busy` if it is one too many."""
        if most is not None and counts[key] >= most:
            self._on_refuse(what)
            message = f"no more than {most} of this API key's {what} may be open at once"
            refusal = Busy(message, f"too_many_{what}", _AGAIN_S)
            refusal.final = True  # whatever the model is
            raise refusal
        counts[key] += 1


class Streams(Feature):
    """Streams of keys with a cap, each until its last byte is written. A call's notes have its key."""

    def __init__(self, caps: Caps) -> None:
        self._caps = caps
        self.open: Counter[str] = Counter()

    def around_read(self, inner: Step) -> Step:
        async def read(call: Call) -> None:
            await inner(call)
            if call.record.stream and call.principal.streams is not None:
                principal = call.principal
                self._caps.add(self.open, principal.key, principal.streams, "streams")
                call.notes[self], call.at_end[self] = principal.key, self._close

        return read

    def _close(self, call: Call) -> None:
        key = call.notes.pop(self, None)
        if key is not None:
            _drop(self.open, key)


def _drop(counts: Counter[str], key: str) -> None:
    """A key of which nothing is left is forgotten: tokens of an identity provider name any number of them."""
    counts[key] -= 1
    if counts[key] <= 0:
        del counts[key]


def build(parts: Parts) -> Built:
    shed = parts.metrics.shed
    caps: Caps = parts.earlier_services.get("caps") or Caps(lambda what: shed.labels(what).inc())
    parts.offers.connected = caps.connected
    return Built((caps,), {"streams": caps.streams}, service=caps)
