"""Friendli's errors: its statuses and its own names for the fields, in a body and as a stream's last event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import own_name
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.messages import Chat, Complete, Op
from gateway.dialects.friendli.fields import FIELDS, TIMEOUT
from gateway.wire import sse
from gateway.wire.json import encode, encode_line, sent_names
from gateway.wire.openai.replies import refusals

ERRORS: Mapping[Kind, tuple[int, str, str]] = {
    **refusals.ERRORS,
    Kind.UNSUPPORTED: (422, "unprocessable_request_error", Kind.UNSUPPORTED.value),
    Kind.TIMEOUT: (504, "timeout_error", Kind.TIMEOUT.value),
}
"""Two exceptions: the client's own deadline is a 429, and a worker's refusal that names a field a 422. See `refuse`."""


class _Told(Struct, frozen=True):
    """An error, with fields by the caller's names."""

    kind: Kind
    message: str
    param: str | None
    code: str

    @property
    def object(self) -> dict[str, Any]:
        return {"message": self.message, "type": ERRORS[self.kind][1], "param": self.param, "code": self.code}


def error_event(error: GatewayError, op: Op) -> bytes:
    """The error event of a stream. friendli-client raises InvalidGenerationError with its text."""
    told = _in_own_words(error, None, op, error.kind)
    return sse.frame(encode_line({"event": "error", "message": told.message, "error": told.object}))


def refuse(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
    """(the answer, its code). A worker's refusal that names a field is a 422, because the gateway found it valid."""
    by_name = error.kind is Kind.BAD_REQUEST and error.upstream is not None and error.param is not None
    told = _in_own_words(error, request, op, Kind.UNSUPPORTED if by_name else error.kind)
    status = 429 if told.param == TIMEOUT.name and told.kind is Kind.TIMEOUT else ERRORS[told.kind][0]
    body = encode({"error": told.object})
    return Response(status, [JSON_TYPE, *refusals.error_headers(error, status)], body), told.code


def _in_own_words(error: GatewayError, request: Request | None, op: Op | None, kind: Kind) -> _Told:
    """The error with the caller's name for the field, including the field of its deadline."""
    param, message = error.param, error.message
    if error.code == "deadline_exceeded" and param == "timeout":
        param = TIMEOUT.name
    if param is not None:
        own = _own_name(param, request, op)
        message, param = message.replace(f"'{param}'", f"'{own}'"), own
    return _Told(kind, message, param, error.code or ERRORS[kind][2])


def _own_name(param: str, request: Request | None, op: Op | None) -> str:
    if not isinstance(op, Complete):
        return own_name(param, FIELDS["chat"]) if isinstance(op, Chat) else param
    if param == "logprobs" and op.beams is not None and op.logprobs is None:
        # For w beams vLLM asks itself for 2 w logprobs, which may exceed its limit on logprobs.
        return "num_beams"
    if param in ("prompt", "tokens"):  # backends call the token ids of a reply `tokens`
        return "prompt" if isinstance(op.prompts[0], str) else "tokens"
    return own_name(param, FIELDS["complete"], sent_names(request.body) if request is not None else ())
