"""The lines of clients, and those that are no library's, which docs/clients.md has in git."""

from __future__ import annotations

from gateway.cli.clients import CLIENTS

AGENTS = (
    "Claude Code",
    "Codex",
    "Gemini CLI",
    "opencode",
    "Qwen Code",
    "Continue, in its config.yaml",
    "Cline",
    "aider",
)
"""Agents of the command line, which tests/acceptance/agents runs."""
VARIABLES = ("any that reads OpenAI's variable", "any that reads Azure OpenAI's", "any that reads Ollama's")
"""Environment variables, by which tests/laws/contract/test_variables.py runs clients."""


def readme_lines() -> dict[str, str]:
    """Client -> its line of configuration, as the table of docs/clients.md has them."""
    return {client["title"]: client["line"] for client in CLIENTS.values()}
