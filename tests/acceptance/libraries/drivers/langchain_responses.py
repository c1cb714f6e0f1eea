"""LangChain, by langchain-openai: responses."""

from __future__ import annotations

from typing import Any

from langchain_openai import ChatOpenAI
from langchain_tools import streamed, tools, whole

__all__ = ["connect", "streamed", "tools", "whole"]


def connect(url: str, model: str) -> Any:
    return ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model, use_responses_api=True)
