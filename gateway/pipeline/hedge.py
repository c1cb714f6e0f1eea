"""A second worker for a request whose first one is late; the first answer counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.core.errors import GatewayError
from gateway.core.http import Request, Response
from gateway.core.ports import WorkerHandle
from gateway.core.routing_facts import RoutingFacts
from gateway.pipeline.attempts import Attempts
from gateway.pipeline.visit import Visit

Send = Callable[[Visit], Coroutine[Any, Any, Response]]


class HedgedAttempts(Attempts):
    """Attempts for an operation that may run on two workers (embeddings)."""

    # The second worker of the last attempt, if one was asked.
    _second: Visit | None = None

    async def _exchange(self, visit: Visit, request: Request) -> None:
        call = self._call
        record, runtime, hedge_s = call.record, call.runtime, call.served.hedge_s
        assert hedge_s is not None  # `strategies.attempts_for` chose this class by it

        def send(to: Visit) -> Coroutine[Any, Any, Response]:
            return to.ask(request, call.outgoing.deadlines, runtime.relay.max_reply_bytes, self._fault)

        winner = visit
        try:
            response, winner = await first_answer(visit, send, hedge_s, self._ask_second)
        except GatewayError:
            second = self._second
            if second is not None and second.error is not None:
                for left in call.watchers.left:
                    left(call, second, second.error)
            raise
        finally:
            if self._second is not None:
                runtime.observer.hedged(record.model, winner is not visit)
        record.worker = winner.worker.address
        await self._respond(response)

    def _ask_second(self, first: Visit) -> Visit | None:
        """A visit to another worker that is free now, if the retry budget has room for it."""
        call = self._call
        if not call.runtime.retries.spend():
            return None
        routing = RoutingFacts()
        worker = call.served.pool.try_acquire([first.worker], routing)
        if worker is None:
            return None
        call.record.attempts += 1
        self._second = Visit(call.served.pool, worker, routing, call.served.transport)
        return self._second

    def _unfit(self, visit: Visit) -> list[WorkerHandle]:
        second, self._second = self._second, None
        return super()._unfit(visit) + ([] if second is None else [second.worker])


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
        await _end(asked)


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
        await _end(also)


async def _end(task: asyncio.Task[Response]) -> None:
    """Cancels `task`, if it runs, and returns when it has ended."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # asked for, so that asyncio does not log it
