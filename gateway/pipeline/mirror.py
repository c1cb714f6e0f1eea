"""Copies of requests for another model. Their replies are dropped, and no client waits for them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial

from gateway.config import Mirror as Options
from gateway.core.errors import GatewayError
from gateway.core.http import Request
from gateway.core.messages import Op
from gateway.pipeline.call import Call
from gateway.pipeline.models import ServedModel
from gateway.pipeline.outgoing import Outgoing
from gateway.pipeline.quarantine import Quarantine, looks_deadly
from gateway.pipeline.visit import Visit, error_of
from gateway.pipeline.watch import Watcher
from gateway.translation.ability import refuse_beyond

_LONGEST_S = 3600.0
_MAX_COUNT_BYTES = 1 << 16


class Mirror(Watcher):
    """The copies of one model's requests for `model`. They pass no limit, are charged to nobody and have no record.
    Each takes a free worker or none: it does not wait in the queue, and is not tried again.

    model     the one that gets copies, not an alias
    count     called with the outcome of each: answered | failed | refused (the model cannot do it) | skipped (too many
              are under way, no worker is free, the request is heavy, or two of the model's workers died of its copies)
    models    by name
    quarantine  None if requests of which workers died are sent on
    estimate  tokens of a prompt
    """

    def __init__(
        self,
        model: str,
        options: Options,
        count: Callable[[str], None],
        models: Mapping[str, ServedModel],
        estimate: Callable[[Op], int],
        quarantine: Quarantine | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.model = model
        self._options = options
        self._count = count
        self._models = models
        self._estimate = estimate
        self._quarantine = quarantine
        self._draw = draw
        self._tasks: set[asyncio.Task[None]] = set()

    def visiting(self, call: Call, visit: Visit) -> None:
        """Copies a request when its first worker is about to be sent it."""
        # An upload is gone when its own request has ended.
        if call.question or self in call.notes or call.reply.request.form is not None:
            return
        call.notes[self] = True
        self.copy(call.asked, call.record.id, call.reply.request, call.large)

    def copy(self, op: Op, request_id: str, request: Request, large: bool) -> None:
        """Sends a copy of `op`, if it is one of those that are mirrored, when the loop goes round next. request is the
        client's; large: to write it takes milliseconds."""
        if self._options.share < 1 and self._draw() >= self._options.share:
            return
        if large or len(self._tasks) >= self._options.max_in_flight:
            self._count("skipped")
            return
        # Copies are known by a digest of their own: what the mirror's workers die of is refused to no client.
        known = Request(request.method, f"{self.model} {request.path}", request.headers, body=request.body)
        task = asyncio.get_running_loop().create_task(self._send(copy(op), request_id, known))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, op: Op, request_id: str, known: Request) -> None:
        served, quarantine = self._models[self.model], self._quarantine
        if quarantine is not None and await _is_held(quarantine, known):
            self._count("skipped")
            return
        try:
            refuse_beyond(op, served.can)
            outgoing = Outgoing(served, request_id, None, [])
            outgoing.write(op, self._estimate)
        except GatewayError:
            self._count("refused")
            return
        pool = served.pool
        routing = pool.routing(op, known.headers)
        worker = pool.try_acquire((), routing)
        if worker is None:
            self._count("skipped")
            return
        try:
            with Visit(pool, worker, routing, served.transport) as visit:
                async with asyncio.timeout(_LONGEST_S):
                    await _drop_reply(outgoing, op, visit)
        except GatewayError as error:
            if quarantine is not None and looks_deadly(error):
                quarantine.suspect(self.model, worker, known)
        except TimeoutError:
            pass
        else:
            if visit.outcome == "succeeded":
                if quarantine is not None and (quarantine.noted or quarantine.held):
                    await quarantine.clear(known)
                self._count("answered")
                return
        self._count("failed")

    async def idle(self) -> None:
        """Returns when none is under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Ends what is under way."""
        for task in self._tasks:
            task.cancel()
        await self.idle()


async def _is_held(quarantine: Quarantine, known: Request) -> bool:
    if quarantine.held:
        try:
            await quarantine.refuse_held(known)
        except GatewayError:
            return True
    return False


async def _drop_reply(outgoing: Outgoing, op: Op, visit: Visit) -> None:
    """Reads the reply and drops it. Raises GatewayError for a failure before its first byte; a reply that breaks off
    later is a failed visit. Errors inside a stream are not detected."""
    if outgoing.unmeasured:
        await outgoing.measure(visit, op, _MAX_COUNT_BYTES)
    exchange = await visit.send(outgoing.request, outgoing.served.deadlines)
    if exchange.status != 200:
        raise await error_of(exchange, partial(outgoing.served.backend.fault, op=op))
    begun = False
    try:
        while await exchange.read():
            begun = True
    except GatewayError as error:
        if not begun:
            raise
        visit.failed(error)
