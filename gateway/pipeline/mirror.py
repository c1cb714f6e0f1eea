"""Copies of requests for another model. Their replies are dropped, and no client waits for them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from copy import copy

from gateway.core.ability import refuse_beyond
from gateway.core.errors import GatewayError
from gateway.core.http import Request
from gateway.core.messages import Op
from gateway.core.ports import WorkerHandle
from gateway.pipeline.faults import fault_of
from gateway.pipeline.models import ServedModel
from gateway.pipeline.outgoing import Outgoing
from gateway.pipeline.quarantine import Quarantine, looks_deadly

_LONGEST_S = 3600.0
_MAX_COUNT_BYTES = 1 << 16


class Mirror:
    """The copies of one model's requests for `model`. They pass no limit, are charged to nobody and have no record.
    Each takes a free worker or none: it does not wait in the queue, and is not tried again.

    share     of the requests
    most      copies under way at once
    count     told what became of each: answered | failed | refused (the model cannot do it) | skipped (too many are
              under way, no worker is free, the request is heavy, or two of the model's workers died of copies of it)
    models    by name
    estimate  tokens of a prompt
    """

    def __init__(
        self,
        model: str,
        share: float,
        most: int,
        count: Callable[[str], None],
        models: Mapping[str, ServedModel],
        estimate: Callable[[Op], int],
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.model = model
        self._share = share
        self._most = most
        self._count = count
        self._models = models
        self._estimate = estimate
        self._draw = draw
        self._tasks: set[asyncio.Task[None]] = set()

    def copy(self, op: Op, request_id: str, request: Request, large: bool, quarantine: Quarantine | None) -> None:
        """Sends a copy of `op`, if it is one of those that are mirrored, when the loop goes round next. request is the
        client's; large: to write it takes milliseconds."""
        if self._share < 1 and self._draw() >= self._share:
            return
        if large or len(self._tasks) >= self._most:
            self._count("skipped")
            return
        # Copies are known by a digest of their own: what the mirror's workers die of is refused to no client.
        known = Request(request.method, f"{self.model} {request.path}", request.headers, body=request.body)
        task = asyncio.get_running_loop().create_task(self._send(copy(op), request_id, known, quarantine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, op: Op, request_id: str, known: Request, quarantine: Quarantine | None) -> None:
        served = self._models[self.model]
        if quarantine is not None and await _is_held(quarantine, known):
            self._count("skipped")
            return
        try:
            refuse_beyond(op, served.can)
            outgoing = Outgoing(op, served, request_id, False, [])
            outgoing.write()
            outgoing.check(self._estimate)
        except GatewayError:
            self._count("refused")
            return
        pool = served.pool
        demand = pool.demand(op, known.headers)
        worker = pool.spare((), demand)
        if worker is None:
            self._count("skipped")
            return
        generation = worker.generation
        try:
            async with asyncio.timeout(_LONGEST_S):
                late_failure = await _drop_reply(outgoing, served, worker)
        except GatewayError as error:
            pool.failed(worker, generation, error)
            if quarantine is not None and looks_deadly(error):
                quarantine.suspect(self.model, worker, known)
            self._count("failed")
        except BaseException as error:
            pool.abandoned(worker, generation)
            if not isinstance(error, TimeoutError):
                raise
            self._count("failed")
        else:
            if late_failure is not None:
                pool.failed(worker, generation, late_failure)
                self._count("failed")
                return
            pool.succeeded(worker, generation)
            if quarantine is not None and (quarantine.noted or quarantine.held):
                await quarantine.clear(known)
            self._count("answered")
        finally:
            pool.release(worker, demand)

    async def settled(self) -> None:
        """Returns when none is under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Ends what is under way."""
        for task in self._tasks:
            task.cancel()
        await self.settled()


async def _is_held(quarantine: Quarantine, known: Request) -> bool:
    if quarantine.held:
        try:
            await quarantine.refuse_held(known)
        except GatewayError:
            return True
    return False


async def _drop_reply(outgoing: Outgoing, served: ServedModel, worker: WorkerHandle) -> GatewayError | None:
    """Returns the error that broke off a reply amid its body; raises GatewayError for what a client would be told
    before, and looks for nothing that is wrong inside a stream."""
    if outgoing.unmeasured:
        await outgoing.measure(worker, _MAX_COUNT_BYTES)
    exchange = await served.transport.send(outgoing.request, worker.address, served.deadlines)
    try:
        if exchange.status != 200:
            raise await fault_of(exchange, served, outgoing.op)
        begun = False
        try:
            while await exchange.read():
                begun = True
        except GatewayError as error:
            if not begun:
                raise
            return error
    finally:
        exchange.close()
    return None
