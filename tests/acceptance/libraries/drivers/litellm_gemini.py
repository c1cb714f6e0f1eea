"""LiteLLM as a client: its route `gemini/`."""

from __future__ import annotations

from functools import partial
from typing import Any

from litellm import completion
from litellm_completion import streamed, whole

__all__ = ["connect", "streamed", "whole"]


def connect(url: str, model: str) -> Any:
    return partial(completion, model=f"gemini/{model}", api_base=f"{url}/v1beta", api_key="none")
