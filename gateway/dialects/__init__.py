"""The registry of dialects. To add one, add a file or package here and a line to the table. A test fails if the table
misses one."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.ports import Dialect, Settings
from gateway.dialects.anthropic import Anthropic
from gateway.dialects.azure_inference import AzureInference
from gateway.dialects.azure_openai import AzureOpenAI
from gateway.dialects.cohere import Cohere
from gateway.dialects.friendli import Friendli
from gateway.dialects.gemini import Gemini
from gateway.dialects.ollama import Ollama
from gateway.dialects.ollama_style import OllamaStyle
from gateway.dialects.openai import OpenAI
from gateway.dialects.rerank import Rerank
from gateway.dialects.responses import Responses
from gateway.dialects.sagemaker import SageMaker
from gateway.dialects.tgi import TGI

REGISTRY: Mapping[str, type[Dialect]] = {
    "openai": OpenAI,
    "sagemaker": SageMaker,
    "azure_inference": AzureInference,
    "ollama_style": OllamaStyle,
    "friendli": Friendli,
    "anthropic": Anthropic,
    "responses": Responses,
    "azure_openai": AzureOpenAI,
    "ollama": Ollama,
    "tgi": TGI,
    "rerank": Rerank,
    "gemini": Gemini,
    "cohere": Cohere,
}


def create(name: str, settings: Settings) -> Dialect:
    """The dialect `name`. Raises KeyError if there is none."""
    dialect = REGISTRY[name]()
    for changed in Settings.__struct_fields__:
        value = getattr(settings, changed)
        if value is not None:
            setattr(dialect, changed, value)
    return dialect
