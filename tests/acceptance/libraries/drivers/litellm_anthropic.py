"""LiteLLM as a client: its route `anthropic/`."""

from __future__ import annotations

from functools import partial
from typing import Any

from litellm import completion
from litellm_completion import streamed, whole

__all__ = ["connect", "streamed", "whole"]


def connect(url: str, model: str) -> Any:
    return partial(completion, model=f"anthropic/{model}", api_base=url, api_key="none")
