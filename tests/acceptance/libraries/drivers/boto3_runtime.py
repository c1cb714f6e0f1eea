"""boto3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
from sagemaker_wire import body, texts


def connect(url: str, model: str) -> Any:
    return boto3.client("sagemaker-runtime", endpoint_url=f"{url}/sagemaker")


def whole(client: Any, model: str, prompt: str) -> Any:
    reply = client.invoke_endpoint(EndpointName=model, Body=body(prompt, False))
    return json.load(reply["Body"])["choices"][0]["message"]["content"]


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    reply = client.invoke_endpoint_with_response_stream(EndpointName=model, Body=body(prompt, True))
    for event in reply["Body"]:
        yield from texts(event["PayloadPart"]["Bytes"])
