"""DSPy's language model."""

from __future__ import annotations

from typing import Any

import dspy


def connect(url: str, model: str) -> Any:
    return dspy.LM(f"openai/{model}", api_base=f"{url}/v1", api_key="none")


def whole(client: Any, model: str, prompt: str) -> Any:
    return client(prompt, cache=False)[0]
