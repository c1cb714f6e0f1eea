"""LiteLLM as a client: its route `azure/`."""

from __future__ import annotations

from functools import partial
from typing import Any

from litellm import completion
from litellm_completion import streamed, whole

__all__ = ["connect", "streamed", "whole"]


def connect(url: str, model: str) -> Any:
    return partial(completion, model=f"azure/{model}", api_base=url, api_version="2024-10-21", api_key="none")
