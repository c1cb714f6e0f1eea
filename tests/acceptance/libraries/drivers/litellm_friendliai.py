"""LiteLLM as a client: its route `friendliai/`."""

from __future__ import annotations

from functools import partial
from typing import Any

from litellm import completion
from litellm_completion import streamed, whole

__all__ = ["connect", "streamed", "whole"]


def connect(url: str, model: str) -> Any:
    return partial(completion, model=f"friendliai/{model}", api_base=f"{url}/friendli/serverless/v1", api_key="none")
