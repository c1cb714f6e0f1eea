"""Anthropic: the Messages API, streamed and whole; the count of a prompt's tokens; models.

Sources: Anthropic's reference; anthropic-python 2.12 and 0.125, anthropic-node 1.12, Claude Code 2.1, the AI SDK and
langchain-anthropic as recorded clients (docs/dialects/anthropic.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.http import HeaderTest, Request, Response, Route
from gateway.core.messages import Extra, ModelCard, Op
from gateway.dialects._shared.api import Api, listing
from gateway.dialects._shared.faults import add_header_once
from gateway.dialects.anthropic import models, replies
from gateway.dialects.anthropic.errors import ERRORS, refuse
from gateway.dialects.anthropic.fields import EXAMPLES, FIELDS
from gateway.dialects.anthropic.requests import read_chat, read_count

_OURS = HeaderTest(b"anthropic-version")


def _hello(cards: Sequence[ModelCard]) -> Response:
    """The reply to a probe. It needs no key, so it tells nothing about the models."""
    return Response(200)


class Anthropic(Api):
    """The dialect `anthropic`. No passthrough lane: no backend's workers speak this wire."""

    name = "anthropic"
    prefixes = ("", "/anthropic")
    routes = (
        Route("POST", "/v1/messages", "chat"),
        Route("POST", "/v1/messages/count_tokens", "count"),
        Route("GET", "/v1/models", "models", when=_OURS),
        Route("GET", "/v1/models/{model:path}", "model", when=_OURS),
        # Claude Code probes its base URL when it starts.
        *(Route("HEAD", path, "probe", open=True) for path in ("", "/", "/api/hello")),
    )
    fields, examples, errors = FIELDS, EXAMPLES, ERRORS
    key_header = b"x-api-key"
    limit_headers = b"anthropic-ratelimit-"
    answered = {"probe": listing(_hello), "models": models.read_list, "model": listing(models.write_one)}
    refusal = staticmethod(refuse)
    write_reply = staticmethod(replies.write)
    write_count = staticmethod(replies.write_count)
    writer = staticmethod(replies.StreamWriter)

    def accompany(self, request: Request) -> None:
        """Adds the header `request-id`, which clients show in their errors."""
        add_header_once(request, b"request-id", request.id.encode())

    def read_body(self, request: Request, raw: Extra) -> Op:
        extra, dropped = self.settle(raw, request.route)
        read = read_count if request.route == "count" else read_chat
        op: Op = read(raw, extra, dropped, self.extras, self.runs)
        op.memo = replies.Message(request.id)
        return op
