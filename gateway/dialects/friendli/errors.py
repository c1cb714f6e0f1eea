"""Friendli's errors: its statuses and its own names for the fields, in a body and as a stream's last event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import JSON_TYPE, Response
from gateway.core.messages import Chat, Complete, Op
from gateway.dialects.friendli.fields import TIMEOUT
from gateway.wire import sse
from gateway.wire.json import encode
from gateway.wire.openai import writing

ERRORS: Mapping[Kind, tuple[int, str, str]] = {
    **writing.ERRORS,
    Kind.UNSUPPORTED: (422, "unprocessable_request_error", Kind.UNSUPPORTED.value),
    Kind.TIMEOUT: (504, "timeout_error", Kind.TIMEOUT.value),
}
"""But a deadline of the client's own is a 429, and a worker's refusal of a field that is named a 422: see `refuse`."""

# Names that backends use in their errors, and ours.
_RENAMED = {
    "eos_tokens": "eos_token",
    "stop_token_ids": "stop_tokens",
    "bad_tokens": "bad_word_tokens",
    "logit_bias": "bad_word_tokens",
    "structured_outputs": "response_format",
    "logprobs": "include_output_logprobs",
}


def error_object(error: GatewayError) -> dict[str, Any]:
    _, type_, code = ERRORS[error.kind]
    return {"message": error.message, "type": type_, "param": error.param, "code": error.code or code}


def error_event(error: GatewayError, op: Op) -> bytes:
    """friendli-client raises InvalidGenerationError at it, and its text holds what is said here."""
    _in_our_words(error, op)
    said = error_object(error)
    return sse.frame(encode({"event": "error", "message": error.message, "error": said}))


def refuse(error: GatewayError, op: Op | None) -> Response:
    _in_our_words(error, op)
    status = 429 if error.param == TIMEOUT.name and error.kind is Kind.TIMEOUT else ERRORS[error.kind][0]
    body = {"error": error_object(error)}
    return Response(status, [JSON_TYPE, *writing.error_headers(error, status)], encode(body))


def _in_our_words(error: GatewayError, op: Op | None) -> None:
    """Gives the error the caller's own name for the field, the one of its deadline included. A field that a worker
    refuses by name is a 422: what is let pass here makes sense."""
    if error.code == "deadline_exceeded" and isinstance(op, (Chat, Complete)) and op.timeout is not None:
        error.param = TIMEOUT.name
    param = error.param
    if param is None:
        return
    if error.kind is Kind.BAD_REQUEST and error.upstream is not None:
        error.kind = Kind.UNSUPPORTED
    if isinstance(op, Complete):
        if param == "logprobs" and op.beams is not None and op.logprobs is None:
            # vLLM searches with w beams by asking itself for 2 w logprobs, of which it gives so many at most.
            error.param = "num_beams"
        elif param in ("prompt", "tokens"):  # backends say tokens of the ids that a reply must have
            error.param = "prompt" if isinstance(op.prompts[0], str) else "tokens"
        else:
            error.param = _RENAMED.get(param, param)
        error.message = error.message.replace(f"'{param}'", f"'{error.param}'")
