"""LiteLLM as a client of Cohere's API."""

from __future__ import annotations

from functools import partial
from typing import Any

from litellm import completion
from litellm_completion import streamed, whole

__all__ = ["connect", "streamed", "whole"]


def connect(url: str, model: str) -> Any:
    return partial(completion, model=f"cohere/{model}", api_base=f"{url}/v2/chat", api_key="none")
