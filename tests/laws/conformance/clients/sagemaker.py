"""SageMaker's clients: OpenAI's replies, and framed streams."""

from __future__ import annotations

import json
from functools import partial

from gateway.core.http import Response
from tests.laws.conformance.clients.heard import Client, Heard
from tests.laws.conformance.clients.openai import hear_openai, read_openai, refused_openai
from tests.support.eventstream import frames


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


_STREAM = "/endpoints/m/invocations-response-stream"
_raw = partial(Client, hear=hear_openai, read=read_openai, refused=refused_openai, speaks="openai")
_framed = partial(
    Client, hear=hear_framed, read=read_openai, refused=refused_aws, params={"name": "m"}, asks_to_stream=False
)
CLIENTS: tuple[Client, ...] = (
    _raw("sagemaker chat", "sagemaker", "chat", "/invocations", "invocations"),
    _raw("sagemaker completions", "sagemaker", "complete", "/invocations", "invocations"),
    _framed("sagemaker endpoint", "sagemaker", "chat", _STREAM, "endpoint_stream"),
    _framed("sagemaker endpoint completions", "sagemaker", "complete", _STREAM, "endpoint_stream"),
)
