"""Anthropic: the Messages API, streamed and whole; the count of a prompt's tokens; models.

Sources: Anthropic's reference; anthropic-python 2.12 and 0.125, anthropic-node 1.12, Claude Code 2.1, the AI SDK and
langchain-anthropic as recorded clients (docs/dialects/anthropic.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.core.errors import GatewayError
from gateway.core.fields import ExtrasPolicy
from gateway.core.http import HeaderTest, Request, Response, Route
from gateway.core.lifecycle import Reply, TokenCount, WholeReply
from gateway.core.messages import Generate, ListModels, ModelCard, Op
from gateway.core.ports import Passthrough, StreamWriter
from gateway.dialects.anthropic import models
from gateway.dialects.anthropic.errors import ERRORS, error_event, refuse
from gateway.dialects.anthropic.fields import EXAMPLES, FIELDS, KNOWN
from gateway.dialects.anthropic.replies import StreamWriter as Writer
from gateway.dialects.anthropic.replies import write, write_count
from gateway.dialects.anthropic.requests import read_chat, read_count
from gateway.wire.json import members, require_json, settle_unknown, whole_numbers
from gateway.wire.openai.requests.constraints import CONSTRAINTS

_OURS = HeaderTest(b"anthropic-version")


class Anthropic:
    """The dialect `anthropic`."""

    name = "anthropic"
    prefixes: tuple[str, ...] = ("", "/anthropic")
    extras: ExtrasPolicy = "drop"
    routes: tuple[Route, ...] = (
        Route("POST", "/v1/messages", "chat"),
        Route("POST", "/v1/messages/count_tokens", "count"),
        Route("GET", "/v1/models", "models", when=_OURS),
        Route("GET", "/v1/models/{model:path}", "model", when=_OURS),
        # Claude Code probes its base URL when it starts.
        Route("HEAD", "", "probe", open=True),
        Route("HEAD", "/", "probe", open=True),
        Route("HEAD", "/api/hello", "probe", open=True),
    )
    fields = FIELDS
    examples = EXAMPLES
    errors = ERRORS
    # No bytes lane: no backend's workers speak this wire.
    key_header = b"x-api-key"
    passthrough: Mapping[str, Passthrough] = {}

    @whole_numbers
    def read(self, request: Request) -> Op | ListModels:
        _accompany(request)
        if request.route == "probe":
            return ListModels(write=_hello)
        if request.route == "models":
            return models.read_list(request)
        if request.route == "model":
            return ListModels(write=models.write_one, model=request.params["model"])
        require_json(request)
        raw = members(request)
        extra, dropped = settle_unknown(
            raw, KNOWN[request.route], self.extras, binding=CONSTRAINTS.get(request.route, ())
        )
        read = read_count if request.route == "count" else read_chat
        op: Op = read(raw, extra, dropped, self.extras)
        op.view = request.id
        return op

    def write(self, reply: WholeReply, op: Op) -> Response:
        if isinstance(reply, TokenCount):
            return write_count(reply)
        assert isinstance(reply, Reply)
        return write(reply, op)

    def writer(self, op: Generate) -> StreamWriter:
        return Writer(op, error_event)

    def refuse(self, error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
        if request is not None:
            _accompany(request)
        return refuse(error, request, op)


def _accompany(request: Request) -> None:
    """Adds the header `request-id`, which clients show in their errors."""
    if not any(name == b"request-id" for name, _ in request.reply):
        request.reply = [*request.reply, (b"request-id", request.id.encode())]


def _hello(cards: Sequence[ModelCard]) -> Response:
    """The reply to a probe. It needs no key, so it tells nothing about the models."""
    return Response(200)
