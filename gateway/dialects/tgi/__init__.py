"""TGI: the API of text-generation-inference, for its clients and those of Hugging Face.

Sources: text-generation-inference at db931fc (January 2026); text-generation 0.7.0 and huggingface_hub 0.36 and 2.4 as
recorded clients (docs/dialects/tgi.md). The backend of the same name is for TGI as a worker.
"""

from __future__ import annotations

from gateway.core.http import Request, Response, Route
from gateway.core.lifecycle import Reply, Tokens, WholeReply
from gateway.core.messages import Complete, Extra, Generate, Op, Tokenize
from gateway.core.ports import StreamWriter
from gateway.dialects._shared.api import Api, listing
from gateway.dialects.tgi import tokens
from gateway.dialects.tgi.fields import EXAMPLES, FIELDS
from gateway.dialects.tgi.replies import ERRORS, ChatWriter, TokenWriter, error_event, health, info, refuse, write
from gateway.dialects.tgi.requests import read
from gateway.wire.openai import operations


class TGI(Api):
    name = "tgi"
    prefixes = ("/tgi",)
    routes = (
        Route("POST", "/v1/chat/completions", "chat"),
        *(Route("POST", path, "root") for path in ("", "/")),
        Route("POST", "/generate", "generate"),
        Route("POST", "/generate_stream", "generate_stream"),
        Route("POST", "/tokenize", "tokenize"),
        Route("GET", "/info", "info"),
        Route("GET", "/v1/models", "models"),
        *(Route("GET", path, "health", open=True) for path in ("", "/", "/health", "/ping")),
    )
    fields, examples, errors = FIELDS, EXAMPLES, ERRORS
    answered = {"models": listing(operations.write_models), "info": listing(info, one=True), "health": listing(health)}
    refusal = staticmethod(refuse)

    def read_body(self, request: Request, raw: Extra) -> Op:
        if request.route == "tokenize":
            return tokens.read(raw, self)
        if request.route != "chat":
            return read(request, raw, self)
        return operations.read(request, raw, "chat", self.known["chat"], self.extras)

    def write(self, reply: WholeReply, op: Op) -> Response:
        if isinstance(reply, Tokens) and isinstance(op, Tokenize):
            return tokens.write(reply, op)
        return super().write(reply, op)

    def write_reply(self, reply: Reply, op: Generate) -> Response:
        if isinstance(op, Complete):
            return write(reply, op)
        reply.start.fingerprint = reply.start.fingerprint or ""
        return operations.write(reply, op)

    def writer(self, op: Generate) -> StreamWriter:
        return TokenWriter(op) if isinstance(op, Complete) else ChatWriter(op, error_event)
