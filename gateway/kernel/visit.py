"""A visit: one worker's part in one request, from the pick to its outcome.

Every exchange with a worker is made by a visit, so the rules for outcomes stand here alone: the pool learns exactly one
outcome, the worker gets its place back, the exchange is closed, the time is added to the record, the span ends.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from gateway.core.errors import GatewayError
from gateway.core.figures import milliseconds
from gateway.core.http import Request, Response
from gateway.core.moves import LEAVING
from gateway.core.ports import Deadlines, Exchange, Pool, Transport, WorkerHandle
from gateway.core.renaming import Renaming
from gateway.core.routing_facts import RoutingFacts
from gateway.light_task import current_task
from gateway.offload import AT_ONCE, run_step

if TYPE_CHECKING:
    from gateway.kernel.call import Call

_MAX_ERROR_BYTES = 1 << 20
"""Bytes that are read of a response whose status is an error."""


FEW = 16
"""Pieces of output. A worker that fails before it has added as many may have failed because of the request."""
Fault = Callable[[Response], GatewayError]
"""Makes the error of a response whose status is not 200."""


class Visit:
    """A context manager. As its block ends, the pool learns the outcome, unless it has learned it before:

    no exception   the worker succeeded
    GatewayError   the worker failed; the pool decides by the error's blame whether that counts
    another        the request was cancelled, or the gateway has a bug: nothing is learned about the worker. A request
                   that leaves the worker (`moving`) is cancelled, too: then that GatewayError is raised instead

    worker   as the pool gave it
    routing  given back with the worker; None if the worker was lent for a question, and has no place to give back
    call     the call's record gets the time of the visit; None for a copy, which has no record
    work     done in place of the delivery: the worker prepares the request for another one. None usually
    request  that the worker is sent in place of the call's own; None for that one
    repeated  set if the worker goes on with a stream: the end of its text, which the worker may repeat
    outcome  None until the pool has learned it
    exchange  the response under way, closed with the visit
    error    that ended the visit, or its stream; else None
    moving   the error by which the request leaves the worker, from outside; else None
    beside   a second worker that was asked the same
    produced_before  output of the client's stream before this visit
    first_output_at  seconds of the monotonic clock; None without output of a stream
    """

    # Attributes that most visits never set stand in the class: a slot would be written for each visit.
    __slots__ = (
        "__dict__",
        "_began",
        "_call",
        "_generation",
        "_pool",
        "_routing",
        "_transport",
        "exchange",
        "outcome",
        "worker",
    )

    work: Callable[[Call, Visit], Awaitable[None]] | None = None
    request: Request | None = None
    repeated: str | None = None
    beside: Visit | None = None
    produced_before = 0
    first_output_at: float | None = None
    error: GatewayError | None = None
    moving: GatewayError | None = None

    def __init__(
        self,
        pool: Pool,
        worker: WorkerHandle,
        routing: RoutingFacts | None,
        transport: Transport,
        call: Call | None = None,
        work: Callable[[Call, Visit], Awaitable[None]] | None = None,
    ) -> None:
        self.worker = worker
        if work is not None:
            self.work = work
        self.outcome: Literal["succeeded", "failed", "abandoned"] | None = None
        self._routing = routing
        self._pool = pool
        self._transport = transport
        self._call = call
        self._generation = worker.generation
        self.exchange: Exchange | None = None
        if call is not None:
            call.visit = self
            if call.lane is not None and call.lane.produced:
                self.produced_before = call.lane.produced
            self._began = call.counted = call.runtime.clock()

    # -- what the worker is asked -----------------------------------------------------------------------------------

    def send(self, request: Request, deadlines: Deadlines) -> Awaitable[Exchange]:
        """Has the worker's response once its head is there. Give it to `exchange`: the visit closes it. Raises
        GatewayError as `Transport.send` does."""
        if (renaming := self.worker.renaming) is not None:
            return self._send_renamed(request, renaming, deadlines)
        return self._transport.send(request, self.worker.address, deadlines)

    async def _send_renamed(self, request: Request, renaming: Renaming, deadlines: Deadlines) -> Exchange:
        return await self._transport.send(await self._named(request, renaming), self.worker.address, deadlines)

    async def ask(self, request: Request, deadlines: Deadlines, limit: int, fault: Fault | None = None) -> Response:
        """Returns the worker's whole response, of at most `limit` bytes. fault makes the error of a status other than
        200; without one any status is an answer. Raises GatewayError."""
        if (renaming := self.worker.renaming) is not None:
            request = await self._named(request, renaming)
        exchange = await self._transport.send(request, self.worker.address, deadlines)
        try:
            if fault is not None and exchange.status != 200:
                raise await error_of(exchange, fault)
            return Response(exchange.status, exchange.headers, await exchange.body(limit))
        finally:
            exchange.close()

    async def _named(self, request: Request, renaming: Renaming) -> Request:
        """The request with the worker's own name for the model."""
        if len(request.body) <= AT_ONCE or self._call is None:
            return renaming.apply(request)
        return await run_step(self._call.share, renaming.apply, request)

    @property
    def ejected(self) -> bool:
        """The worker was left out after the visit had begun. To answer its requests elsewhere adds no load, and
        ejections bound how often that happens."""
        return self.worker.generation != self._generation

    @property
    def count(self) -> int:
        """The number of its attempt: at this model, in this round."""
        call = self._call
        assert call is not None
        return call.record.attempts - call.attempts_before - (self.beside is not None)

    # -- the outcome: the first one counts --------------------------------------------------------------------------

    def answered(self) -> None:
        """The reply has begun. Call it if the worker is half open."""
        self._pool.answered(self.worker, self._generation)

    def succeeded(self) -> None:
        if self.outcome is None:
            self.outcome = "succeeded"
            self._pool.succeeded(self.worker, self._generation, self._routing is not None)

    def failed(self, error: GatewayError) -> None:
        self.error = error
        if error.code == LEAVING:
            self.abandoned()  # the worker is not at fault
        elif self.outcome is None:
            self.outcome = "failed"
            if self._call is not None and error.why is not None:
                self._call.name_reasons(error.why)
            self._pool.failed(self.worker, self._generation, error)

    def abandoned(self) -> None:
        """The visit ends in a way that says nothing about the worker."""
        if self.outcome is None:
            self.outcome = "abandoned"
            self._pool.abandoned(self.worker, self._generation)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        call = self._call
        routing = self._routing
        moved = None
        if self.exchange is not None:
            self.exchange.close()
        if call is not None:
            call.visit = None
            if routing is not None and self.work is None:
                self._waited(call, error, routing)
        if error is None:
            self.succeeded()
        elif isinstance(error, GatewayError):
            self.failed(error)
        elif (moved := self._moved(error)) is not None:
            self.failed(moved)
        else:
            self.abandoned()
        if routing is not None:
            self._pool.release(self.worker, routing)
        if call is not None:
            now = call.runtime.clock()
            call.record.upstream_ms += milliseconds((call.reply_at or now) - self._began)
            call.counted, call.reply_at = now, None
        if moved is not None:
            raise moved from None

    def _waited(self, call: Call, error: BaseException | None, routing: RoutingFacts) -> None:
        """The pool learns how long the client waited for the first byte of the reply, or that it left without one."""
        record, now = call.record, call.runtime.clock()
        first_ms = record.time_to_first_token_ms
        first = call.began + first_ms / 1000 if first_ms is not None else call.reply_at
        left = isinstance(error, CancelledError) and call.reply.client.gone and call.interrupted is None
        if error is None or left:
            most = 0 if record.stream else getattr(call.op, "max_output", 0)
            seconds = max(0.0, (now if first is None else first) - self._began)
            like = record.operation, record.stream, inf if most is None else most
            self._pool.waited(self.worker, routing, like, seconds, not left or first is not None)

    def _moved(self, error: BaseException) -> GatewayError | None:
        """Why the request goes to another worker, if `error` is the cancellation by which it leaves this one."""
        call = self._call
        if self.moving is None or call is None or not isinstance(error, CancelledError):
            return None
        task = current_task()
        if task is None or call.interrupted is not None or call.reply.client.gone:
            return None  # the request was cancelled after that, too
        task.uncancel()
        return self.moving


async def error_of(exchange: Exchange, fault: Fault) -> GatewayError:
    """The error that a response of another status than 200 is. Raises GatewayError if the response breaks off."""
    return fault(Response(exchange.status, exchange.headers, await exchange.body(_MAX_ERROR_BYTES)))
