"""Errors of Azure AI Model Inference: statuses, bodies, and the field at fault."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.backends.vllm import Vllm
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Response
from gateway.dialects.azure_inference.replies import ERRORS
from tests.unit.dialects.azure_inference.exchange import DIALECT, chat, ms_code, refused, request


@pytest.mark.parametrize("kind", Kind)
def test_the_error_table_is_total_and_each_shape_is_as_specified(kind: Kind) -> None:
    response = DIALECT.refuse(GatewayError(kind, "why", param="temperature", retry_after=2.0), None, None)[0]
    status, phrase, code = ERRORS[kind]
    body = json.loads(response.body)
    assert (response.status, body["status"], body["error"]) == (status, status, phrase)
    assert ms_code(response) == code
    expected = ["code", "error", "message", "param", "status"]
    if status == 422:
        expected = ["code", "detail", "error", "message", "status"]
    elif status in (401, 404, 429):
        expected = ["error", "message", "status"]
    assert sorted(body) == expected
    # azure-ai-inference retries whatever carries Retry-After.
    assert (response.header(b"retry-after") is not None) == (status in (429, 503))


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("temperature", 3, 422),
        ("temperature", -1, 400),
        ("temperature", "hot", 400),
        ("temperature", True, 400),
        ("top_p", 1.5, 422),
        ("frequency_penalty", -2.5, 422),
        ("presence_penalty", 99, 422),
        ("max_tokens", 1.5, 400),
        ("response_format", {"type": "poem"}, 400),
        ("messages", [], 400),
    ],
)
def test_bad_values(name: str, value: Any, status: int) -> None:
    response = refused(chat() | {name: value})
    body = json.loads(response.body)
    assert response.status == status
    if status == 422:
        text = json.dumps(value)
        detail = {"loc": ["body", name], "value": text, "input": text}
        assert (body["code"], body["detail"]) == ("parameter_not_supported", detail)
    else:
        assert body["param"].split(".")[0] == name


def worker_error(message: str, param: str | None) -> GatewayError:
    body = {"error": {"message": message, "type": "BadRequestError", "param": param, "code": 400}}
    return Vllm().fault(Response(400, [], json.dumps(body).encode()))


AUTO = '"auto" tool choice requires --enable-auto-tool-choice and more'
LONG = "This model's maximum context length is 8 tokens"
FORM = {"type": "json_object"}
NO_FORM = GatewayError(Kind.UNSUPPORTED, "no", param="response_format", value="json_object")


@pytest.mark.parametrize(
    ("error", "body", "loc", "value"),
    [
        (worker_error("too many", "stop"), chat(stop=["a"]), "stop", '["a"]'),
        (worker_error("no top_k", "top_k"), chat(top_k=5), "top_k", "5"),
        (worker_error(AUTO, None), chat(tools=[1]), "tools", "[1]"),
        (worker_error(LONG, "input_tokens"), chat(), "messages", '[{"role":"user","content":"hi"}]'),
        (NO_FORM, chat(response_format=FORM), "response_format", "json_object"),
        (worker_error("not ours", "stream_options"), chat(), None, None),
        (worker_error("no name", None), chat(), None, None),
    ],
)
def test_what_the_worker_cannot_do(error: GatewayError, body: Any, loc: str | None, value: Any) -> None:
    response = DIALECT.refuse(error, request(body), None)[0]
    assert response.status == (400 if loc is None else 422)
    if loc is not None:
        assert json.loads(response.body)["detail"] == {"loc": ["body", loc], "value": value, "input": value}


def test_a_long_value_is_cut() -> None:
    long = chat(messages=[{"role": "user", "content": "x" * 5000}])
    response = DIALECT.refuse(GatewayError(Kind.CONTEXT_LENGTH, "too long"), request(long), None)[0]
    assert len(json.loads(response.body)["detail"]["value"]) == 1025
