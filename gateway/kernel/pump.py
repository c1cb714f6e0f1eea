"""Carries a worker's stream through a lane to the client.

The transport calls the pump for every block, and the pump writes on at once: no task switch and no queue in between.
Each side is paused while the other cannot follow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gateway.core.errors import GatewayError, Kind
from gateway.core.figures import milliseconds
from gateway.core.ports import Exchange, Lane
from gateway.kernel.call import Call
from gateway.kernel.visit import Visit
from gateway.light_task import OneTimeEvent
from gateway.native import relay_natively

# After the terminal mark only the end of the framing is due. A worker that withholds it costs its connection, not our
# time.
_LINGER_S = 1.0


class Pump:
    """One streamed reply under way. Implements core.ports.BodySink for the transport.

    Nothing is sent before the first output, so that an error until then is still an error status, or another worker's
    turn. The stream of a worker that goes on with another one's is written on at once.

    The visit of a half-open worker learns from the first output that a reply has begun. Once the reply is committed and
    has a token, the call lets go of the prompt: no other worker will be sent the whole request. Once the lane is done,
    the call settles, before the end of the reply can have reached the client.

    written_at       when it last had output, in seconds of the monotonic clock
    first_output_at  when it had output first, in the same seconds; None until then
    """

    __slots__ = (
        "_beginning", "_call", "_closed", "_exchange", "_gaps", "_opened", "_over", "_reply", "_visit", "_write",
        "first_output_at", "lane", "written_at",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, lane: Lane, call: Call, visit: Visit) -> None:
        self.lane = lane
        self.written_at = 0.0
        self.first_output_at: float | None = None
        self._call = call
        self._gaps = call.served.gaps
        self._visit = visit
        self._beginning = True  # no token yet
        self._exchange = exchange
        self._reply = call.reply
        self._write: Callable[[bytes], None] = call.reply.write
        # There is something to send, or there will be nothing.
        self._opened = OneTimeEvent()  # no future: what waits for a first token goes on in the round that brought it
        # The client's stream must end: nothing more of the worker's is passed on.
        self._over = OneTimeEvent()
        # True once the worker's body has ended; a future if the end is waited for.
        self._closed: asyncio.Future[None] | bool = False

    # -- called by the transport, for every block -------------------------------------------------------------------

    def block(self, data: bytes) -> None:
        if self._over.happened:
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
                if lane.error is None:
                    self._call.settle()
                self.ended()
            elif out and self._beginning:
                self._begun()
        except Exception as error:
            self.broken(error)

    def finished(self, error: GatewayError | None) -> None:
        lane = self.lane
        if not lane.done and lane.error is None:
            if error is None:
                try:
                    out = lane.eof()
                    if self.lane.done:  # sound has no other end
                        self._call.settle()
                except Exception as bug:
                    self.broken(bug)
                else:
                    if out:
                        self._write(out)
            else:
                lane.error = error
        self.ended()
        if isinstance(self._closed, asyncio.Future) and not self._closed.done():
            self._closed.set_result(None)
        self._closed = True

    def broken(self, bug: Exception) -> None:
        """Ends this reply alone with a bug of ours. If it were raised through the transport, it would count as a
        fault of the connection, and `run` would never return."""
        self.lane.error = GatewayError(Kind.INTERNAL, "the worker's answer could not be passed on")
        self.lane.error.__cause__ = bug
        self.ended()

    def _first(self, now: float) -> None:
        self.first_output_at = now
        if self._visit.worker.half_open:
            self._visit.answered()

    def _begun(self) -> None:
        """Something was sent, or will be."""
        if not self._reply.committed:
            self.open()
        elif self.lane.produced:
            self._beginning = False
            self._call.drop_prompt()
            # Until the commit is over the reply keeps what is written, and nothing may overtake that.
            if self._write != self._reply.write and self._call.runtime.relay.native:
                client = self._reply.client
                direct = client if client.direct else None
                relay_natively(self._exchange, self.lane, self, self._gaps, self._write, direct)

    def ended(self) -> None:
        """The lane is done or has failed."""
        if self.lane.done and self.lane.error is None:
            self._reply.end()
        self.open()
        self._over.set()

    # -- called by the client's reply -------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return self._over.happened

    def open(self) -> None:
        self._opened.set()

    def interrupt(self, error: GatewayError) -> None:
        if not self.lane.done and self.lane.error is None:
            self.lane.error = error
            self.ended()

    # -- called by the delivery -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Carries the whole reply. Raises the lane's GatewayError if the stream failed."""
        reply, lane, exchange = self._reply, self.lane, self._exchange
        goes_on = reply.committed
        try:
            reply.attach(self)
            exchange.pipe(self)
            await self._opened
            if lane.error is not None:
                raise lane.error
            if self.first_output_at is None and self._call.hold is not None and not lane.done:
                return  # all that the worker has sent is held back
            self._write = await reply.commit(lane, exchange.pause, exchange.resume)
            if not self._over.happened:
                self._begun()
                await reply.carry(self._over)
            if lane.error is not None:
                raise lane.error
            if not lane.done:
                return  # the worker's part in the reply is over, the reply is not
            await reply.finish()
            # Once the worker's framing has ended, its connection can be used again.
            if not self._closed:
                self._closed = closed = asyncio.get_running_loop().create_future()
                await asyncio.wait([closed], timeout=_LINGER_S)
        finally:
            reply.detach()
            exchange.close()
            if self.first_output_at is not None and (lane.error is None or lane.produced):
                self._note_first(self.first_output_at, goes_on)

    def _note_first(self, at: float, goes_on: bool) -> None:
        """Records when the first output came. goes_on: the client had a part of the reply before."""
        record = self._call.record
        self._visit.first_output_at = at
        if not goes_on or record.time_to_first_token_ms is None:
            record.time_to_first_token_ms = milliseconds(at - self._call.began)
