"""A `Transport` for tests: answers from a script, in memory, with the very `Exchange` that `pooled` hands out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import cast

from msgspec import Struct, structs

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers, Request
from gateway.core.ports import Deadlines
from gateway.transport.connection import WorkerConnection
from gateway.transport.incoming import Incoming


class Answer(Struct):
    """What a worker does with one request.

    blocks  its body, as it arrives
    error   how the body ends; None is whole
    live    the body does not end by itself: the test goes on with `Play.push`, `end` and `fail`
    after   the head waits for this event
    """

    status: int = 200
    headers: Headers = []
    blocks: tuple[bytes, ...] = ()
    error: GatewayError | None = None
    live: bool = False
    after: asyncio.Event | None = None


Act = Answer | GatewayError | Callable[[Request, str], Answer | GatewayError]


class Play:
    """One request that was sent, and the worker's side of its answer.

    held     we have asked the worker to stop for now
    dropped  we have closed the connection before the answer was whole
    gone     set when `dropped` becomes true
    """

    def __init__(self, request: Request, address: str, deadlines: Deadlines) -> None:
        self.request = request
        self.address = address
        self.deadlines = deadlines
        self.exchange = Incoming(cast(WorkerConnection, self))
        self.reading_paused = False
        self.dropped = False
        self.gone = asyncio.Event()

    def push(self, block: bytes) -> None:
        """A block arrives; as on a closed socket, nothing happens once we have left."""
        if not self.dropped:
            self.exchange.arrive(block)

    def end(self) -> None:
        self.exchange.end(None)

    def fail(self, error: GatewayError) -> None:
        self.exchange.end(error)

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False

    def drop(self) -> None:
        self.dropped = True
        self.gone.set()


class Scripted:
    """Answers requests in the order of `acts`; `otherwise` answers all further ones, without it they are a bug.

    plays  every request sent so far, cancelled ones included
    """

    def __init__(self, *acts: Act, otherwise: Act | None = None) -> None:
        self.plays: list[Play] = []
        self._acts = list(acts)
        self._otherwise = otherwise
        self._sent = asyncio.Condition()
        self._closed = False

    @property
    def requests(self) -> list[Request]:
        return [play.request for play in self.plays]

    def add(self, acts: Iterable[Act]) -> None:
        self._acts.extend(acts)

    async def send(self, request: Request, address: str, deadlines: Deadlines) -> Incoming:
        if self._closed:
            raise GatewayError(Kind.DRAINING, "the gateway is shutting down")
        act = self._acts.pop(0) if self._acts else self._otherwise
        if act is None:
            raise AssertionError(
                f"no answer is left for request {len(self.plays) + 1}: {request.method} {request.path}"
            )
        # As it was sent: its body is let go of with a stream's first token.
        play = Play(structs.replace(request), address, deadlines)
        self.plays.append(play)
        exchange = play.exchange
        try:
            async with self._sent:
                self._sent.notify_all()
            answer = act(request, address) if callable(act) else act
            if isinstance(answer, GatewayError):
                raise answer
            if answer.after is not None:
                await answer.after.wait()
            else:
                await asyncio.sleep(0)  # no real answer comes within one turn of the loop
        except BaseException:
            exchange.close()
            raise
        exchange.status = answer.status
        exchange.headers = list(answer.headers)
        for block in answer.blocks:
            exchange.store(block)
        if not answer.live:
            exchange.end(answer.error)
        return exchange

    async def sent(self, count: int) -> Play:
        """Waits until `count` requests were sent; the last of these."""
        async with self._sent:
            await self._sent.wait_for(lambda: len(self.plays) >= count)
        return self.plays[count - 1]

    async def close(self) -> None:
        self._closed = True
        for play in self.plays:
            if play.exchange.source is not None:
                play.fail(GatewayError(Kind.DRAINING, "the gateway is shutting down"))
