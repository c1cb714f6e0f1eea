"""The attempts of requests for text of sound, for sound and for images, whose replies pass as they came."""

from __future__ import annotations

from typing import cast

from gateway.core.continuation import NOT_KEPT, SeenText
from gateway.core.errors import GatewayError
from gateway.core.http import Response
from gateway.core.messages import Media
from gateway.core.ports import Exchange, Lane, Passthrough
from gateway.pipeline.attempts import Attempts
from gateway.pipeline.pump import Pump
from gateway.pipeline.visit import Visit
from gateway.wire import sse


class MediaAttempts(Attempts):
    """Whether the reply is streamed is known by its head. No other worker goes on with a stream that broke."""

    @property
    def _asked(self) -> Media:
        return cast("Media", self._call.asked)

    @property
    def _passthrough(self) -> Passthrough:
        call = self._call
        return call.reply.dialect.passthrough[call.served.backend.reply_wire(call.asked)]

    async def _pass_whole(self, exchange: Exchange, visit: Visit) -> None:
        call, lane = self._call, self._passthrough.media_lane(self._asked, exchange.headers)
        if lane is None:
            await super()._pass_whole(exchange, visit)
            return
        call.lane = lane
        await self._pump(Pump(exchange, lane, call, visit))

    _stream = _pass_whole

    def _translated(self, response: Response) -> Response:
        translated, self._call.record.usage = self._passthrough.media_whole(response, self._asked)
        return translated

    async def _may_go_on(self, error: GatewayError, visit: Visit) -> bool:
        return False

    def _new_lane(self, seen: SeenText = NOT_KEPT) -> Lane:
        """For keep-alives, which only events have."""
        lane = self._passthrough.media_lane(self._asked, sse.HEADERS)
        assert lane is not None
        return lane
