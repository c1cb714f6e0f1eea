"""What the engine refuses, in each dialect's own form and words."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.core.errors import Kind
from tests.acceptance.engine.ask import Way, drawn_cases
from tests.support.clients import DIALECTS

pytestmark = pytest.mark.engine

LONG = "word " * 3000


@drawn_cases("context")
def test_a_prompt_beyond_the_context(gateway: httpx.Client, way: Way, stream: bool) -> None:
    name, response = way.way.dialect, way.ask(gateway, stream, LONG, max_tokens=8)
    if way.path.endswith(("/invocations", "-stream")) and "/endpoints/" in way.path:
        assert response.status_code == 424  # a model's error, as the service gives it
        assert response.json()["OriginalStatusCode"] == 400
        return
    assert response.status_code == DIALECTS[name].errors[Kind.CONTEXT_LENGTH][0], response.text
    assert "context" in response.text
    if name == "azure_inference":
        assert response.headers["x-ms-error-code"]
        assert response.json()["detail"]["loc"] == ["body", "messages"]
    if name in ("openai", "friendli"):
        assert response.json()["error"]["code"] == "context_length_exceeded"


@drawn_cases("model")
def test_a_model_that_nobody_serves(gateway: httpx.Client, way: Way, stream: bool) -> None:
    if "/endpoints/" in way.path:  # the path names one that is served
        assert way.ask(gateway, stream, max_tokens=4).status_code == 200
        return
    body = way.body(stream, max_tokens=4, model="absent")
    assert gateway.post(way.way.path("absent"), json=body).status_code == 404


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 7}}}}, None),
        ({"n": 2, "temperature": 0}, None),
        ({"top_p": 2}, "top_p"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_is_a_400(
    gateway: httpx.Client, fields: dict[str, Any], param: str | None, stream: bool
) -> None:
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4, **fields}
    response = gateway.post("/openai/v1/chat/completions", json={**body, "stream": stream})
    assert response.status_code in (400, 422), response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param


@pytest.mark.whole  # the model writes to the end of its context
def test_a_prompt_that_leaves_room_gets_the_rest_of_the_context(gateway: httpx.Client) -> None:
    fields = {"prompt": "word " * 900, "temperature": 0}
    body = gateway.post("/friendli/v1/completions", json=fields).json()
    assert body["usage"]["total_tokens"] <= 1024
    assert body["choices"][0]["finish_reason"] in ("length", "stop")


def test_the_engine_lives_on(gateway: httpx.Client, engine: httpx.Client) -> None:
    assert engine.get("/health").status_code == 200
    assert gateway.get("/readyz").status_code == 200
