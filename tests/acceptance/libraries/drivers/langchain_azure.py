"""LangChain, by langchain-azure-ai, in Azure AI Model Inference's own API."""

from __future__ import annotations

from typing import Any

from langchain_azure_ai.chat_models.inference import AzureAIChatCompletionsModel
from langchain_content import streamed, whole

__all__ = ["connect", "streamed", "whole"]


def connect(url: str, model: str) -> Any:
    return AzureAIChatCompletionsModel(endpoint=f"{url}/azure", credential="none", model=model)
