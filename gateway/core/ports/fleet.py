"""Workers, the pool that picks one, and the transport to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from gateway.core.demand import Demand
from gateway.core.errors import GatewayError
from gateway.core.http import Headers, Request
from gateway.core.messages import Op


class Deadlines(Struct, frozen=True):
    """Seconds that may pass: until connected, until the first byte of the response head, between blocks of the body."""

    connect: float = 2.0
    first_byte: float = 600.0
    idle: float = 300.0


class BodySink(Protocol):
    """Receives a response body as it arrives."""

    def block(self, data: bytes) -> None: ...
    def finished(self, error: GatewayError | None) -> None:
        """Called exactly once, after the last block. error is None when the body was whole by its own framing."""
        ...


class Exchange(Protocol):
    """One response under way. Read it by `read`/`body` (pull) or by `pipe` (push), never both."""

    status: int
    headers: Headers

    async def read(self) -> bytes:
        """The next block; b"" once the body is whole. Raises GatewayError (UPSTREAM, TRUNCATED, TIMEOUT)."""
        ...

    async def body(self, limit: int) -> bytes:
        """The whole body; raises GatewayError(UPSTREAM) over `limit` bytes."""
        ...

    def pipe(self, sink: BodySink) -> None:
        """Sends every block to `sink` from now on, those already buffered first. `sink` is called in the event loop."""
        ...

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None:
        """Returns the connection to the pool if the response is whole, else closes it at once. Idempotent."""
        ...


class Transport(Protocol):
    async def send(self, request: Request, address: str, deadlines: Deadlines) -> Exchange:
        """Sends to the worker at `address` (scheme://host:port[/base]) and waits for the response head.

        Raises GatewayError: UPSTREAM (refused, reset, malformed), TIMEOUT. Cancelling it closes the connection.
        """
        ...

    async def close(self) -> None: ...


class WorkerHandle(Protocol):
    """One worker, as the pipeline sees it.

    generation  of the worker's breaker. A request notes it at its start and gives it to the pool with its outcome
    half_open   the worker was ejected and is being tried again: call the pool's `answered` when the reply begins
    """

    address: str

    @property
    def generation(self) -> int: ...
    @property
    def half_open(self) -> bool: ...


class Pool(Protocol):
    """The workers of one model; `gateway.fleet` has the one implementation."""

    @property
    def ready(self) -> bool: ...
    @property
    def silent(self) -> Sequence[Any] | None:
        """The workers that do not tell what they have cached; None if none does, or there is no choice."""
        ...

    def demand(self, op: Op, headers: Headers) -> Demand:
        """What `op`, whose client sent these headers, brings to the pick. Takes longer for a longer prompt."""
        ...

    async def acquire(self, exclude: Sequence[Any], priority: int, demand: Demand) -> Any:
        """A `WorkerHandle` that is not in `exclude`, to be given back by `release`. Higher priority waits less.
        `demand` is told why this one. Raises GatewayError (NO_WORKER, OVERLOADED, `Busy`)."""
        ...

    def lend(self, exclude: Sequence[Any]) -> Any:
        """A `WorkerHandle` that is not in `exclude`, for a request that generates nothing. It never waits, takes no
        slot, and is not given back. Raises GatewayError(NO_WORKER)."""
        ...

    def spare(self, exclude: Sequence[Any], demand: Demand) -> Any:
        """A `WorkerHandle` that is free now and not in `exclude`, to be given back by `release`; None if there is none,
        or if requests wait for one."""
        ...

    def release(self, worker: Any, demand: Demand) -> None: ...
    def answered(self, worker: Any, generation: int) -> None:
        """The reply has begun. Call it for half-open workers only."""
        ...

    def succeeded(self, worker: Any, generation: int) -> None:
        """The reply is whole."""
        ...

    def failed(self, worker: Any, generation: int, error: GatewayError) -> None:
        """The attempt ended with `error`. The pool decides by its blame whether it counts against the worker."""
        ...

    def abandoned(self, worker: Any, generation: int) -> None:
        """The request ended in a way that says nothing about the worker: its client left, or the gateway has a bug."""
        ...
