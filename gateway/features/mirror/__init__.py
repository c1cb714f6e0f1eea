"""Copies of requests for another model. Their replies are dropped, and no client waits for them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

from gateway.auth import Principal
from gateway.background import cancel_tasks
from gateway.config import Mirror as Options
from gateway.core.errors import GatewayError
from gateway.core.http import Request
from gateway.core.messages import Op
from gateway.features import Built, Deaths, OneModel, Parts, Police
from gateway.kernel.call import Call
from gateway.kernel.feature import Attempt, Feature
from gateway.kernel.models import ServedModel
from gateway.kernel.outgoing import Outgoing
from gateway.kernel.visit import Visit, error_of
from gateway.translation.ability import refuse_beyond

_LONGEST_S = 3600.0
_MAX_COUNT_BYTES = 1 << 16


class Mirror(Feature):
    """Sends copies of one model's requests to another model, as its own policies have them. Copies pass no limit, are
    charged to nobody and have no record. Each takes a free worker or none: it does not wait in the queue, and is not
    tried again.

    model     the one that gets copies, not an alias
    count     called with the outcome of each: answered | failed | refused (the model cannot do it, or a policy refuses)
              | skipped (too many are under way, no worker is free, the request is heavy, or two of the model's workers
              died of its copies)
    models    by name
    quarantine  None if requests of which workers died are sent on
    estimate  tokens of a prompt
    police    the policies on requests for the model; None if there are none
    """

    def __init__(
        self,
        model: str,
        options: Options,
        count: Callable[[str], None],
        models: Mapping[str, ServedModel],
        estimate: Callable[[Op], int],
        quarantine: Deaths | None = None,
        police: Police | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.model = model
        self._options = options
        self._count = count
        self._models = models
        self._estimate = estimate
        self._quarantine = quarantine
        self._police = police
        self._draw = draw
        self._tasks: set[asyncio.Task[None]] = set()

    def around_attempt(self, inner: Attempt) -> Attempt:
        def attempt(call: Call, visit: Visit) -> Awaitable[None]:
            # An upload is gone when its own request has ended.
            if call.delivery.takes_slot and self not in call.notes and call.request.form is None:
                call.notes[self] = True
                op = call.untouched or call.asked
                self.copy(op, call.record.id, call.request, call.principal, call.share is not None)
            return inner(call, visit)

        return attempt

    def for_adapter(self, pools: Sequence[Any]) -> None:
        """Other models do not have the adapter."""

    def copy(self, op: Op, request_id: str, request: Request, caller: Principal, large: bool) -> None:
        """Sends a copy of `op`, if it is one of those that are mirrored, when the loop goes round next. request is the
        caller's; large: to write it takes milliseconds."""
        if self._options.share < 1 and self._draw() >= self._options.share:
            return
        if large or len(self._tasks) >= self._options.max_in_flight:
            self._count("skipped")
            return
        # Copies are known by a digest of their own: what the mirror's workers die of is refused to no client.
        known = Request(request.method, f"{self.model} {request.path}", request.headers, body=request.body)
        task = asyncio.get_running_loop().create_task(self._send(copy(op), request_id, known, caller))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, op: Op, request_id: str, known: Request, caller: Principal) -> None:
        served, quarantine = self._models[self.model], self._quarantine
        if quarantine is not None and await _is_held(quarantine, known):
            self._count("skipped")
            return
        try:
            refuse_beyond(op, served.can)
            outgoing = Outgoing(served, request_id, None, [])
            if self._police is not None:
                outgoing.finish = self._police(op, caller, known.headers)
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
            if quarantine is not None and quarantine.looks_deadly(error):
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
        await cancel_tasks(*self._tasks)


async def _is_held(quarantine: Deaths, known: Request) -> bool:
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
    exchange = visit.exchange = await visit.send(outgoing.request, outgoing.served.deadlines)
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


def build(parts: Parts) -> Built:
    mirrors: list[Mirror] = []

    def of_model(model: OneModel) -> Mirror | None:
        options = model.options.mirror
        if options is None:
            return None
        to = parts.config.model_names[options.model]

        def count(result: str) -> None:
            parts.metrics.mirrored.labels(model.name, to, result).inc()

        police = parts.offers.police(to)
        mirrors.append(Mirror(to, options, count, parts.models, parts.estimate, parts.offers.deaths, police))
        return mirrors[-1]

    async def close() -> None:
        for mirror in mirrors:
            await mirror.close()

    return Built(of_model=of_model, close=close)
