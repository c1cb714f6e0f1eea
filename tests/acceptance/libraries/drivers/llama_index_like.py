"""LlamaIndex."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike


def connect(url: str, model: str) -> Any:
    return OpenAILike(api_base=f"{url}/v1", api_key="none", model=model, is_chat_model=True)


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.chat([ChatMessage(prompt)]).message.content


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for chunk in client.stream_chat([ChatMessage(prompt)]):
        yield chunk.delta
