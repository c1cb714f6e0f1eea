"""LangChain, by langchain-openai."""

from __future__ import annotations

from typing import Any

from langchain_content import streamed, whole
from langchain_openai import ChatOpenAI

__all__ = ["connect", "streamed", "whole"]


def connect(url: str, model: str) -> Any:
    return ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model)
