"""Requests that ask for a tool which the server of the client's API runs: here the gateway, if it is set up for it.

A model that calls such a tool gets its result from the gateway and goes on, in another round (`translation.rounds`).
Each round is a request to a worker like any other: it is picked, retried and measured for itself. Limits, record and
bill are those of the one request of the client.
"""

from __future__ import annotations

import secrets
from asyncio import CancelledError
from collections.abc import Awaitable
from functools import partial
from typing import cast

from msgspec import UNSET

from gateway.core.charged import is_unseen, produced_at_most
from gateway.core.errors import GatewayError
from gateway.core.events import End, Finish, Start, UsageReport
from gateway.core.http import Response
from gateway.core.lifecycle import Reply, ReplyChoice
from gateway.core.messages import Chat, ServerCall
from gateway.core.ports import Exchange, ServerTools, ServerToolWriter
from gateway.core.usage import Usage
from gateway.features import Built, Parts
from gateway.kernel.asking import deadlines_for
from gateway.kernel.call import Call
from gateway.kernel.delivery import Delivery, carry_stream, conclude, respond_joined
from gateway.kernel.feature import Failure, Feature, Step
from gateway.kernel.outgoing import Outgoing
from gateway.kernel.visit import Visit
from gateway.light_task import become_task
from gateway.offload import offload, run_step
from gateway.tools import WebTools
from gateway.translation.guarded import event_lane
from gateway.translation.lanes import EventLane
from gateway.translation.rounds import RoundReader, joined
from gateway.translation.rounds import Rounds as ToolRounds
from gateway.translation.whole import read_whole
from gateway.wire import clock
from gateway.wire.bulk import is_large

_NOTHING = Usage(0, 0, source="counted")


class ServerSideTools(Feature):
    """Requests that ask for tools of the server's. tools: those that the gateway runs; None if it runs none."""

    def __init__(self, tools: ServerTools | None) -> None:
        self._tools = tools

    def around_workers(self, inner: Step) -> Step:
        def workers(call: Call) -> Awaitable[None]:
            op = call.op
            if type(op) is not Chat or not op.server_tools:
                return inner(call)
            if not op.tools:
                return refuse_tool(call)
            assert self._tools is not None  # without them the dialect would have left the tools out
            return Rounds(call, self._tools, inner).all()

        return workers

    def around_failure(self, inner: Failure) -> Failure:
        def failure(call: Call, visit: Visit, error: GatewayError) -> Awaitable[bool]:
            delivery = call.delivery
            # The writer has counted what it wrote of a round, whether the client has seen it or not.
            return _over() if type(delivery) is Rounds and delivery.shown else inner(call, visit, error)

        return failure


async def _over() -> bool:
    return False


async def refuse_tool(call: Call) -> None:
    """Answers a request for nothing but a tool that nothing here runs: with the failed call, and without a worker,
    because a model without the tool would make its results up."""
    op = call.op
    assert isinstance(op, Chat)
    failed = ServerCall(secrets.token_hex(12), op.server_tools[0], error="unavailable")
    call.record.usage = _NOTHING
    start = Start(call.record.id, call.served.name, int(clock.seconds()))
    dialect = call.reply.dialect
    if not op.stream:
        reply = Reply(start, [ReplyChoice(0, [], server_calls=((0, failed),))], _NOTHING)
        await call.reply.respond(dialect.write(reply, op))
        return
    writer = cast("ServerToolWriter", dialect.writer(op))
    pieces = [writer.write(start), writer.called(failed), writer.returned(failed)]
    pieces += [writer.write(Finish(0, "stop", "stop")), writer.write(UsageReport(_NOTHING)), writer.write(End())]
    await call.reply.respond(Response(200, writer.headers, b"".join(pieces)))


