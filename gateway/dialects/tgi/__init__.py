"""TGI: the API of text-generation-inference, for its clients and those of Hugging Face.

Sources: text-generation-inference at db931fc (January 2026); text-generation 0.7.0 and huggingface_hub 0.36 and 2.4 as
recorded clients (docs/dialects/tgi.md). The backend of the same name is for TGI as a worker.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.errors import GatewayError
from gateway.core.fields import ExtrasPolicy
from gateway.core.http import Request, Response, Route
from gateway.core.lifecycle import Reply, WholeReply
from gateway.core.messages import Complete, Generate, ListModels, Op
from gateway.core.ports import Passthrough, StreamWriter
from gateway.dialects.tgi import models
from gateway.dialects.tgi.errors import ERRORS, error_event, refuse
from gateway.dialects.tgi.fields import EXAMPLES, FIELDS, KNOWN
from gateway.dialects.tgi.replies import ChatWriter, Writer, write
from gateway.dialects.tgi.requests import read
from gateway.wire.json import members, require_json, whole_numbers
from gateway.wire.openai import operations

_LISTS = {"models": operations.write_models, "info": models.info, "health": models.health}


class TGI:
    """The dialect `tgi`."""

    name = "tgi"
    prefixes: tuple[str, ...] = ("/tgi",)
    extras: ExtrasPolicy = "drop"
    routes: tuple[Route, ...] = (
        Route("POST", "/v1/chat/completions", "chat"),
        Route("POST", "", "root"),
        Route("POST", "/", "root"),
        Route("POST", "/generate", "generate"),
        Route("POST", "/generate_stream", "generate_stream"),
        Route("GET", "/info", "info"),
        Route("GET", "/v1/models", "models"),
        Route("GET", "", "health", open=True),
        Route("GET", "/", "health", open=True),
        Route("GET", "/health", "health", open=True),
        Route("GET", "/ping", "health", open=True),
    )
    fields = FIELDS
    examples = EXAMPLES
    errors = ERRORS
    key_header = b"authorization"
    passthrough: Mapping[str, Passthrough] = {}

    @whole_numbers
    def read(self, request: Request) -> Op | ListModels:
        if request.route in _LISTS:
            return ListModels(write=_LISTS[request.route], one=request.route == "info")
        if request.route != "chat":
            return read(request, self.extras)
        require_json(request)
        return operations.read(request, members(request), "chat", KNOWN["chat"], self.extras)

    def write(self, reply: WholeReply, op: Op) -> Response:
        if isinstance(op, Complete):
            assert isinstance(reply, Reply)
            return write(reply, op)
        if isinstance(reply, Reply):
            reply.start.fingerprint = reply.start.fingerprint or ""
        return operations.write(reply, op)

    def writer(self, op: Generate) -> StreamWriter:
        return Writer(op) if isinstance(op, Complete) else ChatWriter(op, error_event)

    def refuse(self, error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
        return refuse(error, request, op)
