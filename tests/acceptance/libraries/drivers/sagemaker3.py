"""The SageMaker SDK for Python, version 3."""

from __future__ import annotations

import json
import os
from typing import Any

from sagemaker.core.resources import Endpoint
from sagemaker_wire import body


def configuration(url: str, model: str) -> str:
    return f"AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME={url}/sagemaker"


def connect(url: str, model: str) -> Any:
    name, _, value = configuration(url, model).partition("=")
    os.environ[name] = value
    return Endpoint(endpoint_name=model)


def whole(client: Any, model: str, prompt: str) -> Any:
    reply = client.invoke(body=body(prompt, False), content_type="application/json")
    return json.load(reply.body)["choices"][0]["message"]["content"]
