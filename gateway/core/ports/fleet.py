"""Workers, the pool that picks one, and the transport to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar

from msgspec import Struct

from gateway.core.errors import GatewayError
from gateway.core.http import Headers, Request
from gateway.core.messages import Op
from gateway.core.renaming import Renaming
from gateway.core.routing_facts import RoutingFacts


class Moves(Struct, frozen=True):
    """Seconds after which a request that waits for its worker goes to another one; None for never.

    first_token  of a stream without a token, and of what is computed in one step
    unstreamed   of a generated reply that is not streamed
    """

    first_token: float | None
    unstreamed: float | None


class Deadlines(Struct, frozen=True):
    """Seconds that may pass: until connected, until the first byte of the response head, between blocks of the body.
    moves: until another worker is asked, which the transport does not watch over; None for never."""

    connect: float = 2.0
    first_byte: float = 600.0
    idle: float = 300.0
    moves: Moves | None = None


class BodySink(Protocol):
    """Receives a response body as it arrives."""

    def block(self, data: bytes) -> None: ...
    def finished(self, error: GatewayError | None) -> None:
        """Called exactly once, after the last block. error is None when the body was whole by its own framing."""


class Exchange(Protocol):
    """One response under way. Read it by `read`/`body` (pull) or by `pipe` (push), never both."""

    status: int
    headers: Headers

    async def read(self) -> bytes:
        """The next block; b"" once the body is whole. Raises GatewayError (UPSTREAM, TRUNCATED, TIMEOUT)."""

    async def body(self, limit: int) -> bytes:
        """The whole body; raises GatewayError(UPSTREAM) over `limit` bytes."""

    def pipe(self, sink: BodySink) -> None:
        """Sends every block to `sink` from now on, those already buffered first. `sink` is called in the event loop."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None:
        """Returns the connection to the pool if the response is whole, else closes it at once. Idempotent."""


class Transport(Protocol):
    async def send(self, request: Request, address: str, deadlines: Deadlines) -> Exchange:
        """Sends to the worker at `address` (scheme://host:port[/base]) and waits for the response head.

        Raises GatewayError: UPSTREAM (refused, reset, malformed), TIMEOUT. Cancelling it closes the connection.
        """

    async def close(self) -> None: ...


class WorkerHandle(Protocol):
    """One worker, as the kernel sees it.

    generation  of the worker's breaker. A request notes it at its start and gives it to the pool with its outcome
    half_open   the worker was ejected and is being tried again: call the pool's `answered` when the reply begins
    renaming    gives requests the name of the model that it serves; None if they have it
    served_as   the name by which it serves the model, if that is another one than it was taken to; else None
    suspected   a request to it has failed, or a probe, and since then it has not answered a probe; not one that is down
    """

    address: str
    renaming: Renaming | None
    served_as: str | None
    suspected: bool

    @property
    def generation(self) -> int: ...
    @property
    def half_open(self) -> bool: ...


W = TypeVar("W", bound=WorkerHandle)


class WorkerPool(Protocol[W]):
    """The workers of one model; `gateway.fleet` implements it for its own class of workers."""

    @property
    def ready(self) -> bool: ...
    @property
    def without_cache_events(self) -> frozenset[W] | None:
        """The workers that do not publish what they have cached; None if no worker does, or there is no choice."""

    @property
    def suspects(self) -> Sequence[W]:
        """The workers that are suspected."""

    def routing(self, op: Op, headers: Headers) -> RoutingFacts:
        """Reads from `op`, whose client sent these headers, what the pick needs. Takes longer for a longer prompt."""

    async def acquire(self, exclude: Sequence[W], priority: int, routing: RoutingFacts) -> W:
        """Returns a worker that is not in `exclude`, to be given back by `release`. A higher priority waits less.
        Writes the reason of the pick into `routing`. Raises GatewayError (NO_WORKER, OVERLOADED, `Busy`)."""

    def borrow(self, exclude: Collection[W]) -> W:
        """Returns a worker that is not in `exclude`, for a request that generates nothing. It never waits, takes no
        slot, and is not given back. Raises GatewayError(NO_WORKER)."""

    def try_acquire(self, exclude: Collection[W], routing: RoutingFacts) -> W | None:
        """Returns a worker that is free now and not in `exclude`, to be given back by `release`; None if there is none,
        or if requests wait for one."""

    def may_serve(self, exclude: Collection[W]) -> bool:
        """Whether a worker that is not in `exclude` serves requests now, perhaps after a wait, and is not suspected."""

    def release(self, worker: W, routing: RoutingFacts) -> None: ...
    def answered(self, worker: W, generation: int) -> None:
        """The reply has begun. Call it for half-open workers only."""

    def succeeded(self, worker: W, generation: int, generated: bool) -> None:
        """The reply is whole. generated: the worker's model has made it, not its web server alone."""

    def failed(self, worker: W, generation: int, error: GatewayError) -> None:
        """The attempt ended with `error`. The pool decides by its blame whether it counts against the worker."""

    def abandoned(self, worker: W, generation: int) -> None:
        """The request ended in a way that says nothing about the worker: its client left, or the gateway has a bug."""

    def waited(
        self, worker: W, routing: RoutingFacts, like: tuple[str, bool, float], seconds: float, answered: bool
    ) -> None:
        """A client waited so long for the first byte of a reply, or left without it. like: the operation, whether it
        was streamed, and else the most tokens of output that it asked for. Call it before the outcome."""


Pool = WorkerPool[WorkerHandle]
"""The pool as the kernel sees it, which returns to a pool only workers that it got from that pool."""
