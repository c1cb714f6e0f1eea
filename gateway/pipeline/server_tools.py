"""Requests that ask for a tool which the server of the client's API runs: here the gateway, if it is set up for it.

A model that calls such a tool gets its result from the gateway and goes on, in another round (`translation.rounds`).
Each round is a request to a worker like any other: it is picked, retried and measured for itself. Limits, record and
bill are those of the one request of the client.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import cast

from msgspec import UNSET

from gateway.core.continuation import NOT_KEPT, SeenText
from gateway.core.errors import GatewayError
from gateway.core.events import End, Finish, Start, UsageReport
from gateway.core.http import Response
from gateway.core.lifecycle import Reply, ReplyChoice
from gateway.core.messages import Chat, ServerCall
from gateway.core.ports import Lane, ServerTools, ServerToolWriter
from gateway.core.usage import Usage
from gateway.light_task import become_task
from gateway.pipeline.attempts import Attempts
from gateway.pipeline.call import Call
from gateway.pipeline.offload import offload, run_step
from gateway.pipeline.outgoing import Outgoing
from gateway.pipeline.visit import Visit
from gateway.pipeline.watch import Watcher
from gateway.translation.guarded import event_lane
from gateway.translation.lanes import EventLane
from gateway.translation.rounds import RoundReader, Rounds
from gateway.translation.whole import read_whole
from gateway.wire import clock
from gateway.wire.bulk import is_large

_NOTHING = Usage(0, 0, source="counted")


class Unavailable(Attempts):
    """Answers a request for nothing but a tool that nothing here runs: with the failed call, and without a worker,
    because a model without the tool would make its results up."""

    async def run(self) -> None:
        call = self._call
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


class RunsTools(Watcher):
    """Has the tools of a configuration, and keeps the prompt for the next round, which other streams let go of."""

    def __init__(self, tools: ServerTools) -> None:
        self.tools = tools

    def needs_operation(self, call: Call) -> bool:
        return isinstance(call.op, Chat) and bool(call.op.server_tools)


class RoundAttempts(Attempts):
    """The attempts of a request whose model may call tools of the gateway's: those of each round, until the model has
    answered."""

    _lane: EventLane | None = None
    _writer: ServerToolWriter

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        # There is one: without it the dialect would have left the tools out.
        tools = next(one.tools for one in call.watchers.all if isinstance(one, RunsTools))
        self._run_tool = tools.run
        self._rounds = Rounds(cast("Chat", call.op), tools.most)
        self._last: Reply | None = None

    async def run(self) -> None:
        await super().run()
        call, rounds = self._call, self._rounds
        ttft_ms = call.record.ttft_ms
        while rounds.pending:
            lane = self._lane
            try:
                if lane is not None:
                    call.reply.pause()
                await self._run_tools()
                if rounds.over:
                    await self._end()
                    return
                await self._next()
                await super().run()
            except GatewayError:
                # No other model goes on: the client has seen a part.
                call.reply.committed = call.reply.committed or lane is not None
                raise
            finally:
                call.record.ttft_ms = ttft_ms

    async def _run_tools(self) -> None:
        """Runs the pending calls, one after the other; a streaming client sees each begin and end."""
        call, reply = self._call, self._call.reply
        await become_task()
        for pending in self._rounds.pending:
            if call.guard is not None and pending.asked:
                pending.asked = await call.guard.allow_call(pending.asked, pending.tool.name)
            if self._lane is not None:
                reply.say(self._writer.called(pending))
            if pending.error is None:
                await self._run_tool(pending)
            if self._lane is not None:
                reply.say(self._writer.returned(pending))
            kind, error = pending.tool.kind, pending.error
            call.runtime.observer.tool_called(kind, error)
            before = () if call.record.tools is UNSET else call.record.tools
            call.record.tools = (*before, kind if error is None else f"{kind} {error}")

    async def _next(self) -> None:
        """Writes the request for the next round."""
        call, rounds = self._call, self._rounds
        runtime, served, share, before = call.runtime, call.served, call.share, call.routing
        rounds.go_on(runtime.estimate, served.can.max_context)
        call.op = op = rounds.op
        deadlines = call.outgoing.deadlines
        call.outgoing = outgoing = Outgoing(served, call.record.id, share, call.context)
        outgoing.deadlines = deadlines
        write = partial(outgoing.write, op, lambda _: rounds.prompt, grown=True)
        cut = await run_step(share, write)
        if cut:
            call.reply.name_left_out(cut)
        facts = await run_step(share, served.pool.routing, op, call.reply.request.headers)
        facts.tenant, facts.size, facts.until = before.tenant, before.size, before.until
        call.routing, call.prompt, call.tried = facts, None, ()
        self._before, self._failure, self._failed_at = call.record.attempts, None, ""
        if self._lane is not None:
            self._lane.usage, call.produced_before = rounds.usage, self._lane.produced

    async def _end(self) -> None:
        """Ends a reply whose last round has called tools: others that the client runs, or more than it may."""
        call, rounds = self._call, self._rounds
        if self._lane is None:
            assert self._last is not None
            await self._respond_whole(self._last)
            return
        last = self._lane.end_by(rounds.ending)
        call.reply.committed = True
        await self._conclude(last)

    # -- one attempt ------------------------------------------------------------------------------------------------

    def _may_retry(self, error: GatewayError, visit: Visit) -> bool:
        # The writer has counted what it wrote of a round, whether the client has seen it or not.
        return not (self._rounds.count and self._rounds.shown) and super()._may_retry(error, visit)

    def _new_lane(self, seen: SeenText = NOT_KEPT) -> Lane:
        """A lane for the first round; for the next ones the same, since the client sees one reply."""
        call, rounds = self._call, self._rounds
        seen.stop("tool_call")
        if self._lane is not None and rounds.count:
            self._lane.restart()
            return self._lane
        served, most = call.served, call.runtime.relay.max_reply_bytes
        plain = call.reply.dialect.writer(cast("Chat", call.asked))
        writer = plain if call.guard is None else call.guard.writer(plain)
        self._writer = tool_writer = cast("ServerToolWriter", writer)

        def reader() -> RoundReader:
            return RoundReader(served.backend.reader(rounds.op), rounds, tool_writer)

        self._lane = event_lane(reader, writer, most, seen)
        return self._lane

    async def _respond(self, response: Response) -> None:
        call, rounds = self._call, self._rounds
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
        call = self._call
        reply = self._rounds.whole(last)
        if call.record.trace is not None:
            call.finishes = [choice.reason for choice in reply.choices]
        response = call.reply.dialect.write(reply, call.asked)
        if call.guard is None:
            await call.reply.respond(response)
        else:
            call.guard.keep(response, reply)
