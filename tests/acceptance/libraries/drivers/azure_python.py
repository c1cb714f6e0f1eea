"""azure-ai-inference for Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from azure.ai.inference import ChatCompletionsClient
from azure.ai.inference.models import UserMessage
from azure.core.credentials import AzureKeyCredential


def connect(url: str, model: str) -> Any:
    return ChatCompletionsClient(f"{url}/azure", AzureKeyCredential("none"), model=model)


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.complete(messages=[UserMessage(prompt)]).choices[0].message.content


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for update in client.complete(messages=[UserMessage(prompt)], stream=True):
        if update.choices:
            yield update.choices[0].delta.content or ""
