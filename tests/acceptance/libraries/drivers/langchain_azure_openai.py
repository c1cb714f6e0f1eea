"""LangChain, by langchain-azure-ai, in OpenAI's API."""

from __future__ import annotations

from typing import Any

from langchain_azure_ai.chat_models import AzureAIOpenAIApiChatModel
from langchain_content import streamed, whole

__all__ = ["connect", "streamed", "whole"]


def connect(url: str, model: str) -> Any:
    return AzureAIOpenAIApiChatModel(endpoint=f"{url}/v1", credential="none", model=model, use_responses_api=False)
