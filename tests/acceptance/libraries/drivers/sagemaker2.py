"""The SageMaker SDK for Python, version 2."""

from __future__ import annotations

from typing import Any

import boto3
from sagemaker import Predictor, Session
from sagemaker.deserializers import JSONDeserializer
from sagemaker.serializers import JSONSerializer


def connect(url: str, model: str) -> Any:
    runtime = boto3.client("sagemaker-runtime", endpoint_url=f"{url}/sagemaker")
    session = Session(sagemaker_runtime_client=runtime)
    return Predictor(model, session, serializer=JSONSerializer(), deserializer=JSONDeserializer())


def whole(client: Any, model: str, prompt: str) -> Any:
    reply = client.predict({"messages": [{"role": "user", "content": prompt}]})
    return reply["choices"][0]["message"]["content"]
