"""How the reply of a worker passes to the client, for each kind of operation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, cast

from gateway.core.continuation import NO_TEXT, SentText
from gateway.core.errors import reply_too_large
from gateway.core.http import Response
from gateway.core.lifecycle import Embeddings, Reply, Scores
from gateway.core.messages import Chat, Complete, CountTokens, Detokenize, Embed, Generate, Score, Tokenize
from gateway.core.ports import Exchange, Lane, StreamReader, StreamWriter
from gateway.kernel.call import Call
from gateway.kernel.pump import Pump
from gateway.kernel.visit import Visit, error_of
from gateway.offload import offload_in_turn, run_step
from gateway.translation import series
from gateway.translation.lanes import EventLane, lane_for
from gateway.translation.whole import read_whole
from gateway.wire.bulk import is_large


class Hold(Protocol):
    """Holds a reply back from its client, until it is allowed."""

    def lane(self, reader: Callable[[], StreamReader], writer: StreamWriter, most_bytes: int, text: SentText) -> Lane:
        """The lane for a stream of the reply. writer: of the client's dialect."""

    def writer(self, writer: StreamWriter) -> StreamWriter:
        """`writer` for a stream of the reply whose lane another feature makes."""

    def keep(self, response: Response, reply: Reply) -> None:
        """`reply` came, and `response` is how the client gets it if it is allowed as it is."""

    async def allow_call(self, words: str, tool: str) -> str:
        """The words with which a tool of the gateway's is called, as they are allowed. Raises GatewayError."""

    async def finish(self) -> None:
        """The worker's part in the reply is over: sends the client what is left of it, once that is allowed. Raises
        GatewayError."""


class Delivery:
    """The ordinary delivery: of what a model generates, embeds or scores. It has no state.

    takes_slot  the request takes a slot at its worker, and waits for one
    """

    takes_slot = True

    async def run(self, call: Call, visit: Visit) -> None:
        """Sends the request, and passes the reply on. Raises GatewayError."""
        exchange = visit.exchange = await visit.send(visit.request or call.outgoing.request, call.outgoing.deadlines)
        for observer in call.observers:
            observer.responded(visit.worker.address, exchange.status)
        if exchange.status != 200:
            raise await error_of(exchange, call.fault)
        await (self.stream(call, visit, exchange) if call.record.stream else self.whole(call, visit, exchange))

    # -- whole replies ----------------------------------------------------------------------------------------------

    async def whole(self, call: Call, visit: Visit, exchange: Exchange) -> None:
        body = await exchange.body(call.runtime.relay.max_reply_bytes)
        visit.exchange = None  # its connection went back with its last byte
        if call.served.update_load is not None:
            call.served.update_load(visit.worker, exchange.headers)
        await self.respond(call, Response(exchange.status, exchange.headers, body))

    async def respond(self, call: Call, response: Response) -> None:
        """Passes the worker's whole reply on."""
        call.reply_at = call.runtime.clock()
        # The vectors of many inputs, or the logprobs of many tokens, come to megabytes.
        large = is_large(response.body)
        if call.hold is None:
            translated = (
                await offload_in_turn(call.owner, self.translated, call, response, share=call.share)
                if large
                else self.translated(call, response)
            )
            await call.reply.respond(translated)
        else:
            written = (
                await offload_in_turn(call.owner, self.written, call, response, share=call.share)
                if large
                else self.written(call, response)
            )
            call.hold.keep(written[0], cast("Reply", written[1]))

    def translated(self, call: Call, response: Response) -> Response:
        """The client's reply, from the worker's."""
        op = call.op
        assert op is not None
        passthrough = call.reply.dialect.passthrough.get(call.served.backend.reply_wire(op))
        if passthrough is None:
            return self.written(call, response)[0]
        translated, call.record.usage = passthrough.whole(response, cast("Generate | Embed", op))
        if call.record.trace is not None:
            call.finishes = passthrough.finishes(translated)
        return translated

    def written(self, call: Call, response: Response) -> tuple[Response, Reply | Embeddings | Scores]:
        """The client's reply, and what it says. A reply that is held has nothing else."""
        op = cast("Generate | Embed | Score", call.asked)
        reply = read_whole(call.served.backend, response, op)
        call.record.usage = reply.usage
        if type(reply) is Reply:
            if call.record.trace is not None:
                call.finishes = [choice.reason for choice in reply.choices]
            if call.hold is not None and type(op) is Chat:
                for choice in reply.choices:
                    choice.extra = None  # the transcript of a sound, annotations
        return call.reply.dialect.write(reply, op), reply

    # -- streams ----------------------------------------------------------------------------------------------------

    def stream(self, call: Call, visit: Visit, exchange: Exchange) -> Awaitable[None]:
        lane = call.lane
        if lane is None or visit.repeated is None:
            lane = call.lane = self.lane(call, call.sent_text)
        else:
            lane.splice(visit.repeated)
        return carry_stream(call, visit, exchange, lane)

    def lane(self, call: Call, text: SentText = NO_TEXT) -> Lane:
        """A lane for a new stream, or for words of the gateway's own beside one, which it leaves as it is. text: keeps
        its text."""
        op = cast("Generate", call.asked)  # no other operation is streamed
        dialect, backend, most = call.reply.dialect, call.served.backend, call.runtime.relay.max_reply_bytes
        if call.hold is None:
            return lane_for(dialect, backend, op, most, text)
        return call.hold.lane(partial(backend.reader, op), dialect.writer(op), most, text)


