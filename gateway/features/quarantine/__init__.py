"""Requests that killed workers: after two deaths a request is sent to no other worker, and is refused for a while.

A worker counts as having died of a request if

    its connection broke after the request was sent, or it answered 5xx (503 aside), before any output, and
    its health probe, made at once, then finds no server at its address

A connection that breaks while its worker goes on is not enough, nor is a worker that is only slow, nor a request that a
worker refused. The gateway cannot know which of the requests on a worker killed it: each is noted with that death, and
those that were there at two deaths are held. A request that is answered in between is cleared: if many clients send the
same prompt, some are under way whatever a worker dies of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from hashlib import blake2b
from math import ceil
from typing import Any, TypeVar

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import Request
from gateway.core.ports import WorkerHandle
from gateway.features import Built, Parts
from gateway.kernel.call import Call
from gateway.kernel.feature import Attempt, Failure, Feature, Step
from gateway.kernel.visit import FEW, Visit
from gateway.offload import AT_ONCE, offload

V = TypeVar("V")
DeathOf = Callable[[str, WorkerHandle], Awaitable[object | None]]

_DEATHS = 2
CODE = "request_quarantined"
MOST = 4096
"""Requests that are remembered, of those noted and of those held: some 400 bytes each. The oldest are forgotten."""


class Quarantine(Feature):
    """The requests of one gateway.

    hold_s   seconds for which one is refused, and for which a death is remembered
    held     digests of requests -> until when they are refused
    noted    digests of requests -> when they were noted last, and the deaths. Empty, as `held`, nearly always
    notes    under way: whether the worker of an attempt died
    death_of probes a worker of a model now, and returns what names its death, None if it lives
    on_held  called with (model, digest in hexadecimal) when a request is held from now on
    clock    monotonic seconds
    """

    def __init__(
        self,
        hold_s: float,
        death_of: DeathOf,
        on_held: Callable[[str, str], None],
        clock: Callable[[], float],
    ) -> None:
        self.hold_s = hold_s
        self.held: dict[bytes, float] = {}
        self.death_of = death_of
        self._on_held = on_held
        self._clock = clock
        self.noted: dict[bytes, tuple[float, frozenset[object]]] = {}
        self._probes: dict[WorkerHandle, asyncio.Task[object | None]] = {}
        self.notes: set[asyncio.Task[None]] = set()

    def looks_deadly(self, error: GatewayError) -> bool:
        """As the function of this name, for features that send requests of their own."""
        return looks_deadly(error)

    def suspect(self, model: str, worker: WorkerHandle, request: Request) -> asyncio.Task[None]:
        """An attempt for `request`, a client's, ended as if its worker had died. The task ends when it is known whether
        it did; the request need not wait for it."""
        loop = asyncio.get_running_loop()
        probe = self._probes.get(worker)
        if probe is None:  # one for all requests that the worker had
            probe = self._probes[worker] = loop.create_task(self._probe(model, worker))
        return self._begin(self._note(model, probe, request))

    def _begin(self, step: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(step)
        self.notes.add(task)
        task.add_done_callback(self.notes.discard)
        return task

    async def _probe(self, model: str, worker: WorkerHandle) -> object | None:
        try:
            return await self.death_of(model, worker)
        finally:
            del self._probes[worker]

    async def _note(self, model: str, probe: asyncio.Task[object | None], request: Request) -> None:
        digest = await _digest(request)
        death = await asyncio.shield(probe)
        if death is None:
            return
        now = self._clock()
        before, deaths = self.noted.pop(digest, (now, frozenset()))
        deaths = frozenset((death,)) if now - before > self.hold_s else deaths | {death}
        if len(deaths) < _DEATHS:
            self.noted[digest] = now, deaths
            _bound(self.noted)
        elif digest not in self.held:
            self.held[digest] = now + self.hold_s
            _bound(self.held)
            self._on_held(model, digest.hex())

    # -- the requests that pass -------------------------------------------------------------------------------------

    def around_workers(self, inner: Step) -> Step:
        """Refuses what is held, also if workers of the model before died of it."""

        def workers(call: Call) -> Awaitable[None]:
            suspected = self.held or self in call.notes
            return checked(call) if suspected and call.delivery.takes_slot else inner(call)

        async def checked(call: Call) -> None:
            deaths = call.notes.get(self, ())
            if len(deaths) >= _DEATHS:
                await self._judge(call, deaths)
            await self._check_held(call)
            await inner(call)

        return workers

    def around_attempt(self, inner: Attempt) -> Attempt:
        """Notes the attempts of which workers may have died, and clears what is answered. Behind a worker that prepares
        the request no `failure` is reached: after two deaths this refuses it."""

        async def attempt(call: Call, visit: Visit) -> None:
            if self.noted or self.held or call.keeps_body:
                call.keeps_body = bool(self.noted or self.held)  # a request is known by a hash of its body
            try:
                await inner(call, visit)
            except GatewayError as error:
                self._failed(call, visit, error)
                deaths = call.notes.get(self, ())
                if visit.work is not None and len(deaths) >= _DEATHS:
                    visit.failed(error)
                    await asyncio.wait(deaths)
                    await self.refuse_held(_known_by(call))
                raise
            if (self.noted or self.held) and visit.work is None and call.delivery.takes_slot:
                self._clear_soon(_known_by(call))

        return attempt

    def around_failure(self, inner: Failure) -> Failure:
        """After two deaths the request goes to no other worker."""

        async def failure(call: Call, visit: Visit, error: GatewayError) -> bool:
            again = await inner(call, visit, error)
            deaths = call.notes.get(self, ())
            if again and len(deaths) >= _DEATHS:
                await self._judge(call, deaths)
            return again

        return failure

    async def _judge(self, call: Call, deaths: Sequence[asyncio.Task[None]]) -> None:
        """Raises GatewayError, as `refuse_held` does, once it is known which of `deaths` were some."""
        since = call.runtime.clock()
        await asyncio.wait(deaths)
        call.waited(since)
        await self.refuse_held(_known_by(call))

    def _failed(self, call: Call, visit: Visit, error: GatewayError) -> None:
        if not call.delivery.takes_slot:
            return
        # Most streams that a worker's death breaks have nothing to do with it. One that breaks again at once may have.
        few = FEW if visit.produced_before and call.reply.committed else 0
        known_by = _known_by(call)
        failures = [(visit, error)]
        if visit.beside is not None and visit.beside.error is not None:
            failures.append((visit.beside, visit.beside.error))
        for one, why in failures:
            if one.outcome not in (None, "failed") or not looks_deadly(why):
                continue
            if known_by.body and (call.lane is None or call.lane.produced - visit.produced_before <= few):
                death = self.suspect(call.record.model, one.worker, known_by)
                call.notes.setdefault(self, []).append(death)

    # -----------------------------------------------------------------------------------------------------------------

    async def _check_held(self, call: Call) -> None:
        if not self.held:
            return
        await self.refuse_held(call.reply.request)
        if not call.outgoing.unmeasured:
            await self.refuse_held(_as_sent(call))

    def _clear_soon(self, request: Request) -> None:
        if request.body:
            self._begin(self.clear(request))

    async def clear(self, request: Request) -> None:
        """A worker has answered `request`."""
        self._expire()
        if self.noted or self.held:
            digest = await _digest(request)
            self.noted.pop(digest, None)
            self.held.pop(digest, None)

    def _expire(self) -> None:
        """Forgets what is over, so that bodies are looked at only while there is something to find."""
        now = self._clock()
        while self.noted and (oldest := next(iter(self.noted.items())))[1][0] + self.hold_s < now:
            del self.noted[oldest[0]]
        while self.held and (first := next(iter(self.held.items())))[1] <= now:
            del self.held[first[0]]

    async def refuse_held(self, request: Request) -> None:
        """Raises GatewayError(UPSTREAM, code CODE) if `request` is held."""
        self._expire()
        left = self.held.get(await _digest(request), 0.0) - self._clock() if self.held else 0.0
        if left > 0:
            # No 4xx: the request may only have been beside what its workers died of.
            refusal = GatewayError(
                Kind.UPSTREAM,
                f"two workers died while they had this request; it is refused for {ceil(left)} s",
                code=CODE,
                retry_after=left,
                blame=Blame.US,
                retryable=False,
            )
            refusal.final = True
            raise refusal


def _known_by(call: Call) -> Request:
    """A request is known by what its client sent. A stream that goes on keeps only the worker's request."""
    return call.reply.request if call.reply.request.body else _as_sent(call)


