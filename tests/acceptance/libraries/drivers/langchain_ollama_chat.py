"""LangChain, by langchain-ollama."""

from __future__ import annotations

from typing import Any

from langchain_ollama import ChatOllama
from langchain_tools import streamed, tools, whole

__all__ = ["connect", "streamed", "tools", "whole"]


def connect(url: str, model: str) -> Any:
    return ChatOllama(base_url=url, model=model)
