"""Friendli: text completions, and chats, streamed and whole.

A stream of a text has the form of its path: the specification's events under `/v1`, chunks under `/serverless/v1` and
`/dedicated/v1`, which is where friendli 0.16.3 calls.

Sources: "Text completions" of Friendli's API reference (docs/dialects/friendli.md); friendli-client 1.5.8 and friendli
0.16.3 as recorded clients; field names from friendli-client's `V1CompletionsRequest`. A request for what a worker
cannot do gets a 422, one with an invalid value a 400. Nothing is silently ignored.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial

from gateway.core.errors import Kind
from gateway.core.fields import ExtrasPolicy
from gateway.core.http import Request, Route
from gateway.core.messages import Chat, Complete, Extra, Generate, Op
from gateway.core.ports import StreamWriter
from gateway.dialects._shared.api import Api
from gateway.dialects.friendli.fields import EXAMPLES, FIELDS, TEAM
from gateway.dialects.friendli.replies import ERRORS, ChatWriter, ChunkWriter, TokenWriter, error_event, refuse, write
from gateway.dialects.friendli.requests import read_chat, read_complete


class Friendli(Api):
    """The dialect `friendli`. `draw` returns a random number below its argument: the seed of a request without one.

    No passthrough lane: text completions have their own events; chats have their own defaults and finish reasons.
    """

    name = "friendli"
    prefixes = ("/friendli",)
    extras: ExtrasPolicy = "error"
    unknown = Kind.UNSUPPORTED
    routes = (
        Route("POST", "/v1/completions", "complete"),
        Route("POST", "/v1/chat/completions", "chat"),
        Route("POST", "/serverless/v1/completions", "chunks"),
        Route("POST", "/serverless/v1/chat/completions", "chat"),
        Route("POST", "/dedicated/v1/completions", "chunks"),
        Route("POST", "/dedicated/v1/chat/completions", "chat"),
    )
    fields, examples, errors = FIELDS, EXAMPLES, ERRORS
    draw: Callable[[int], int] = staticmethod(secrets.randbelow)
    refusal = staticmethod(refuse)
    write_reply = staticmethod(write)

    def read_body(self, request: Request, raw: Extra) -> Op:
        operation = "chat" if request.route == "chat" else "complete"
        extra, dropped = self.settle(raw, operation)
        if request.header(b"x-friendli-team") is not None:
            dropped = (*dropped, TEAM.name)
        op: Chat | Complete
        if operation == "chat":
            op = read_chat(raw, extra, self.extras)
        else:
            op = read_complete(raw, extra, self.extras, self.draw)
        op.dropped, op.view = (*dropped, *op.dropped), request.route
        return op

    def writer(self, op: Generate) -> StreamWriter:
        refuse = partial(error_event, op=op)
        if isinstance(op, Chat):
            return ChatWriter(op, refuse)
        return ChunkWriter(op, refuse) if op.view == "chunks" else TokenWriter(op)
