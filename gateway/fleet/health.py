"""Health probes. A worker is ready while its health path answers with a status below 500.

A refused connection or a 5xx makes it unready at once, silence or a connection that breaks off after three probes. A
server without that path answers 404, which is a sign of life too. A name server that does not answer does not
make a worker unready.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable, Mapping

from gateway.background import cancel_tasks, keep_running
from gateway.config import Health as HealthOptions
from gateway.core.errors import Blame, GatewayError, causes, out_of_descriptors
from gateway.core.failures import Cause, cause_of
from gateway.fleet.clients import unreachable
from gateway.fleet.handshakes import certificate_of, names_in
from gateway.fleet.worker import Worker

_MISSES = 3
_UNREACHABLE = "unreachable"
_LOCKED = (Cause.KEY_REFUSED, Cause.PROXY_KEY_REFUSED)
# Times what a probe may wait for a connection or a byte, for the whole of it.
_SLOWEST = 3
# How long a server takes to stop listening once it means to (uvicorn: 0.1 s), with a margin.
_ENDING_S = 0.5
_ENDING_PROBES = 3
# How often a worker that is ready is asked what it can do: it may have been replaced between two probes.
_ASKED_AGAIN_S = 60.0


class Health:
    """Probes workers until closed.

    workers    (model, address) -> worker
    get        (model, address, path, seconds) -> the status of the answer to a GET; raises GatewayError
    on_change  called with model and worker after `ready` changed, or why a worker is not ready (`Worker.trouble`)
    ask        asks a worker that becomes ready what it can do, before it takes requests, and one that is ready now and
               then. Returns why it may take none; must not raise
    on_probe   called after every probe with model, worker and the result: a status, or the kind of failure; or None
    unresolved  workers for whose name no name server answered, at the last probe
    """

    def __init__(
        self,
        workers: Mapping[tuple[str, str], Worker],
        options: HealthOptions,
        get: Callable[[str, str, str, float], Awaitable[int]],
        on_change: Callable[[str, Worker], None],
        on_probe: Callable[[str, Worker, str], None] | None = None,
        ask: Callable[[str, Worker], Awaitable[Cause | None]] | None = None,
    ) -> None:
        self._first = dict(workers)
        self._options = options
        self._get = get
        self._on_change = on_change
        self._on_probe = on_probe
        self._ask = ask
        self._wake = {worker: asyncio.Event() for worker in self._first.values()}
        self._tasks: dict[Worker, asyncio.Task[None]] = {}
        self.unresolved: set[Worker] = set()
        self._asked: dict[Worker, float] = {}
        self._closed = False

    async def start(self) -> None:
        """Probes all workers once, concurrently, then continues in the background."""
        await asyncio.gather(*(self._probe(model, worker) for (model, _), worker in self._first.items()))
        for (model, _), worker in self._first.items():
            if worker in self._wake:  # else it has left meanwhile
                self.add(model, worker, probed=True)

    def add(self, model: str, worker: Worker, *, probed: bool = False) -> None:
        """Probes this worker too from now on; the first time at once unless `probed`."""
        if self._closed:
            return
        wake = self._wake.setdefault(worker, asyncio.Event())
        if not probed:
            wake.set()
        self._tasks[worker] = asyncio.create_task(self._watch(model, worker))

    def remove(self, worker: Worker) -> None:
        """Stops probing this worker."""
        self._wake.pop(worker, None)
        self.unresolved.discard(worker)
        self._asked.pop(worker, None)
        task = self._tasks.pop(worker, None)
        if task is not None:
            task.cancel()

    def suspect(self, worker: Worker) -> None:
        """Probes the worker now, because a request to it failed."""
        wake = self._wake.get(worker)
        if wake is not None and not self._closed:
            worker.suspected = True
            wake.set()

    async def is_gone(self, model: str, worker: Worker) -> bool:
        """Whether a probe made now finds no server at the address of the worker, which may have been removed. A server
        that answers 5xx, breaks off or says nothing may be about to end, as vLLM's does when its engine has died: it is
        probed again, a few times. A closed watch finds none gone."""
        for _ in range(_ENDING_PROBES):
            found = "200" if self._closed else await self._probe(model, worker)
            if found == _UNREACHABLE:
                return True
            if found.isdigit() and int(found) < 500:
                break
            await asyncio.sleep(_ENDING_S)
        return False

    async def close(self) -> None:
        self._closed = True
        await cancel_tasks(*self._tasks.values())

    async def _watch(self, model: str, worker: Worker) -> None:
        wake, later = self._wake[worker], asyncio.get_running_loop().call_later
        part = random.random()  # of the first pause: those of many workers end one after the other
        while True:
            # An unready worker is probed more often, so that it serves again soon after it is back.
            # But not one that refuses the gateway's key or password: it may lock out what keeps trying.
            often = not worker.ready and worker.trouble not in _LOCKED
            pause = part * (min(1.0, self._options.interval_s) if often else self._options.interval_s)
            part = 1.0
            timer = later(pause, wake.set)  # a timeout would cost an exception for each probe
            try:
                await wake.wait()
            finally:
                timer.cancel()
            wake.clear()
            with keep_running("health probe"):
                await self._probe(model, worker)

    async def _status(self, model: str, worker: Worker) -> int:
        options, address = self._options, worker.address
        async with asyncio.timeout(_SLOWEST * options.timeout_s):
            try:
                return await self._get(model, address, options.path, options.timeout_s)
            except GatewayError as error:
                # Some servers, uvicorn among them, close a connection that brings plain HTTP to TLS without a word.
                silent = error.broke and error.why is Cause.BROKE_OFF and address.startswith("http:")
                if silent and await self._certificate(worker):
                    error.cause = Cause.NEEDS_TLS
                raise

    async def _certificate(self, worker: Worker) -> bytes:
        """The worker's certificate, in DER; b"" without one. That of a worker behind a proxy is not read: only requests
        go through the proxy, and nothing may go past it."""
        if worker.proxy is not None:
            return b""
        return await certificate_of(worker.address, self._options.timeout_s) or b""

    def _is_to_be_asked(self, worker: Worker) -> bool:
        now = asyncio.get_running_loop().time()
        if worker.ready and now - self._asked.setdefault(worker, now) < _ASKED_AGAIN_S:
            return False
        self._asked[worker] = now
        return True

    async def _probe(self, model: str, worker: Worker) -> str:
        """The status, or the kind of failure."""
        unresolved = False
        try:
            status = await self._status(model, worker)
            ready, found = status < 500, str(status)
            trouble = cause_of(status, None) if status >= 500 else None
            if ready and self._ask is not None and worker in self._wake and self._is_to_be_asked(worker):
                trouble = await self._ask(model, worker)
                ready = trouble is None
        except Exception as error:  # any error counts as no answer, and probing must go on
            found = type(error).__name__ if not isinstance(error, GatewayError) else error.kind.value
            trouble = _trouble(error)
            if unreachable(error):
                unresolved = _unresolved(error)
                found, ready = _UNREACHABLE, worker.ready and unresolved
            elif isinstance(error, TimeoutError) or (isinstance(error, GatewayError) and error.blame is Blame.WORKER):
                # A busy machine is late, and a connection may break off for reasons of the network.
                worker.missed_probes += 1
                ready = worker.ready and worker.missed_probes < _MISSES
            else:
                ready = worker.ready and out_of_descriptors(error)
        else:
            worker.missed_probes = 0
        if worker not in self._wake:  # it was removed: nothing of it may come back
            return found
        (self.unresolved.add if unresolved else self.unresolved.discard)(worker)
        worker.suspected = ready and not found.isdigit()
        if self._on_probe is not None:
            self._on_probe(model, worker, found)
        first, worker.probed = not worker.probed, True
        changed = ready != worker.ready
        if not ready:
            changed, worker.trouble = changed or first or trouble is not worker.trouble, trouble
        elif changed:
            worker.trouble = None
        if changed and trouble is Cause.HOST_NOT_IN_CERTIFICATE:
            worker.named = names_in(await self._certificate(worker))
        if changed:
            worker.ready = ready
            self._on_change(model, worker)
        return found


def _trouble(error: Exception) -> Cause | None:
    if out_of_descriptors(error):
        return Cause.NO_DESCRIPTORS
    if isinstance(error, GatewayError):
        return error.why
    return Cause.SILENT if isinstance(error, TimeoutError) else Cause.MALFORMED


def _unresolved(error: BaseException) -> bool:
    """Whether no name server answered: nothing is known of the worker."""
    return any(isinstance(one, socket.gaierror) and one.errno == socket.EAI_AGAIN for one in causes(error))
