"""Instructor, with tools, as it is set up by default."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import instructor
from pydantic import BaseModel


class Answer(BaseModel):
    """What is asked for."""

    text: str


def connect(url: str, model: str) -> Any:
    return instructor.from_provider(f"openai/{model}", base_url=f"{url}/v1", api_key="none")


def _asked(prompt: str) -> dict[str, Any]:
    """The prompt by which the simulated worker answers with the same text in a tool call."""
    said = json.loads(prompt.removeprefix("sim:"))
    call = {"name": "Answer", "arguments": json.dumps({"text": said.pop("text")})}
    messages = [{"role": "user", "content": "sim:" + json.dumps({"tool_calls": [call], **said})}]
    return {"messages": messages, "response_model": Answer, "max_retries": 0}


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.create(**_asked(prompt)).text


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    before = ""
    for partial in client.create_partial(**_asked(prompt)):
        text = partial.text or ""
        yield text[len(before) :]
        before = text
