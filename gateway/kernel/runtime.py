"""The parts that all requests of one configuration share, and the requests under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from gateway.auth import ANONYMOUS, KnownKeys, PendingAuth, Principal
from gateway.config import Aliases, Relay
from gateway.core.byte_budget import UNOWNED, ByteBudget
from gateway.core.http import Headers
from gateway.core.messages import Op
from gateway.core.ports import Observer, ResponseStore
from gateway.kernel.client import Scope
from gateway.kernel.models import ServedModel

if TYPE_CHECKING:
    from gateway.kernel.call import Call
    from gateway.kernel.delivery import Delivery
    from gateway.kernel.way import Way


class ActiveRequests:
    """The requests under way. draining: the gateway is shutting down, and lists of models call no model ready."""

    def __init__(self) -> None:
        self.draining = False
        self.requests: set[Call] = set()
        self._emptied: list[asyncio.Future[None]] = []

    def discard(self, request: Call) -> None:
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


class Retries(Struct, frozen=True):
    """Bounds on the workers that one request is sent to.

    attempts: workers that one request may be sent to. spend: takes from the retry budget, and returns whether a
    retry may be made; earn feeds it. wait_s: for how long a request that has lost its worker waits for one to return.
    """

    attempts: int
    earn: Callable[[], None]
    spend: Callable[[], bool]
    wait_s: float


class Budgets(Struct, frozen=True):
    """The bytes, beside those of bodies, that all requests hold together.

    uploads: on the disk. continuations: of requests and replies of streams that another worker may go on with.
    sessions: of the last responses of web sockets."""

    uploads: ByteBudget
    continuations: ByteBudget
    sessions: ByteBudget


class Callers(NamedTuple):
    """Identifies callers, and what they may use, by the keys as they are now.

    identify  (request headers, dialect's name, ASGI scope) -> who is calling. Without a scope no network is a key's
    confirm   (caller, request headers, dialect's name) -> the caller as it is now; raises GatewayError if it may not
              call any more
    may_use   (caller as it is now, name of a model) -> whether it may use that model
    """

    identify: Callable[[Headers, str, Scope | None], PendingAuth]
    confirm: Callable[[Principal, Headers, str], Principal]
    may_use: Callable[[Principal, str], bool]


class Runtime(Struct):
    """The parts that all requests of one configuration share.

    models           by every name that clients may use, aliases included
    patterns         the models of further names, by patterns
    callers          identifies who calls; another object once keys have changed
    extension        where the server's `Client` is in `scope["extensions"]`
    relay            bounds of replies, and the seconds of silence after which a streaming client gets a keep-alive
    body_budget      for large request bodies
    budgets          of other bytes
    clock            monotonic seconds
    estimate         tokens of a prompt whose length no worker counted
    network          the network of a request's client, by its ASGI scope; None if it is unknown
    known            recognises keys where none belongs
    way              of each request, until its model is known
    deliveries       how replies pass, by the class of the operation
    receive_form     reads the body of an upload
    response_store   what clients may refer to later; None if nothing is stored
    """

    models: Mapping[str, ServedModel]
    patterns: Aliases
    callers: Callers
    observer: Observer
    extension: str
    max_body_bytes: int
    relay: Relay
    body_budget: ByteBudget
    budgets: Budgets
    retries: Retries
    clock: Callable[[], float]
    active: ActiveRequests
    estimate: Callable[[Op], int]
    network: Callable[[Any], str | None]
    known: KnownKeys
    way: Way
    deliveries: Mapping[type, Delivery]
    receive_form: Callable[[Call], Awaitable[None]]
    response_store: ResponseStore | None = None

    def owner(self, principal: Principal, scope: Scope) -> str:
        """The owner that the room of a request is counted to: the tenant of `principal`, or the network of a caller
        who shows no key."""
        if principal.key != ANONYMOUS.key:
            return principal.tenant
        network = self.network(scope)
        return UNOWNED if network is None else f"address {network}"
