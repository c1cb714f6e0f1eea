"""LangChain, by langchain-azure-ai, in Azure AI Model Inference's own API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_azure_ai.chat_models.inference import AzureAIChatCompletionsModel


def connect(url: str, model: str) -> Any:
    return AzureAIChatCompletionsModel(endpoint=f"{url}/azure", credential="none", model=model)


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.invoke(prompt).content


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for chunk in client.stream(prompt):
        yield chunk.content
