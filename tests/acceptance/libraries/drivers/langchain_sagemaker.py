"""LangChain, by langchain-aws."""

from __future__ import annotations

import json
from typing import Any

import boto3
from langchain_aws.chat_models.sagemaker_endpoint import ChatModelContentHandler, ChatSagemakerEndpoint
from langchain_core.messages import AIMessageChunk


class Handler(ChatModelContentHandler):  # type: ignore[misc]  # the package has no types where mypy runs
    """What the library leaves to its user: bodies of requests and of replies."""

    content_type = "application/json"
    accepts = "application/json"

    def transform_input(self, prompt: Any, model_kwargs: dict[str, Any]) -> bytes:
        return json.dumps({"messages": prompt, **model_kwargs}).encode()

    def transform_output(self, output: Any) -> Any:
        if not isinstance(output, bytes):
            return AIMessageChunk(json.load(output)["choices"][0]["message"]["content"])
        return AIMessageChunk(output.decode())


def connect(url: str, model: str) -> Any:
    runtime = boto3.client("sagemaker-runtime", endpoint_url=f"{url}/sagemaker")
    return ChatSagemakerEndpoint(endpoint_name=model, client=runtime, content_handler=Handler())


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.invoke(prompt).content
