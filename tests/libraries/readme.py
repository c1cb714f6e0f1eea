"""The libraries of the table in docs/clients.md: what `make test-agents` drives, beside agents of the command line."""

from __future__ import annotations

import re

from tests.libraries.library import NODE, ROOT, Further, Library

_AGENTS = ".venv-clients-agents"
_ANTHROPIC = "no batches, files or `completions`"
_STATE = "no conversations, no background; what is stored needs a [store](dialects/responses.md#stored-responses)"
_AZURE = "no assistants, images, speech, files or batches"
_OLLAMA = "no `create`, `push`, `copy` or `delete`, and no `context` of a former generation"
_TGI = "names no model: the dialect's `default_model` answers"
# The errors of libraries that name them alike. Those of Anthropic and OpenAI are made by one generator.
_BY_STATUS = Further("InternalServerError", "AuthenticationError")
_OF_AI_SDK = Further("AI_RetryError", "AI_APICallError")
_OF_OLLAMA = Further("ResponseError", "ResponseError", "ResponseError")
_OF_TGI = Further("GenerationError", "UnknownError", "OverloadedError", tools=False)

AGENTS = ("Claude Code", "Codex")
"""Agents of the command line, which tests/agents runs."""
VARIABLES = ("any that reads OpenAI's variable", "any that reads Azure OpenAI's", "any that reads Ollama's")
"""Environment variables, by which tests/contract/test_variables.py runs clients."""
TABLE = (
    Library(
        "Anthropic",
        "anthropic",
        "anthropic_python",
        ".venv",
        "anthropic",
        "NotFoundError",
        "APIStatusError",
        _ANTHROPIC,
        further=_BY_STATUS,
    ),
    Library(
        "Anthropic (Node)",
        "@anthropic-ai/sdk",
        "anthropic",
        NODE,
        "anthropic",
        "NotFoundError",
        "APIError",
        _ANTHROPIC,
        further=_BY_STATUS,
    ),
    Library(
        "LangChain, Anthropic",
        "langchain-anthropic",
        "langchain_claude",
        _AGENTS,
        "anthropic",
        "AnthropicModelNotFoundError",
        "APIStatusError",
        _ANTHROPIC,
        further=Further("AnthropicAPIError", "AnthropicAuthenticationError"),
    ),
    Library(
        "AI SDK, Anthropic (Node)",
        "@ai-sdk/anthropic",
        "aisdk_anthropic",
        NODE,
        "anthropic",
        "AI_APICallError",
        "AI_StreamProviderError",
        _ANTHROPIC,
        further=_OF_AI_SDK,
    ),
    Library(
        "OpenAI, Responses",
        "openai",
        "openai_responses",
        ".venv",
        "responses",
        "NotFoundError",
        "APIError",
        _STATE,
        further=_BY_STATUS,
    ),
    Library(
        "OpenAI, Responses (Node)",
        "openai",
        "openai_responses",
        NODE,
        "responses",
        "NotFoundError",
        "APIError",
        _STATE,
        further=_BY_STATUS,
    ),
    Library(
        "OpenAI Agents SDK",
        "openai-agents",
        "openai_agents",
        _AGENTS,
        "responses",
        "NotFoundError",
        "APIError",
        _STATE,
        further=_BY_STATUS,
    ),
    Library(
        "LangChain, Responses",
        "langchain-openai",
        "langchain_responses",
        _AGENTS,
        "responses",
        "OpenAIModelNotFoundError",
        "APIError",
        _STATE,
        further=Further("OpenAIAPIError", "OpenAIAuthenticationError"),
    ),
    Library(
        "AI SDK, OpenAI (Node)",
        "@ai-sdk/openai",
        "aisdk_openai",
        NODE,
        "responses",
        "AI_APICallError",
        "AI_StreamProviderError",
        "without a [store](dialects/responses.md#stored-responses) a step after text needs `store: false`",
        further=_OF_AI_SDK,
    ),
    Library(
        "OpenAI, for Azure",
        "openai",
        "azure_openai_python",
        ".venv",
        "azure_openai",
        "NotFoundError",
        "APIError",
        _AZURE,
        further=_BY_STATUS,
    ),
    Library(
        "OpenAI, for Azure (Node)",
        "openai",
        "azure_openai",
        NODE,
        "azure_openai",
        "NotFoundError",
        "APIError",
        _AZURE,
        further=_BY_STATUS,
    ),
    Library(
        "Ollama",
        "ollama",
        "ollama_python",
        ".venv",
        "ollama_native",
        "ResponseError",
        "ResponseError",
        _OLLAMA,
        further=_OF_OLLAMA,
    ),
    Library(
        "Ollama (Node)",
        "ollama",
        "ollama",
        NODE,
        "ollama_native",
        "ResponseError",
        "Error",
        _OLLAMA,
        further=_OF_OLLAMA,
    ),
    Library(
        "LangChain, Ollama",
        "langchain-ollama",
        "langchain_ollama_chat",
        _AGENTS,
        "ollama_native",
        "ResponseError",
        "ResponseError",
        _OLLAMA,
        further=_OF_OLLAMA,
    ),
    Library(
        "AI SDK, Ollama (Node)",
        "ollama-ai-provider-v2",
        "aisdk_ollama",
        NODE,
        "ollama_native",
        "AI_APICallError",
        "TypeError",
        "shows the status of an error and not its text",
        says="Not Found",
        further=Further("AI_RetryError", "AI_APICallError", says="Unauthorized"),
    ),
    Library(
        "Hugging Face, TGI",
        "huggingface-hub",
        "huggingface_tgi",
        _AGENTS,
        "tgi",
        "",
        "IncompleteGenerationError",
        _TGI,
        further=_OF_TGI,
    ),
    Library(
        "text-generation",
        "text-generation",
        "text_generation_python",
        ".venv",
        "tgi",
        "",
        "IncompleteGenerationError",
        _TGI,
        further=_OF_TGI,
    ),
    Library(
        "Cohere",
        "cohere",
        "cohere_python",
        _AGENTS,
        "rerank",
        "NotFoundError",
        "",
        "rerank alone, with a model that ranks: no chats and no embeddings",
        further=Further("ApiError", "UnauthorizedError", tools=False),
    ),
)


def readme_lines() -> dict[str, str]:
    """Client -> its line of configuration, as the table of docs/clients.md has them."""
    return dict(re.findall(r"^\| ([^|`]+) \| `([^`]+)` \|$", (ROOT / "docs" / "clients.md").read_text(), re.MULTILINE))
