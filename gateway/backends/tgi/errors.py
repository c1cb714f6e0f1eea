"""TGI's errors, as an answer and as an event of a stream."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.failures import Cause
from gateway.core.http import Response
from gateway.wire import too_long
from gateway.wire.json import decoded
from gateway.wire.openai.replies import views as wire
from gateway.wire.openai.replies.waits import with_wait
from gateway.wire.openai.requests.views import TEXT_MEMBERS


class _ApiErrorIn(Struct):
    message: str | None = None
    http_status_code: Annotated[int, Meta(ge=400, le=599)] | None = None


class _FaultIn(Struct):
    error: _ApiErrorIn | str | None = None
    error_type: str | None = None


_decode = msgspec.json.Decoder(_FaultIn).decode

# error_type -> the status that TGI gives it. Its chat streams report every error as 422, so there the text decides.
_TYPES = {"generation": 424, "overloaded": 429, "validation": 422, "template_error": 422, "tool_error": 422}
_TYPES |= {"missing_template_variable": 422, "incomplete_generation": 500, "incomplete_generation_stream": 500}
_TYPES |= {"stream_serialization_error": 500, "healthcheck": 503}
_WORDS = (
    ("Request failed during generation", "generation"),
    ("Model is overloaded", "overloaded"),
    ("Incomplete generation", "incomplete_generation"),
)
# Names in TGI's messages -> the names on OpenAI's wire.
_NAMES = {"max_new_tokens": "max_tokens", "stop": "stop", "top_n_tokens": "logprobs", "grammar": "response_format"}


def fault_of(response: Response, now: float) -> GatewayError:
    """The error for an answer with any status but 200. `now` is in Unix seconds: `Retry-After` may be a date."""
    found = decoded(_decode, response.body)
    error = wire.fault(response.status, response.body) if found is None else _fault(response.status, found)
    return with_wait(error, response, now)


def late_fault(data: bytes) -> GatewayError | None:
    """The error in an event, or None if the event is not an error."""
    if b'"error"' not in data:
        return None
    found = decoded(_decode, data)
    return _fault(500, found) if found is not None and found.error is not None else None


def _fault(status: int, found: _FaultIn) -> GatewayError:
    """`status` is the HTTP status, or its equivalent for an error inside a 200."""
    if isinstance(found.error, _ApiErrorIn):
        message = found.error.message or ""
        kind = next((type_ for words, type_ in _WORDS if message.startswith(words)), None)
        status = _TYPES[kind] if kind is not None else found.error.http_status_code or status
    else:
        message = found.error or ""
        status = _TYPES.get(found.error_type or "", status)
    if status == 424:
        failed = GatewayError(
            Kind.UPSTREAM, "the worker failed during generation", upstream=status, cause=Cause.GAVE_UP
        )
        return wire.with_words(failed, message)
    message = message.removeprefix("Input validation error: ")
    if too_long.matches(status, message):
        return GatewayError(Kind.CONTEXT_LENGTH, message, upstream=status)
    named = re.match(r"`(\w+)`", message)
    param = _NAMES.get(named[1], named[1] if named[1] in TEXT_MEMBERS else None) if named is not None else None
    return wire.classify(status, message or None, param)
