"""Anthropic's Agent SDK, which runs Claude Code: here that of tests/agents/node, in place of the copy in its wheels."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, StreamEvent, create_sdk_mcp_server, query, tool

LOOK = "mcp__tested__look"
CODE = Path(__file__).parents[2] / "agents" / "node" / "node_modules" / "@anthropic-ai"
CODE = CODE / f"claude-code-linux-{'arm64' if os.uname().machine == 'aarch64' else 'x64'}" / "claude"
# Nothing of its own goes out, and a test does not wait for ten attempts.
QUIET = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_MAX_RETRIES": "2"}


def connect(url: str, model: str) -> Any:
    return ClaudeAgentOptions(model=model, env={"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "none"})


async def _messages(client: Any, prompt: str, **more: Any) -> list[Any]:
    options = replace(client, env={**client.env, **QUIET}, cli_path=CODE, tools=[], setting_sources=[], **more)
    return [message async for message in query(prompt=prompt, options=options)]


def _ask(client: Any, prompt: str, **more: Any) -> list[Any]:
    return asyncio.run(_messages(client, prompt, **more))


def whole(client: Any, model: str, prompt: str) -> Any:
    return next(message.result for message in _ask(client, prompt) if isinstance(message, ResultMessage))


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for message in _ask(client, prompt, include_partial_messages=True):
        if isinstance(message, StreamEvent):
            yield message.event.get("delta", {}).get("text", "")


def tools(client: Any, model: str, prompt: str, look: Callable[[str], str]) -> Any:
    @tool("look", "Looks at something.", {"at": str})  # type: ignore[untyped-decorator,unused-ignore]
    async def looking(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": look(arguments["at"])}]}

    server = create_sdk_mcp_server("tested", tools=[looking])
    found = _ask(client, prompt, mcp_servers={"tested": server}, allowed_tools=[LOOK])
    return next(message.result for message in found if isinstance(message, ResultMessage))