def _as_sent(call: Call) -> Request:
    return Request("POST", call.reply.request.path, [], call.outgoing.request.body)


def looks_deadly(error: GatewayError) -> bool:
    """Whether an attempt that ended with `error` ended as it does when its worker dies, if there was no output."""
    return error.broke or (error.kind is Kind.UPSTREAM and (error.upstream or 0) >= 500)


def _bound(found: dict[bytes, V]) -> None:
    while len(found) > MOST:
        del found[next(iter(found))]


async def _digest(request: Request) -> bytes:
    """The digest of what a client sent. Its path may name the model.

    All of the body is hashed: of two long prompts that differ in a few words one may be deadly.
    """
    key = blake2b(request.path.encode(), digest_size=16).digest()
    body = request.body
    return _hash(body, key) if len(body) <= AT_ONCE else await offload(_hash, body, key)


def _hash(body: bytes, key: bytes) -> bytes:
    return blake2b(body, digest_size=16, key=key).digest()


def build(parts: Parts) -> Built | None:
    hold_s, log, counts = parts.config.breaker.quarantine_s, parts.log, parts.metrics.quarantined
    if not hold_s:
        return None

    def held(model: str, digest: str) -> None:
        counts.labels(model).inc()
        log.event("warning", "request quarantined", model=model, digest=digest)

    before: Quarantine | None = parts.earlier_services.get("quarantine")
    quarantine = before or Quarantine(hold_s, parts.death_of, held, time.monotonic)
    parts.offers.deaths = quarantine

    def take_effect() -> None:
        quarantine.hold_s = hold_s

    return Built((quarantine,), service=quarantine, take_effect=take_effect)
