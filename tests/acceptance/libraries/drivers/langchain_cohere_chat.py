"""LangChain, by langchain-cohere."""

from __future__ import annotations

from typing import Any

from langchain_cohere import ChatCohere
from langchain_tools import streamed, tools, whole

__all__ = ["connect", "streamed", "tools", "whole"]


def connect(url: str, model: str) -> Any:
    return ChatCohere(base_url=url, cohere_api_key="none", model=model)
