"""A second worker for a request whose first one is late; the first answer counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from gateway.core.demand import Demand
from gateway.core.errors import GatewayError
from gateway.core.http import Response
from gateway.core.ports import Pool, WorkerHandle

Send = Callable[[WorkerHandle], Coroutine[Any, Any, Response]]


class Hedged(Struct):
    """What became of it. other: the second worker, None where none was asked. won: its answer is the one that counts,
    and the pool knows the outcome of the first one."""

    response: Response
    other: WorkerHandle | None = None
    won: bool = False


async def hedged(
    send: Send,
    pool: Pool,
    worker: WorkerHandle,
    generation: int,
    delay_s: float,
    may_ask: Callable[[], bool],
    on_asked: Callable[[], None],
    on_both: Callable[[WorkerHandle, GatewayError], None],
) -> Hedged:
    """The answer of `worker`, or of another one that is asked too after `delay_s` seconds without one.

    send     sends to a worker; gives its whole answer or raises GatewayError
    may_ask  whether a second worker may be asked
    on_asked called when one is asked, whatever comes of it
    on_both  told of the second worker and its failure, where the first one failed too

    The second one is asked only if it is free, and is given back here. The loser is cancelled, which closes its
    connection. Raises what `send` raised for `worker` if both fail.
    """
    loop = asyncio.get_running_loop()
    first = loop.create_task(send(worker))
    try:
        await asyncio.wait([first], timeout=delay_s)
        demand = Demand()
        other = pool.spare([worker], demand) if not first.done() and may_ask() else None
        if other is None:
            return Hedged(await first)
        try:
            on_asked()
            return await _race(send, pool, worker, generation, first, other, on_both)
        finally:
            pool.release(other, demand)
    finally:
        await _end(first)


async def _race(
    send: Send,
    pool: Pool,
    worker: WorkerHandle,
    generation: int,
    first: asyncio.Task[Response],
    other: WorkerHandle,
    on_both: Callable[[WorkerHandle, GatewayError], None],
) -> Hedged:
    other_generation = other.generation
    second = asyncio.get_running_loop().create_task(send(other))
    told = False
    failure: GatewayError | None = None
    try:
        waiting = {first, second}
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if second in done and isinstance(error := second.exception(), GatewayError):
                pool.failed(other, other_generation, error)
                told, failure = True, error
            if first in done and first.exception() is None:
                break
            if second in done and not told:
                answer = second.result()  # or a bug of ours
                pool.succeeded(other, other_generation)
                told = True
                _tell_loser(pool, worker, generation, first)
                return Hedged(answer, other, True)
        if failure is not None and first.exception() is not None:
            on_both(other, failure)
        return Hedged(await first, other)
    finally:
        if not told:
            pool.abandoned(other, other_generation)
        await _end(second)


def _tell_loser(pool: Pool, worker: WorkerHandle, generation: int, first: asyncio.Task[Response]) -> None:
    error = first.exception() if first.done() else None
    if isinstance(error, GatewayError):
        pool.failed(worker, generation, error)
    else:
        pool.abandoned(worker, generation)


async def _end(task: asyncio.Task[Response]) -> None:
    """Cancels `task`, if it runs, and returns when it has ended."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # it was told, or does not matter any more
