"""SageMaker's clients: OpenAI's replies, and framed streams."""

from __future__ import annotations

import json

from gateway.core.http import Response
from tests.conformance.clients.heard import Client, Heard
from tests.conformance.clients.openai import hear_openai, read_openai, refused_openai
from tests.eventstream import frames


def hear_framed(stream: bytes) -> Heard:
    payloads, error = b"", None
    for frame in frames(stream):
        assert error is None, "something follows an exception"
        if frame.headers[":message-type"] == "exception":
            error = json.loads(frame.payload)["Message"]
        else:
            assert frame.headers[":event-type"] == "PayloadPart"
            payloads += frame.payload
    heard = hear_openai(payloads)
    if error is not None:
        assert not heard.complete
        heard.error = error
    return heard


def refused_aws(response: Response) -> str:
    assert response.header(b"x-amzn-errortype")
    body = json.loads(response.body)
    message = body.get("message") or body["Message"]
    assert isinstance(message, str)
    return message


CLIENTS: tuple[Client, ...] = (
    Client(
        "sagemaker chat",
        "sagemaker",
        "chat",
        "/invocations",
        "invocations",
        hear_openai,
        read_openai,
        refused_openai,
        "openai",
    ),
    Client(
        "sagemaker completions",
        "sagemaker",
        "complete",
        "/invocations",
        "invocations",
        hear_openai,
        read_openai,
        refused_openai,
        "openai",
    ),
    Client(
        "sagemaker endpoint",
        "sagemaker",
        "chat",
        "/endpoints/m/invocations-response-stream",
        "endpoint_stream",
        hear_framed,
        read_openai,
        refused_aws,
        params={"name": "m"},
        asks_to_stream=False,
    ),
    Client(
        "sagemaker endpoint completions",
        "sagemaker",
        "complete",
        "/endpoints/m/invocations-response-stream",
        "endpoint_stream",
        hear_framed,
        read_openai,
        refused_aws,
        params={"name": "m"},
        asks_to_stream=False,
    ),
)
