"""LangChain, by langchain-anthropic."""

from __future__ import annotations

from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_tools import streamed, tools, whole

__all__ = ["connect", "streamed", "tools", "whole"]


def connect(url: str, model: str) -> Any:
    return ChatAnthropic(base_url=url, api_key="none", model=model)
