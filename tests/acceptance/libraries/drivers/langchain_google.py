"""LangChain, by langchain-google-genai."""

from __future__ import annotations

from typing import Any

from langchain_google_genai import ChatGoogleGenerativeAI
from langchain_tools import streamed, tools, whole

__all__ = ["connect", "streamed", "tools", "whole"]


def connect(url: str, model: str) -> Any:
    return ChatGoogleGenerativeAI(base_url=url, api_key="none", model=model)
