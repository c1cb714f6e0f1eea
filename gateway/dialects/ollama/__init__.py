"""The Ollama-style API: chat completions whole, as newline-delimited JSON, or as server-sent events.

Source: "Chat Completions API Specification" (docs/dialects/ollama.md). It resembles Ollama's API but is not the same:
ollama-python and ollama-js cannot call it. Where it leaves a question open, this dialect follows Ollama.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.errors import GatewayError
from gateway.core.fields import ExtrasPolicy
from gateway.core.http import Request, Response, Route
from gateway.core.lifecycle import Reply, WholeReply
from gateway.core.messages import Generate, Op
from gateway.core.ports import Passthrough, StreamWriter
from gateway.dialects.ollama.errors import ERRORS, error_object, refuse
from gateway.dialects.ollama.fields import EXAMPLES, FIELDS
from gateway.dialects.ollama.replies import EventWriter, LineWriter, write
from gateway.dialects.ollama.requests import read
from gateway.wire.json import whole_numbers


class Ollama:
    """The dialect `ollama`."""

    name = "ollama"
    prefixes: tuple[str, ...] = ("/ollama",)
    extras: ExtrasPolicy = "drop"
    routes: tuple[Route, ...] = (
        Route("POST", "/chat/completions", "chat"),
        Route("POST", "/chat/sse", "sse"),
    )
    fields = FIELDS
    examples = EXAMPLES
    errors = ERRORS
    key_header = b"authorization"
    passthrough: Mapping[str, Passthrough] = {}

    @whole_numbers
    def read(self, request: Request) -> Op:
        return read(request, self.extras)

    def write(self, reply: WholeReply, op: Op) -> Response:
        assert isinstance(reply, Reply)
        return write(reply, op)

    def writer(self, op: Generate) -> StreamWriter:
        return EventWriter(error_object) if op.view == "sse" else LineWriter(error_object)

    def refuse(self, error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
        return refuse(error, request, op)
