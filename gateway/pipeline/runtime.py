"""What every request of one configuration shares, and which requests are under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from gateway.auth import KnownKeys, PendingAuth
from gateway.core.byte_budget import ByteBudget
from gateway.core.errors import GatewayError
from gateway.core.http import Headers
from gateway.core.messages import Op
from gateway.core.ports import Gate, Observer
from gateway.pipeline.caps import Caps
from gateway.pipeline.guard import Guard
from gateway.pipeline.models import ServedModel
from gateway.pipeline.response_store import ResponseStore
from gateway.pipeline.watch import NOBODY, Watchers

if TYPE_CHECKING:
    from gateway.pipeline.call import Stage


class ActiveRequest(Protocol):
    """One request under way."""

    def interrupt(self, error: GatewayError) -> None:
        """Ends the request with `error`, told to the client in its dialect."""
        ...


class ActiveRequests:
    """The requests under way. draining: the gateway is shutting down, and lists of models call no model ready."""

    def __init__(self) -> None:
        self.draining = False
        self.requests: set[ActiveRequest] = set()
        self._emptied: list[asyncio.Future[None]] = []

    def add(self, request: ActiveRequest) -> None:
        self.requests.add(request)

    def discard(self, request: ActiveRequest) -> None:
        self.requests.discard(request)
        if not self.requests:
            for future in self._emptied:
                if not future.done():
                    future.set_result(None)
            self._emptied.clear()

    async def empty(self, timeout_s: float | None) -> None:
        """Returns when none is under way, or after `timeout_s`."""
        if self.requests and (timeout_s is None or timeout_s > 0):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._emptied.append(future)
            await asyncio.wait([future], timeout=timeout_s)


class Runtime(Struct):
    """What every request of one configuration shares.

    models           by every name that clients may use, aliases included
    identify         (request headers, dialect's name) -> who is calling
    extension        where the server's `Downstream` is in `scope["extensions"]`
    max_reply_bytes  of a whole reply, and of what is kept of a stream
    keepalive_s      seconds of silence after which a streaming client is sent a keep-alive; 0 for never
    body_budget      for large request bodies
    attempts         workers that one request may be sent to
    may_retry        spends from the retry budget, and says whether a retry may be made; `earn` feeds it
    clock            monotonic seconds
    guard            refuses requests while this process cannot keep up
    caps             what single keys may hold open
    estimate         tokens of a prompt whose length no worker told
    address          the address of a request's client, by its ASGI scope; None if it is unknown
    known            recognises keys where none belongs
    gate             limits; None when there are none
    watchers         of each request, until its model is known
    stages           that each request passes once it is written for a worker, before a worker is picked
    response_store            what clients may refer to later; None where nothing is stored
    log_prompt       told of every request's body by (request id, body); None unless the operator asked for it
    """

    models: Mapping[str, ServedModel]
    identify: Callable[[Headers, str], PendingAuth]
    observer: Observer
    extension: str
    max_body_bytes: int
    max_reply_bytes: int
    keepalive_s: float
    body_budget: ByteBudget
    attempts: int
    earn: Callable[[], None]
    may_retry: Callable[[], bool]
    clock: Callable[[], float]
    active: ActiveRequests
    guard: Guard
    caps: Caps
    estimate: Callable[[Op], int]
    address: Callable[[Any], str | None]
    known: KnownKeys
    gate: Gate | None = None
    watchers: Watchers = NOBODY
    stages: tuple[Stage, ...] = ()
    response_store: ResponseStore | None = None
    log_prompt: Callable[[str, bytes], None] | None = None
