"""The service that a gateway has for files and batches: their APIs, and the work in the background."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush

from gateway.auth import Absent, Principal
from gateway.background import cancel_tasks, keep_running
from gateway.config import Batches, Redis
from gateway.core.errors import GatewayError
from gateway.core.http import Route
from gateway.core.ports import Dialect
from gateway.features import InForce
from gateway.features.batches import anthropic, files, openai
from gateway.features.batches.api_call import Answer, ApiEndpoint
from gateway.features.batches.apis import Shared, Uploads
from gateway.features.batches.overview import Overview
from gateway.features.batches.run import LEASE_S, BatchRun
from gateway.features.batches.slots import Slots
from gateway.features.batches.state import BatchStore, Lost, tenant_of
from gateway.features.batches.storage import Storage, aside
from gateway.kernel import Endpoint, Runtime
from gateway.redis import connect

ROUTES: Mapping[str, tuple[Route, ...]] = {
    "openai": (*files.ROUTES, *openai.ROUTES),
    "anthropic": anthropic.ROUTES,
}
"""Dialect -> the routes of its API that are served here."""
CALLED: Mapping[str, str] = {**openai.ENDPOINTS, anthropic.ENDPOINT: "anthropic"}
"""A path that lines may call -> the dialect that reads them."""

_TIDY_S = 5.0
_SWEEP_S = 3600.0
_AT_ONCE = 500
_LOOK_S = 1.0
MOST_RUNS = 16
"""Batches that one process runs at once."""
_MOST_LEFT = 16
"""Batches beyond them that have left their slots: their last lines end."""
_MOST_ENDS = 2
_REST_S = 10.0
"""A batch that this process could not go on with is left alone for so long."""
_STALLED_REST_S = 300.0
"""A batch that had its slot and could not run takes the slot of another one only so long after that."""


class Batching:
    """It stays over reloads while its options do.

    in_force  returns the configuration in force
    store     describes files and batches, in Redis
    storage   has their bytes
    runs      the batches that this process runs, by id, each with its task
    rests     batches that could not go on -> until when they are left alone, monotonic
    count     called with the API, what became of lines, and how many
    log       called with a level, an event and facts
    """

    def __init__(
        self,
        options: Batches,
        redis: Redis,
        in_force: Callable[[], InForce],
        count: Callable[[str, str, int], None],
        log: Callable[..., None],
    ) -> None:
        self.options = options
        self.redis = redis
        self._in_force = in_force
        self.store = store = BatchStore(redis.namespace, connect(redis), redis.call_s)
        self.runs: dict[str, tuple[BatchRun, asyncio.Task[None]]] = {}
        self.overview = Overview(store, self.runs, log)
        self.storage = storage = _storage(options)
        self._log = log
        self.uploads = Uploads()
        self._came = asyncio.Event()
        slots = Slots(options.max_in_flight)
        ends = asyncio.Semaphore(_MOST_ENDS)
        self._shared = shared = Shared(
            options, store, storage, self.uploads, self._came, slots, ends, self._called, self._caller, count, log
        )
        self._answers: Mapping[str, Mapping[str, Answer]] = {
            "openai": {**files.Files(shared).answers, **openai.OpenAIBatches(shared).answers},
            "anthropic": anthropic.MessageBatches(shared).answers,
        }
        self._tasks: list[asyncio.Task[None]] = []
        self.rests: dict[str, float] = {}
        self._stalled: dict[str, float] = {}
        self._first = 0  # of the batches that have not ended: where to look on
        self._swept_at: float | None = None
        self._draining = False

    def _called(self, path: str) -> Endpoint | None:
        return self._in_force().endpoint(CALLED.get(path, ""), path)

    def _caller(self, who: Absent, dialect: str) -> Principal:
        return self._in_force().caller(who, dialect)

    def endpoint(self, runtime: Runtime, dialect: Dialect, routes: Mapping[str, Route]) -> ApiEndpoint:
        return ApiEndpoint(runtime, dialect, routes, self._answers[dialect.name])

    async def start(self) -> None:
        """Raises OSError if the folder cannot be written to. A bucket may be away for now, as Redis may."""
        if not self._tasks:
            try:
                await aside(self.storage.check)
            except OSError as error:
                if self.options.bucket is None:
                    self._log("error", "folder of batches cannot be used", reason=str(error))
                    raise
                self._log("warning", "bucket away", reason=str(error))
            self._tasks = [asyncio.create_task(one) for one in (self._tidy(), self._look())]

    def drain(self) -> None:
        """Begins nothing any more. Lines under way end as requests do."""
        self._draining = True
        for run, _ in self.runs.values():
            run.leave()

    async def close(self) -> None:
        """Other gateways go on with what is under way."""
        tasks, self._tasks = self._tasks, []
        await cancel_tasks(*tasks, *(task for _, task in self.runs.values()))
        await self.store.close()

    # -- batches ----------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Takes batches that nobody runs."""
        away = False
        while not self._draining:
            self._came.clear()
            with keep_running("batches"):
                try:
                    await self._take()
                except GatewayError as error:
                    if not away:  # a class such as NoPermissionError, without words
                        reason = type(error.__cause__).__name__
                        self._log("warning", "the store of batches is away", reason=reason)
                    away = True
                else:
                    if away:
                        self._log("info", "the store of batches is back")
                    away = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._came.wait()

    async def _take(self) -> None:
        """Those of tenants first of which this process runs the fewest; once it runs as many as it may, in the slot of
        others."""
        now = time.monotonic()
        self.rests = {id_: until for id_, until in self.rests.items() if until > now}
        self._stalled = {id_: until for id_, until in self._stalled.items() if until > now}
        free, self._first = await self.store.open(self._first)
        mine = self._by_tenant()
        found = [
            (len(mine[tenant]), at, id_, tenant)
            for at, (id_, tenant) in enumerate(free)
            if id_ not in self.runs and id_ not in self.rests
        ]
        heapify(found)
        while found and not self._draining:
            few, at, id_, tenant = heappop(found)
            if few < len(mine[tenant]):
                heappush(found, (len(mine[tenant]), at, id_, tenant))
                continue
            full = sum(map(len, mine.values())) >= MOST_RUNS
            if full and (id_ in self._stalled or self._gives_way(few, mine) is None):
                continue
            held = await self.store.take(id_, LEASE_S)
            if held is not None:
                mine = self._by_tenant()
                if full and (run := self._gives_way(few, mine)) is not None:
                    if run.stalled() is not None:
                        self._stalled[run.spec.id] = time.monotonic() + _STALLED_REST_S
                    run.leave()
                run = BatchRun(self._shared, held)
                self.runs[id_] = run, asyncio.create_task(self._run(id_, run))
                mine = self._by_tenant()

    def _by_tenant(self) -> dict[str, list[BatchRun]]:
        """Tenant -> its batches that this process runs and has not left, the newest last."""
        found = defaultdict[str, list[BatchRun]](list)
        for run, _ in self.runs.values():
            if not run.leaves:
                found[tenant_of(run.spec.owner)].append(run)
        return found

    def _gives_way(self, few: int, mine: Mapping[str, list[BatchRun]]) -> BatchRun | None:
        """The run in whose slot a batch may run whose tenant has so `few`: the one that has stalled for the longest,
        or the newest of the tenant with the most. None if all go on."""
        if len(self.runs) >= MOST_RUNS + _MOST_LEFT:
            return None
        stalled = [(waited, at, run) for at, (run, _) in enumerate(self.runs.values()) if (waited := run.stalled())]
        if stalled:
            return max(stalled)[-1]
        most = max(mine.values(), key=len)
        return most[-1] if len(most) > few + 1 else None

    async def _run(self, id_: str, run: BatchRun) -> None:
        try:
            await run.run()
        except (GatewayError, Lost, OSError) as error:
            self.rests[id_] = time.monotonic() + _REST_S
            self._log("warning", "batch left", batch=id_, reason=str(error) or type(error).__name__)
        except Exception:
            self.rests[id_] = time.monotonic() + _REST_S
            with keep_running("a batch"):
                raise
        finally:
            del self.runs[id_]

    # -- what is past -------------------------------------------------------------------------------------------------

    async def _tidy(self) -> None:
        while True:
            # While Redis is away, what is past stays past.
            with keep_running("files of batches"), contextlib.suppress(GatewayError):
                await self._forget()
            await asyncio.sleep(_TIDY_S)

    async def _forget(self) -> None:
        """Removes what is past its time, and from time to time what gateways that died have left."""
        for kind, id_ in await self.store.past():
            if kind == "file" and (file := await self.store.file(id_)) is not None:
                await self.store.drop_file(file)
            elif kind == "batch" and (batch := await self.store.batch(id_)) is not None:
                await self.store.drop_batch(batch.spec)
            await aside(self.storage.remove, (id_, f"{id_}.input"))
            await self.store.forget(kind, id_)
        now = time.monotonic()
        if self._swept_at is None or now >= self._swept_at + _SWEEP_S:
            self._swept_at = now
            await self._sweep()

    async def _sweep(self) -> None:
        found = 0
        old = list((await aside(self.storage.old, self.options.keep_s)).items())
        for at in range(0, len(old), _AT_ONCE):
            some = old[at : at + _AT_ONCE]
            # Old files of what is described are needed: a batch may run for longer than files are kept.
            known = await self.store.known([id_ for _, id_ in some])
            unknown = [path for path, id_ in some if id_ not in known]
            await aside(self.storage.discard, unknown)
            found += len(unknown)
        if found:
            self._log("info", "leftovers of batches removed", files=found)


def _storage(options: Batches) -> Storage:
    if options.bucket is not None:
        from gateway.features.batches.bucket import Bucket  # imports an extra

        return Bucket(options.bucket)
    from gateway.features.batches.disk import Directory

    return Directory(options.directory or "")
