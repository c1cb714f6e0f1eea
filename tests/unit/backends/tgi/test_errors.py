"""Errors of the backend `tgi`, as answers and inside streams."""

from __future__ import annotations

import msgspec
import pytest

from gateway.core.errors import Kind
from gateway.core.events import Failed
from gateway.core.http import Response
from tests.unit.backends.tgi.exchange import TGI, chat, streamed, text

WRONG = "Input validation error: "
LONG = WRONG + "`inputs` tokens + `max_new_tokens` must be <= 9. Given: 4 `inputs` tokens and 8 `max_new_tokens`"
FAULTS: list[tuple[int, str, str, Kind, str | None]] = [
    (422, "validation", WRONG + "`temperature` must be strictly positive", Kind.BAD_REQUEST, "temperature"),
    (422, "validation", WRONG + "`max_new_tokens` must be strictly positive", Kind.BAD_REQUEST, "max_tokens"),
    (422, "validation", WRONG + "`truncate` must be", Kind.BAD_REQUEST, None),
    (422, "validation", LONG, Kind.CONTEXT_LENGTH, None),
    (422, "validation", WRONG + "`inputs` must have less than 9 tokens. Given: 10", Kind.CONTEXT_LENGTH, None),
    (422, "template_error", "Template error: no such template", Kind.BAD_REQUEST, None),
    (422, "tool_error", "Tool error: Grammar and tools are mutually exclusive", Kind.BAD_REQUEST, None),
    (424, "generation", "Request failed during generation: CUDA", Kind.UPSTREAM, None),
    (429, "overloaded", "Model is overloaded", Kind.OVERLOADED, None),
    (500, "incomplete_generation", "Incomplete generation", Kind.UPSTREAM, None),
    (503, "healthcheck", "unhealthy", Kind.OVERLOADED, None),
]


@pytest.mark.parametrize(("status", "type_", "message", "kind", "param"), FAULTS)
def test_faults(status: int, type_: str, message: str, kind: Kind, param: str | None) -> None:
    """As an answer, as an event of a text's stream, as an event of a chat's."""
    body = {"error": message, "error_type": type_}
    late = {"error": {"message": message, "http_status_code": 422}}
    found = [TGI.fault(Response(status, [], msgspec.json.encode(body)))]
    for op, event_ in ((text(), body), (chat(), late)):
        last = streamed(op, b"data:" + msgspec.json.encode(event_) + b"\n\n")[-1]
        assert isinstance(last, Failed)
        found.append(last.error)
    for error in found[: 2 if type_ == "healthcheck" else 3]:
        assert (error.kind, error.param, error.upstream) == (kind, param, status)
        assert "CUDA" not in error.message
        assert kind not in (Kind.BAD_REQUEST, Kind.CONTEXT_LENGTH) or error.message in message


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b"null", b"Failed to deserialize the JSON body"])
@pytest.mark.parametrize(("status", "kind"), [(422, Kind.BAD_REQUEST), (500, Kind.UPSTREAM), (404, Kind.UPSTREAM)])
def test_answers_that_are_no_json(body: bytes, status: int, kind: Kind) -> None:
    error = TGI.fault(Response(status, [], body))
    assert error.kind is kind
    assert "deserialize" not in error.message
    assert "html" not in error.message
