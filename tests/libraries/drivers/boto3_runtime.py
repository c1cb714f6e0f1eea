"""boto3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3


def _body(prompt: str, stream: bool) -> str:
    return json.dumps({"messages": [{"role": "user", "content": prompt}], "stream": stream})


def _pieces(lines: bytes) -> Iterator[str]:
    """The texts of whole events."""
    for line in lines.splitlines():
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])["choices"][0]["delta"].get("content") or ""


def connect(url: str, model: str) -> Any:
    return boto3.client("sagemaker-runtime", endpoint_url=f"{url}/sagemaker")


def whole(client: Any, model: str, prompt: str) -> Any:
    reply = client.invoke_endpoint(EndpointName=model, Body=_body(prompt, False))
    return json.load(reply["Body"])["choices"][0]["message"]["content"]


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    reply = client.invoke_endpoint_with_response_stream(EndpointName=model, Body=_body(prompt, True))
    for event in reply["Body"]:
        yield from _pieces(event["PayloadPart"]["Bytes"])
