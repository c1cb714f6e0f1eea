"""One line of a batch as a request: through the kernel of the configuration in force, for the caller of the batch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, cast

from msgspec import MsgspecError, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from gateway.auth import Principal
from gateway.core.charged import YIELDED
from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import JSON_TYPE
from gateway.core.ports import Pool
from gateway.fleet.idle import Idle, IdlePool
from gateway.kernel import Endpoint
from gateway.kernel.call import Call
from gateway.kernel.feature import Feature, Step
from gateway.kernel.internal_request import InternalRequest, scope_of
from gateway.kernel.other_models import CHOSEN, NONE, SPLIT, reason_of
from gateway.kernel.serving import run
from gateway.kernel.way import Way

PRIORITY = -1000
"""Below that of every key."""

Outcome = Literal["answered", "again", "failed", "yielded"]
"""A reply that is the line's result; the line must be sent again, later; it may be sent again a few times, since a
worker has failed it; it gave its slot back."""

_GUARD_AWAY = "guard_unavailable"
_GUARD_S = 5.0
"""A guard of the reply is asked after the worker: its line costs each time."""
_LATER = (Kind.OVERLOADED, Kind.NO_WORKER, Kind.DRAINING)


class _StreamIn(Struct):
    stream: Any = None


_streams = Decoder(_StreamIn).decode


class _Exchange(InternalRequest):
    """Plain ASGI: the body is a line's, the reply is kept."""

    def __init__(self, path: str, body: bytes) -> None:
        super().__init__(body)
        self.status = 0
        self.reply = bytearray()
        self.whole = False
        self.scope = scope_of(path, [JSON_TYPE], path.encode())

    async def send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.reply += message.get("body", b"")
            self.whole = not message.get("more_body", False)


class LineCall(Feature):
    """One try of one line. Implements fleet.idle.Background.

    caller   for whom it runs, as keys are now; raises GatewayError
    take_slot  awaited once a worker has room for it, before it is sent
    headroom  the share of a worker's slots that it leaves free
    yielded  it gave its slot back
    """

    yielded = False

    def __init__(
        self,
        endpoint: Endpoint,
        path: str,
        body: bytes,
        batch: str,
        caller: Callable[[], Principal],
        take_slot: Callable[[], Awaitable[None]],
        headroom: float,
    ) -> None:
        self._exchange = exchange = _Exchange(path, body)
        self._call = call = endpoint.call(exchange.scope, exchange.receive, exchange.send, self)
        self.record = call.record
        self.record.batch = batch
        call.at_end[self] = self._note_yielded  # the first: prices and limits go by it
        call.again = lambda: replace(caller(), priority=PRIORITY, streams=None, connections=None)
        self._take_slot = take_slot
        self._headroom = headroom

    async def result(self) -> tuple[Outcome, int, bytes]:
        """Runs it. Returns the status and the body of its reply, too."""
        await run(self._call)
        exchange, error = self._exchange, self._call.error
        if exchange.whole and error is None:
            return "answered", exchange.status, bytes(exchange.reply)
        if self.yielded or error is None or error.code == YIELDED:
            return "yielded", 0, b""
        if error.kind in _LATER or (error.kind is Kind.LIMITED and error.retry_after is not None):
            return "again", 0, b""
        if error.code == _GUARD_AWAY:
            return "again", 0, b""
        outcome: Outcome = "failed" if error.blame is Blame.WORKER and error.retryable else "answered"
        return outcome, exchange.status, bytes(exchange.reply)

    @property
    def retry_after(self) -> float:
        error = self._call.error
        return (error and error.retry_after) or (_GUARD_S if error is not None and error.code == _GUARD_AWAY else 1.0)

    def give_back(self) -> None:
        self.yielded = True
        self._exchange.leave()

    def leaves(self, absence: GatewayError) -> bool:
        call = self._call
        if call.record.routed not in (None, SPLIT, CHOSEN):
            return True  # it is at a fallback: the next one may answer it, or in another try its own model
        others, models = call.served.other_models or NONE, call.runtime.models
        return reason_of(absence) in others.on and any(
            models[name].pool.may_serve(()) for name in others.fallback if call.principal.may_use(name)
        )

    # -- as the outermost feature of its request --------------------------------------------------------------------

    def _note_yielded(self, call: Call) -> None:
        if call.record.outcome == "cancelled":
            call.record.code = YIELDED

    def around_receive(self, inner: Step) -> Step:
        """Refuses a stream before it costs anything, such as a guard's call."""

        async def receive(call: Call) -> None:
            await inner(call)
            with suppress(MsgspecError, ValueError, RecursionError):  # the dialect reports what is wrong with it
                if _streams(call.request.body).stream is True:
                    raise GatewayError(Kind.BAD_REQUEST, "a request of a batch cannot be streamed", param="stream")

        return receive

    def around_answer(self, inner: Step) -> Step:
        async def answer(call: Call) -> None:
            pool = cast("Any", call.served.pool)
            idle = Idle.of(pool, call.runtime.clock)
            idle.headroom = self._headroom
            try:
                await idle.wait(self)
            except GatewayError as absence:
                call.name_reasons(*absence.absent)
                raise
            try:
                await self._take_slot()
                call.confirm(call.served)
                call.began = call.runtime.clock()  # until now nobody waited for it
                mine = cast("Pool", IdlePool(pool, idle, self))
                features = (one.in_background() for one in call.way.features)
                call.way = Way([one for one in features if one is not None])
                call.served = replace(call.served, pool=mine)
                call.outgoing.served = call.served
                await inner(call)
            finally:
                idle.left(self)

        return answer
