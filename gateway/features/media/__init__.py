"""Requests for text of sound, for sound and for images, whose replies pass as they came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from gateway.core.continuation import NO_TEXT, SentText
from gateway.core.http import Response
from gateway.core.messages import Media
from gateway.core.ports import Exchange, Lane, Passthrough
from gateway.features import Built, Parts
from gateway.kernel.call import Call
from gateway.kernel.delivery import Delivery, carry_stream
from gateway.kernel.visit import Visit
from gateway.offload import offload_in_turn
from gateway.wire import sse
from gateway.wire.bulk import is_large


class MediaDelivery(Delivery):
    """Whether the reply is streamed is known by its head. No other worker goes on with a stream that broke."""

    async def whole(self, call: Call, visit: Visit, exchange: Exchange) -> None:
        lane = _passthrough(call).media_lane(cast("Media", call.asked), exchange.headers)
        if lane is None:
            await super().whole(call, visit, exchange)
            return
        call.lane = lane
        await carry_stream(call, visit, exchange, lane)

    stream = whole

    async def respond(self, call: Call, response: Response) -> None:
        """Behind a keep-alive, which begins a stream, a whole reply passes as the stream's last events."""
        if not call.record.stream:
            await super().respond(call, response)
            return
        call.reply_at = call.runtime.clock()
        large, op = is_large(response.body), cast("Media", call.asked)

        async def step(work: Callable[..., Any], *of: Any) -> Any:
            return await offload_in_turn(call.owner, work, *of, share=call.share) if large else work(*of)

        translated = await step(self.translated, call, response)
        if call.reply.begun_stream:
            last = await step(_passthrough(call).media_events, translated, op)
            call.settle()
            await call.reply.conclude(last, self.lane(call))
        else:
            await call.reply.respond(translated)

    def translated(self, call: Call, response: Response) -> Response:
        translated, call.record.usage = _passthrough(call).media_whole(response, cast("Media", call.asked))
        return translated

    def lane(self, call: Call, text: SentText = NO_TEXT) -> Lane:
        """For keep-alives, which only events have."""
        lane = _passthrough(call).media_lane(cast("Media", call.asked), sse.HEADERS)
        assert lane is not None
        return lane


def _passthrough(call: Call) -> Passthrough:
    return call.reply.dialect.passthrough[call.served.backend.reply_wire(call.asked)]


def build(parts: Parts) -> Built:
    parts.offers.deliveries[Media] = MediaDelivery()
    return Built()
