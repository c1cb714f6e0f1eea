"""A second worker for a request whose first one is late; the first answer counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from msgspec import UNSET

from gateway.background import cancel_tasks
from gateway.core.errors import GatewayError
from gateway.core.http import Response
from gateway.core.messages import Embed
from gateway.core.routing_facts import RoutingFacts
from gateway.features import Built, OneModel, Parts
from gateway.kernel.call import Call
from gateway.kernel.feature import Attempt, Feature
from gateway.kernel.visit import Visit

Send = Callable[[Visit], Coroutine[Any, Any, Response]]


class Hedge(Feature):
    """Asks a second worker for what may run on two: embeddings. delay_s: after so many seconds without an answer."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s

    def around_attempt(self, inner: Attempt) -> Attempt:
        def attempt(call: Call, visit: Visit) -> Awaitable[None]:
            return self._race(call, visit) if type(call.op) is Embed and visit.work is None else inner(call, visit)

        return attempt

    async def _race(self, call: Call, visit: Visit) -> None:
        record, runtime, request = call.record, call.runtime, call.outgoing.request

        def send(to: Visit) -> Coroutine[Any, Any, Response]:
            return to.ask(request, call.outgoing.deadlines, runtime.relay.max_reply_bytes, call.fault)

        winner = visit
        try:
            response, winner = await first_answer(visit, send, self._delay_s, partial(_ask_second, call))
            record.worker = winner.worker.address
            record.served = winner.worker.served_as or UNSET
            await call.delivery.respond(call, response)
        except GatewayError:
            if visit.beside is not None:
                call.tried = [*call.tried, visit.beside.worker]
            raise
        finally:
            if visit.beside is not None:
                runtime.observer.hedged(record.model, winner is not visit)

    def in_background(self) -> None:
        """Nobody waits for the answer."""


def _ask_second(call: Call, first: Visit) -> Visit | None:
    """A visit to another worker that is free now, if the retry budget has room for it."""
    if not call.runtime.retries.spend():
        return None
    routing = RoutingFacts()
    worker = call.served.pool.try_acquire([*call.tried, first.worker], routing)
    if worker is None:
        return None
    call.record.attempts += 1
    first.beside = Visit(call.served.pool, worker, routing, call.served.transport)
    return first.beside


async def first_answer(
    first: Visit, send: Send, delay_s: float, ask_second: Callable[[Visit], Visit | None]
) -> tuple[Response, Visit]:
    """The answer of `first`, or of a second worker that is asked too after `delay_s` seconds without one; and whose
    answer it is. The loser is cancelled, which closes its connection; both pools learn the outcome.

    send returns the whole answer of a worker or raises GatewayError; ask_second returns None if no second worker may be
    asked. Raises what `send` raised for `first` if both fail.
    """
    asked = asyncio.get_running_loop().create_task(send(first))
    try:
        await asyncio.wait([asked], timeout=delay_s)
        second = None if asked.done() else ask_second(first)
        if second is None:
            return await asked, first
        with second:
            return await _race(first, asked, second, send)
    finally:
        await cancel_tasks(asked)


async def _race(first: Visit, asked: asyncio.Task[Response], second: Visit, send: Send) -> tuple[Response, Visit]:
    also = asyncio.get_running_loop().create_task(send(second))
    try:
        waiting = {asked, also}
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if also in done and isinstance(error := also.exception(), GatewayError):
                second.failed(error)
            if asked in done and asked.exception() is None:
                break
            if also in done and second.outcome is None:
                answer = also.result()  # or a bug of ours
                error = asked.exception() if asked.done() else None
                if isinstance(error, GatewayError):
                    first.failed(error)
                else:
                    first.abandoned()
                second.succeeded()
                return answer, second
        return await asked, first
    finally:
        second.abandoned()  # unless the outcome is known
        await cancel_tasks(also)


def build(parts: Parts) -> Built:
    return Built(of_model=_of_model)


def _of_model(model: OneModel) -> Hedge | None:
    delay_s = model.options.hedge_s
    return None if delay_s is None else Hedge(delay_s)