class QuestionDelivery(Delivery):
    """For an operation that workers answer without their model (`core.messages.Question`): it takes no slot, passes
    the queue by, and may be answered by any status."""

    takes_slot = False

    async def run(self, call: Call, visit: Visit) -> None:
        most = call.runtime.relay.max_reply_bytes
        await self.respond(call, await visit.ask(call.outgoing.request, call.outgoing.deadlines, most))

    def translated(self, call: Call, response: Response) -> Response:
        assert call.outgoing.question is not None
        return call.reply.dialect.write(call.outgoing.question.read(response), call.asked)


class TextDelivery(Delivery):
    """For text completions: one request or, if it cannot ask for all choices, a series of them."""

    async def run(self, call: Call, visit: Visit) -> None:
        op = call.op  # None if another worker goes on with a stream
        requests = (op,) if type(op) is not Complete else series.runs(op)
        if len(requests) < 2:
            await super().run(call, visit)
        else:
            call.keeps_op = True  # the prompt is needed for the next request
            await _Series(call, requests).run(call, visit)


class _Series(Delivery):
    """Replies to several requests, which one worker gets one after the other, as one reply: that of one visit."""

    def __init__(self, call: Call, requests: Sequence[Complete]) -> None:
        self._requests = requests
        self._lane: Lane | None = None
        self._replies: list[Reply] = []
        self._bytes_left = call.runtime.relay.max_reply_bytes

    async def run(self, call: Call, visit: Visit) -> None:
        await super().run(call, visit)
        outgoing, visit.request = call.outgoing, None
        begin = outgoing.request
        try:
            for op in self._requests[1:]:
                call.reply_at = None  # the worker is at work again
                await run_step(call.share, outgoing.write_part, op)
                await super().run(call, visit)
        finally:
            outgoing.request = begin  # another worker is asked for all

    def stream(self, call: Call, visit: Visit, exchange: Exchange) -> Awaitable[None]:
        if self._lane is None:
            self._lane = call.lane = self.lane(call, call.sent_text)
        return carry_stream(call, visit, exchange, self._lane)

    def lane(self, call: Call, text: SentText = NO_TEXT) -> Lane:
        dialect, backend, most = call.reply.dialect, call.served.backend, call.runtime.relay.max_reply_bytes
        reader = partial(series.SeriesReader, backend.reader, self._requests)
        writer = dialect.writer(cast("Complete", call.asked))
        if call.hold is not None:
            return call.hold.lane(reader, writer, most, text)
        text.stop("choices")
        return EventLane(reader, writer, most, text)

    async def respond(self, call: Call, response: Response) -> None:
        call.reply_at = call.runtime.clock()
        self._bytes_left -= len(response.body)
        if self._bytes_left < 0:
            raise reply_too_large()
        backend, op = call.served.backend, self._requests[len(self._replies)]
        large = is_large(response.body)
        read = (
            await offload_in_turn(call.owner, read_whole, backend, response, op, share=call.share)
            if large
            else read_whole(backend, response, op)
        )
        self._replies.append(cast("Reply", read))
        if len(self._replies) == len(self._requests):
            reply = series.joined(self._replies)
            call.record.usage = reply.usage
            await respond_joined(call, reply)


_ORDINARY, _QUESTION = Delivery(), QuestionDelivery()
DELIVERIES: Mapping[type, Delivery] = {
    Chat: _ORDINARY,
    Complete: TextDelivery(),
    Embed: _ORDINARY,
    Score: _ORDINARY,
    CountTokens: _QUESTION,
    Tokenize: _QUESTION,
    Detokenize: _QUESTION,
}
"""The kernel's deliveries, by operation. Features may bring more."""


def carry_stream(call: Call, visit: Visit, exchange: Exchange, lane: Lane) -> Awaitable[None]:
    """Carries a worker's stream through `lane` to the client, once it is awaited. Raises GatewayError then if the
    stream failed."""
    if visit.produced_before != lane.produced:
        visit.produced_before = lane.produced
    return Pump(exchange, lane, call, visit).run()


async def respond_joined(call: Call, reply: Reply) -> None:
    """Passes on a whole reply that several of workers' make."""
    if call.record.trace is not None:
        call.finishes = [choice.reason for choice in reply.choices]
    response = call.reply.dialect.write(reply, call.asked)
    if call.hold is None:
        await call.reply.respond(response)
    else:
        call.hold.keep(response, reply)


async def conclude(call: Call, last: bytes) -> None:
    """Ends the client's stream by its last bytes, without a worker. Raises GatewayError if they are not allowed."""
    assert call.lane is not None
    if call.hold is not None:
        await call.hold.finish()
    else:
        call.settle()
        await call.reply.conclude(last, call.lane)