class Rounds(Delivery):
    """The rounds of a request whose model may call tools of the gateway's, until the model has answered. The delivery
    of the replies of all rounds, which the client sees as one.

    ask  has the workers asked for one round
    """

    _lane: EventLane | None = None
    _writer: ServerToolWriter
    _began = 0.0

    def __init__(self, call: Call, tools: ServerTools, ask: Step) -> None:
        self._call = call
        self._ask = ask
        self._run_tool = tools.run
        self._rounds = ToolRounds(cast("Chat", call.op), tools.most)
        self._last: Reply | None = None
        call.delivery = self
        call.keeps_op = True  # the prompt is needed for the next round

    @property
    def shown(self) -> bool:
        """The round that is under way has written something."""
        return bool(self._rounds.count and self._rounds.shown)

    async def all(self) -> None:
        """Has the model answer, round after round. Raises GatewayError."""
        await self._ask(self._call)
        call, rounds = self._call, self._rounds
        time_to_first_token_ms = call.record.time_to_first_token_ms
        while rounds.pending:
            lane = self._lane
            self._note_usage(rounds.usage)
            ended, attempts, produced = rounds.count, call.record.attempts, 0 if lane is None else lane.produced
            try:
                if lane is not None:
                    call.reply.pause()
                    call.fallbacks = ()  # the client has seen a part
                await self._run_tools()
                if rounds.over:
                    await self._end()
                    return
                await self._next()
                await self._ask(call)
            except (GatewayError, CancelledError) as error:
                if rounds.count == ended and call.record.attempts > attempts:
                    self._note_usage(joined(rounds.usage, self._usage_of_round(error, produced)))
                if isinstance(error, GatewayError):
                    # No other model goes on.
                    call.reply.committed = call.reply.committed or lane is not None
                raise
            finally:
                call.record.time_to_first_token_ms = time_to_first_token_ms

    async def _run_tools(self) -> None:
        """Runs the pending calls, one after the other; a streaming client sees each begin and end."""
        call, reply, lane = self._call, self._call.reply, self._lane
        await become_task()
        for pending in self._rounds.pending:
            if call.hold is not None and pending.asked:
                pending.asked = await call.hold.allow_call(pending.asked, pending.tool.name)
            if lane is not None:
                await reply.inject(self._writer.called(pending), lane)
            if pending.error is None:
                await self._run_tool(pending)
            if lane is not None:
                await reply.inject(self._writer.returned(pending), lane)
            kind, error = pending.tool.kind, pending.error
            call.runtime.observer.tool_called(kind, error)
            before = () if call.record.tools is UNSET else call.record.tools
            call.record.tools = (*before, kind if error is None else f"{kind} {error}")

    async def _next(self) -> None:
        """Writes the request for the next round."""
        call, rounds = self._call, self._rounds
        runtime, served, share, before = call.runtime, call.served, call.share, call.routing
        rounds.go_on(runtime.estimate, served.can.max_context)
        op = rounds.op
        outgoing = Outgoing(served, call.record.id, share, call.context)
        outgoing.deadlines, outgoing.finish = deadlines_for(call, rounds.prompt), call.outgoing.finish
        call.outgoing = outgoing
        write = partial(outgoing.write, op, lambda _: rounds.prompt, grown=True)
        cut = await run_step(share, write)
        if cut:
            call.reply.name_left_out(cut)
        facts = await run_step(share, served.pool.routing, op, call.reply.request.headers)
        facts.tenant, facts.size, facts.until = before.tenant, before.size, before.until
        call.routing, call.prompt, call.tried = facts, None, ()
        self._began = runtime.clock()

    def _note_usage(self, usage: Usage | None) -> None:
        """The request has used so much by now."""
        if self._lane is not None:
            self._lane.usage = usage
        else:
            self._call.record.usage = usage

    def _usage_of_round(self, error: GatewayError | CancelledError, produced: int) -> Usage | None:
        """The usage of the round that ends with `error`, by the rules for a whole request (`core.charged`). produced:
        the output of the client's stream before it."""
        call, rounds, cause = self._call, self._rounds, error
        if isinstance(error, CancelledError):
            cause = call.interrupted or error
        unknown = isinstance(cause, CancelledError) or is_unseen(cause)
        if self._lane is not None:
            output = self._lane.produced - produced
        elif unknown:
            output, most = produced_at_most(1, call.runtime.clock() - self._began), rounds.op.max_output
            output = output if most is None else min(output, most)
        else:
            output = 0
        return Usage(rounds.prompt, output, source="estimated") if output or unknown else None

    async def _end(self) -> None:
        """Ends a reply whose last round has called tools: others that the client runs, or more than it may."""
        call, rounds = self._call, self._rounds
        if self._lane is None:
            assert self._last is not None
            await self._respond_whole(self._last)
            return
        last = self._lane.end_by(rounds.ending)
        call.reply.committed = True
        await conclude(call, last)

    # -- the reply of one round -------------------------------------------------------------------------------------

    def stream(self, call: Call, visit: Visit, exchange: Exchange) -> Awaitable[None]:
        call.lane = lane = self._lane_of_round(call)
        return carry_stream(call, visit, exchange, lane)

    def _lane_of_round(self, call: Call) -> EventLane:
        """A lane for the first round; for the next ones the same, since the client sees one reply."""
        rounds, text = self._rounds, call.sent_text
        text.stop("tool_call")
        if self._lane is not None and rounds.count:
            self._lane.restart()
            return self._lane
        served, most = call.served, call.runtime.relay.max_reply_bytes
        plain = call.reply.dialect.writer(cast("Chat", call.asked))
        writer = plain if call.hold is None else call.hold.writer(plain)
        self._writer = tool_writer = cast("ServerToolWriter", writer)

        def reader() -> RoundReader:
            return RoundReader(served.backend.reader(rounds.op), rounds, tool_writer)

        self._lane = event_lane(reader, writer, most, text)
        return self._lane

    async def respond(self, call: Call, response: Response) -> None:
        rounds = self._rounds
        call.reply_at = call.runtime.clock()
        backend = call.served.backend
        large = is_large(response.body)
        read = (
            await offload(read_whole, backend, response, rounds.op, share=call.share)
            if large
            else read_whole(backend, response, rounds.op)
        )
        self._last = reply = cast("Reply", read)
        choice = reply.choices[0]
        rounds.end_round(choice.parts, choice.reason == "length", reply.usage)
        call.record.usage = rounds.usage
        if not rounds.pending:
            await self._respond_whole(reply)

    async def _respond_whole(self, last: Reply) -> None:
        await respond_joined(self._call, self._rounds.whole(last))


def build(parts: Parts) -> Built:
    options, tools = parts.config.tools, parts.earlier_services.get("web_tools")
    if tools is None or tools.options != options:
        tools = WebTools(options, offload) if options.runs else None
    return Built((ServerSideTools(tools),), service=tools)
