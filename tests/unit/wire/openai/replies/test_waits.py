"""Error answers of OpenAI's wire: the worker's own code, and the wait that it asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import backends, dialects
from gateway.core.errors import Kind
from gateway.core.http import Request, Response
from gateway.core.ports import Settings
from gateway.wire.openai.replies.waits import LONGEST_WAIT_S, counted, retry_after

NOW = 1_445_412_430.0  # 2015-10-21 07:27:10 GMT
WORDS: dict[str, Any] = {"message": "the prompt was filtered", "type": "invalid_request_error", "param": "prompt"}


def answer(status: int, **error: Any) -> Response:
    return Response(status, [], json.dumps({"error": {**WORDS, **error}}).encode())


@pytest.mark.parametrize("backend", sorted(set(backends.REGISTRY) - {"tgi"}))
# The other two have no place for a code.
@pytest.mark.parametrize("dialect", sorted(set(dialects.REGISTRY) - {"sagemaker", "friendli"}))
@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_workers_own_code_survives(dialect: str, backend: str, status: int) -> None:
    """Clients tell causes apart by it."""
    error = backends.create(backend).fault(answer(status, code="content_filter"))
    request = Request("POST", "/chat/completions", [], b"{}", b"", "chat")
    response = dialects.create(dialect, Settings()).refuse(error, request, None)[0]
    assert b'"content_filter"' in response.body


@pytest.mark.parametrize("code", [400, "400", "", "two words", "a\r\nx-injected: 1", "x" * 65, "é", None, 1e300])
def test_what_is_no_code_is_not_passed_on(code: object) -> None:
    assert backends.create("openai").fault(answer(400, code=code)).code is None


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_a_code_that_is_not_about_the_request_is_not_the_clients_business(status: int) -> None:
    assert backends.create("openai").fault(answer(status, code="account_deactivated")).code is None


def test_openais_word_for_a_prompt_that_is_too_long_is_its_kind() -> None:
    error = backends.create("openai").fault(answer(400, code="context_length_exceeded"))
    assert (error.kind, error.code) == (Kind.CONTEXT_LENGTH, None)


def test_fastapis_detail_is_quoted() -> None:
    fault = backends.create("openai").fault
    assert fault(Response(422, [], b'{"detail":"no such field"}')).message == "no such field"
    assert fault(Response(422, [], b'{"detail":[{"msg":"m"}]}')).message == '[{"msg":"m"}]'
    assert fault(Response(422, [], b'{"detail":[1e400]}')).message == "the worker refused the request"


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        (b"7", 7.0),
        (b" 7 ", 7.0),
        (b"0", 0.0),
        (b"9" * 9, LONGEST_WAIT_S),
        (b"9" * 306, LONGEST_WAIT_S),
        (b"9" * 400, LONGEST_WAIT_S),
        (b"Wed, 21 Oct 2015 07:28:00 GMT", 50.0),
        (b"Wed, 21 Oct 2015 07:00:00 GMT", 0.0),
        (b"Fri, 31 Dec 9999 23:59:59 GMT", LONGEST_WAIT_S),
        (b"Fri, 31 Dec 99999 23:59:59 GMT", None),
        (b"-1", None),
        (b"1.5", None),
        (b"soon", None),
        (b"\xff", None),
        (b"", None),
    ],
)
def test_the_wait_that_a_worker_asks_for(value: bytes, wait: float | None) -> None:
    assert retry_after(Response(503, [(b"retry-after", value)]), NOW) == wait


@pytest.mark.parametrize(
    ("value", "count"),
    [(b"7", 7), (b"9" * 9, 999_999_999), (b"9" * 5000, None), (b"-1", None), (b"x", None), (None, None)],
)
def test_a_header_that_counts(value: bytes | None, count: int | None) -> None:
    assert counted(value) == count
