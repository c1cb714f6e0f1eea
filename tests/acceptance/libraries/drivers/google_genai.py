"""The google-genai package for Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from google import genai


def connect(url: str, model: str) -> Any:
    return genai.Client(api_key="none", http_options={"base_url": url})


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.models.generate_content(model=model, contents=prompt).text


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for chunk in client.models.generate_content_stream(model=model, contents=prompt):
        yield chunk.text or ""


def tools(client: Any, model: str, prompt: str, look: Callable[[str], str]) -> Any:
    return client.chats.create(model=model, config={"tools": [look]}).send_message(prompt).text
