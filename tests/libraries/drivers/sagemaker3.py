"""The SageMaker SDK for Python, version 3."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from sagemaker.core.resources import Endpoint


def _body(prompt: str, stream: bool) -> str:
    return json.dumps({"messages": [{"role": "user", "content": prompt}], "stream": stream})


def _pieces(lines: bytes) -> Iterator[str]:
    """The texts of whole events."""
    for line in lines.splitlines():
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])["choices"][0]["delta"].get("content") or ""


def configuration(url: str, model: str) -> str:
    return f"AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME={url}/sagemaker"


def connect(url: str, model: str) -> Any:
    name, _, value = configuration(url, model).partition("=")
    os.environ[name] = value
    return Endpoint(endpoint_name=model)


def whole(client: Any, model: str, prompt: str) -> Any:
    reply = client.invoke(body=_body(prompt, False), content_type="application/json")
    return json.load(reply.body)["choices"][0]["message"]["content"]
