"""llm, the command and library."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llm


def configuration(url: str, model: str) -> str:
    return f'{{model_id: {model}, model_name: {model}, api_base: "{url}/v1"}}'


def connect(url: str, model: str) -> Any:
    Path(os.environ["LLM_USER_PATH"], "extra-openai-models.yaml").write_text(f"- {configuration(url, model)}\n")
    found = llm.get_model(model)
    found.key = "none"
    return found


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.prompt(prompt, stream=False).text()


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    yield from client.prompt(prompt)
