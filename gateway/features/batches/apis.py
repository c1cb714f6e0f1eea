"""The parts that the APIs of files and of batches share, whichever dialect they belong to."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from gateway.auth import Absent, Principal
from gateway.config import Batches
from gateway.core.byte_budget import ByteBudget, Held
from gateway.core.errors import Busy, GatewayError
from gateway.core.http import Route
from gateway.features.batches.api_call import Answer, ApiCall
from gateway.features.batches.slots import Slots
from gateway.features.batches.state import BatchStore, Full, KindOfBatch, Spec, State, StoredBatch, StoredFile, made
from gateway.features.batches.storage import Storage, aside, opened
from gateway.kernel import Endpoint

_AT_ONCE = 4
"""Uploads of one tenant to one process: what is not whole yet counts as no file."""


class Uploads(Counter[str]):
    """Tenant -> its bodies that are not whole yet, files and batches."""

    def __init__(self) -> None:
        super().__init__()
        self._room = ByteBudget()

    @contextlib.contextmanager
    def one(self, call: ApiCall, held: int) -> Iterator[None]:
        """The body of `call`, of which `held` bytes are in memory at most; all bodies together have as many as those of
        other requests. Raises Busy if its owner has too many, GatewayError(OVERLOADED) if memory has no room."""
        owner, room = call.principal.tenant, self._room
        if self[owner] >= _AT_ONCE:
            raise Busy(f"no more than {_AT_ONCE} uploads may be under way at once", "too_many_uploads", 1.0)
        bodies = call.runtime.body_budget
        room.limit, room.share = bodies.limit, bodies.share
        mine = Held(room, owner)
        mine.require(min(held, room.limit, call.announced or held))
        self[owner] += 1
        try:
            yield
        finally:
            mine.resize(0)
            self[owner] -= 1
            if not self[owner]:
                del self[owner]


class Shared(NamedTuple):
    """The parts that the batches of one gateway share, and their APIs.

    came    set when there is a new batch
    slots   of lines at workers, of all batches
    ends    batches whose results may be put together at once: parts of them are in memory
    called  returns the endpoint that lines call at a path, by the configuration in force; None if it is not offered
    caller  returns the caller of a batch, as keys are now. Raises GatewayError if it may not call any more
    count_lines  called with the API, what became of lines, and how many
    log     called with a level, an event and facts
    """

    options: Batches
    store: BatchStore
    storage: Storage
    uploads: Uploads
    came: asyncio.Event
    slots: Slots
    ends: asyncio.Semaphore
    called: Callable[[str], Endpoint | None]
    caller: Callable[[Absent, str], Principal]
    count_lines: Callable[[str, str, int], None]
    log: Callable[..., None]


class Api:
    """One API. The method that answers a route has the route's name."""

    routes: ClassVar[Sequence[Route]]

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._options, self._store, self._storage = shared.options, shared.store, shared.storage

    @property
    def answers(self) -> Mapping[str, Answer]:
        return {route.name: getattr(self, route.name) for route in self.routes}

    async def _send(self, call: ApiCall, found: StoredFile | None, kind: bytes) -> None:
        """Answers with the bytes of a file, None for one that is gone. kind: their content type."""
        if found is None:
            raise call.missing()
        try:
            file = await opened(partial(self._storage.open, found.id))
        except FileNotFoundError:
            raise call.missing() from None
        with file:
            await call.respond_file(file, found.bytes, [(b"content-type", kind)])


class BatchApi(Api):
    """One API of batches."""

    kind: ClassVar[KindOfBatch]

    def shown(self, batch: StoredBatch) -> dict[str, Any]:
        """A batch as this API shows it."""
        raise NotImplementedError

    async def batch(self, call: ApiCall) -> None:
        await call.respond(self.shown(await self._find(call)))

    async def _find(self, call: ApiCall) -> StoredBatch:
        """The batch in the path. Raises GatewayError(NO_ROUTE) if its caller has none of this id."""
        found = await self._store.batch(call.id)
        if found is None or found.spec.kind != self.kind or not call.principal.owns(found.spec.owner, made(call.id)):
            raise call.missing()
        return found

    def _spec(self, call: ApiCall, id_: str, endpoint: str, file: str, size: int, window: str, seconds: float) -> Spec:
        """A new batch of the caller's. file: that its lines come from, of `size` bytes. window: as it was asked for;
        seconds: how long that is."""
        who, now = call.principal, time.time()
        return Spec(
            id=id_,
            kind=self.kind,
            owner=who.tenant,
            key=who.key,
            team=who.team,
            models=call.token_models,
            endpoint=endpoint,
            input=file,
            window=window,
            created=now,
            ends=now + seconds,
            bytes=size,
            identity=who.identity,
        )

    async def _add(self, call: ApiCall, spec: Spec, state: State) -> None:
        """Adds a batch whose lines are in the folder, to the end even if its client leaves, and answers with it. Raises
        Full and GatewayError. Redis may have the batch although it did not answer: its lines stay then, until the
        sweep."""
        try:
            call.call.confirm()
        except GatewayError:
            await aside(self._storage.remove, (f"{spec.id}.input",))
            raise

        async def add() -> None:
            try:
                await self._store.add_batch(spec, state, self._options)
            except Full:
                await aside(self._storage.remove, (f"{spec.id}.input",))
                raise
            self._shared.came.set()

        await asyncio.shield(add())
        await call.respond(self.shown(StoredBatch(spec, state, None)))
