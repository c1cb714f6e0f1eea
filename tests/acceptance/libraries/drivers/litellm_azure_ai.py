"""LiteLLM as a client: its route `azure_ai/`."""

from __future__ import annotations

from functools import partial
from typing import Any

from litellm import completion
from litellm_completion import streamed, whole

__all__ = ["connect", "streamed", "whole"]


def connect(url: str, model: str) -> Any:
    return partial(
        completion, model=f"azure_ai/{model}", api_base=f"{url}/azure", api_version="2024-05-01-preview", api_key="none"
    )
