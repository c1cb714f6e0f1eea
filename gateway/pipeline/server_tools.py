"""Requests that ask for a tool which the server of the client's API runs."""

from __future__ import annotations

import secrets
from typing import cast

from gateway.core.events import End, Finish, Start, UsageReport
from gateway.core.http import Response
from gateway.core.lifecycle import Reply, ReplyChoice
from gateway.core.messages import Chat, ServerCall
from gateway.core.ports import ServerToolWriter
from gateway.core.usage import Usage
from gateway.pipeline.attempts import Attempts
from gateway.wire import clock

_NOTHING = Usage(0, 0, source="counted")


class Unavailable(Attempts):
    """Answers a request for nothing but a tool that nothing here runs: with the failed call, and without a worker,
    because a model without the tool would make its results up."""

    async def run(self) -> None:
        call = self._call
        op = call.op
        assert isinstance(op, Chat)
        assert op.unavailable is not None
        failed = ServerCall(secrets.token_hex(12), op.unavailable, "unavailable")
        call.record.usage = _NOTHING
        start = Start(call.record.id, call.served.name, int(clock.seconds()))
        dialect = call.reply.dialect
        if not op.stream:
            reply = Reply(start, [ReplyChoice(0, [], server_calls=[failed])], _NOTHING)
            await call.reply.respond(dialect.write(reply, op))
            return
        writer = cast(ServerToolWriter, dialect.writer(op))
        pieces = [writer.write(start), writer.called(failed), writer.returned(failed)]
        pieces += [writer.write(Finish(0, "stop", "stop")), writer.write(UsageReport(_NOTHING)), writer.write(End())]
        await call.reply.respond(Response(200, writer.headers, b"".join(pieces)))
