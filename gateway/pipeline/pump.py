"""Carries a worker's stream through a lane to the client.

The transport calls the pump for every block, and the pump writes on at once: no task switch and no queue in between.
Each side is paused while the other cannot follow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gateway.core.errors import GatewayError, Kind
from gateway.core.figures import Histogram
from gateway.core.ports import Exchange, Lane
from gateway.light_task import OneTimeEvent
from gateway.pipeline.reply import ClientReply

# After the terminal mark only the end of the framing is due. A worker that withholds it costs its connection, not our
# time.
_LINGER_S = 1.0


class Pump:
    """One streamed reply under way. Implements core.ports.BodySink for the transport and reply.WorkerStream.

    gaps is told the seconds between two pieces of output.

    Nothing is sent before the first output, so that an error until then is still an error status, or another worker's
    turn.

    first_output_at  in seconds of the monotonic clock, or None
    on_first         called with the first output in hand
    on_done          called once the reply is known to be complete, before its end can have reached the client
    on_token         called once when the client has been committed to and the model has said something: no other worker
                     will be sent the request
    """

    def __init__(
        self,
        exchange: Exchange,
        lane: Lane,
        reply: ClientReply,
        gaps: Histogram,
        *,
        on_first: Callable[[], None] | None = None,
        on_token: Callable[[], None] | None = None,
        on_done: Callable[[], None] | None = None,
    ) -> None:
        self.lane = lane
        self._gaps = gaps
        self.written_at = 0.0
        self.first_output_at: float | None = None
        self._on_first = on_first
        self._on_done = on_done
        self._on_token = on_token
        self._beginning = True  # `on_token` is still to come
        self._exchange = exchange
        self._reply = reply
        self._write: Callable[[bytes], None] = reply.write
        loop = asyncio.get_running_loop()
        # There is something to send, or there will be nothing.
        self._opened = OneTimeEvent()  # no future: what waits for a first token goes on in the round that brought it
        # The client's stream is to be ended: nothing more of the worker's is passed on.
        self._over: asyncio.Future[None] = loop.create_future()
        # The worker's body has ended.
        self._closed: asyncio.Future[None] = loop.create_future()

    # -- called by the transport, for every block -------------------------------------------------------------------

    def block(self, data: bytes) -> None:
        if self._over.done():
            return
        lane = self.lane
        try:
            out = lane.feed(data)
            if out:
                now = time.monotonic()  # uvloop's own clock is that of the turn's start
                if self.first_output_at is None:
                    self._first(now)
                else:
                    self._gaps.add(now - self.written_at)
                self.written_at = now
                self._write(out)
            if lane.error is not None or lane.done:
                if lane.error is None and self._on_done is not None:
                    self._on_done()
                self._end()
            elif out and self._beginning:
                self._begun()
        except Exception as error:
            self._broken(error)

    def finished(self, error: GatewayError | None) -> None:
        lane = self.lane
        if not lane.done and lane.error is None:
            if error is None:
                try:
                    out = lane.eof()
                except Exception as bug:
                    self._broken(bug)
                else:
                    if out:
                        self._write(out)
            else:
                lane.error = error
        self._end()
        if not self._closed.done():
            self._closed.set_result(None)

    def _broken(self, bug: Exception) -> None:
        """Ends this reply alone with a bug of ours. Raised through the transport, the bug would be taken for a fault of
        the connection, and whoever waits for the end would not hear of it."""
        self.lane.error = GatewayError(Kind.INTERNAL, "the worker's answer could not be passed on")
        self.lane.error.__cause__ = bug
        self._end()

    def _first(self, now: float) -> None:
        self.first_output_at = now
        if self._on_first is not None:
            self._on_first()

    def _begun(self) -> None:
        """Something was sent, or is to be."""
        if not self._reply.committed:
            self.open()
        elif self.lane.produced:
            self._beginning = False
            if self._on_token is not None:
                self._on_token()

    def _end(self) -> None:
        if self.lane.done and self.lane.error is None:
            self._reply.end()
        self.open()
        if not self._over.done():
            self._over.set_result(None)

    # -- called by the client's reply -------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return self._over.done()

    def open(self) -> None:
        self._opened.set()

    def interrupt(self, error: GatewayError) -> None:
        if not self.lane.done and self.lane.error is None:
            self.lane.error = error
            self._end()

    # -- called by the attempt --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Carries the whole reply.

        Raises the lane's GatewayError if the stream failed before anything of it was sent. A later failure is told in
        the client's own form and left in `lane.error`.
        """
        reply, lane, exchange = self._reply, self.lane, self._exchange
        try:
            await reply.attach(self)
            exchange.pipe(self)
            await self._opened
            if lane.error is not None:
                raise lane.error
            self._write = await reply.commit(lane.headers, exchange.pause, exchange.resume)
            if not self._over.done():
                self._begun()
                await reply.carry(self._over)
            await self._conclude()
        finally:
            reply.detach()
            # They hold whoever is told, and that holds this pump: a cycle for the collector.
            self._on_done = self._on_token = None
            exchange.close()

    async def _conclude(self) -> None:
        error = self.lane.error
        if error is not None:
            self._exchange.close()
            await self._reply.send_error(self.lane, error)
            return
        await self._reply.finish()
        # Once the worker's framing has ended, its connection can be used again.
        if not self._closed.done():
            await asyncio.wait([self._closed], timeout=_LINGER_S)
