"""LangChain, by langchain-azure-ai, in OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_azure_ai.chat_models import AzureAIOpenAIApiChatModel


def connect(url: str, model: str) -> Any:
    return AzureAIOpenAIApiChatModel(endpoint=f"{url}/v1", credential="none", model=model, use_responses_api=False)


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.invoke(prompt).content


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for chunk in client.stream(prompt):
        yield chunk.content
