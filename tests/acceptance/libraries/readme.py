"""The table in docs/clients.md: its lines, and those that are no library's."""

from __future__ import annotations

import re

from tests.acceptance.libraries.library import ROOT

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
    return dict(re.findall(r"^\| ([^|`]+) \| `([^`]+)` \|$", (ROOT / "docs" / "clients.md").read_text(), re.MULTILINE))
