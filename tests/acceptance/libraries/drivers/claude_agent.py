"""Anthropic's Agent SDK, which runs Claude Code: here that of tests/acceptance/agents/node, in place of the copy in its
wheels."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, StreamEvent, create_sdk_mcp_server, query, tool

LOOK = "mcp__tested__look"
MOST = 40
"""Pieces of text that are read of a stream."""
CODE = Path(__file__).parents[2] / "agents" / "node" / "node_modules" / "@anthropic-ai"
CODE = CODE / f"claude-code-linux-{'arm64' if os.uname().machine == 'aarch64' else 'x64'}" / "claude"
# Nothing of its own goes out, and a test does not wait for ten attempts.
QUIET = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_MAX_RETRIES": "2"}


def connect(url: str, model: str) -> Any:
    return ClaudeAgentOptions(model=model, env={"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "none"})


def _query(client: Any, prompt: str, **more: Any) -> Any:
    options = replace(client, env={**client.env, **QUIET}, cli_path=CODE, tools=[], setting_sources=[], **more)
    return query(prompt=prompt, options=options)


async def _result(client: Any, prompt: str, **more: Any) -> Any:
    found = [message async for message in _query(client, prompt, **more)]
    return next(message.result for message in found if isinstance(message, ResultMessage))


async def _pieces(client: Any, prompt: str) -> list[str]:
    found: list[str] = []
    async with contextlib.aclosing(_query(client, prompt, include_partial_messages=True)) as messages:
        async for message in messages:
            if isinstance(message, StreamEvent):
                found.append(message.event.get("delta", {}).get("text", ""))
            # A small model may run on to the end of its context; then Claude Code asks for more, and fails.
            if sum(map(bool, found)) == MOST:
                break
    return found


def whole(client: Any, model: str, prompt: str) -> Any:
    return asyncio.run(_result(client, prompt))


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    yield from asyncio.run(_pieces(client, prompt))


def tools(client: Any, model: str, prompt: str, look: Callable[[str], str]) -> Any:
    @tool("look", "Looks at something.", {"at": str})  # type: ignore[untyped-decorator,unused-ignore]
    async def looking(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": look(arguments["at"])}]}

    server = create_sdk_mcp_server("tested", tools=[looking])
    return asyncio.run(_result(client, prompt, mcp_servers={"tested": server}, allowed_tools=[LOOK]))
