"""What Codex CLI 0.169 was recorded to send, shortened where it is long."""

from __future__ import annotations

from typing import Any

CODEX_HEADERS = {
    "authorization": "Bearer k",
    "originator": "codex_exec",
    "session-id": "019a9d0c-1f2e-7c3b-8a4d-5e6f70819203",
    "thread-id": "019a9d0c-1f2e-7c3b-8a4d-5e6f70819203",
    "x-client-request-id": "019a9d0c-1f2e-7c3b-8a4d-5e6f70819203",
    "x-codex-window-id": "019a9d0c-1f2e-7c3b-8a4d-5e6f70819203:0",
    "accept": "text/event-stream",
    "user-agent": "codex_exec/0.169.0 (Debian 12.0.0; x86_64)",
}
_SCHEMA = {
    "type": "object",
    "properties": {"cmd": {"type": "string"}},
    "required": ["cmd"],
    "additionalProperties": False,
}


def _function(name: str) -> dict[str, Any]:
    return {"type": "function", "name": name, "description": f"{name}.", "strict": False, "parameters": _SCHEMA}


def _said(number: int, role: str, *texts: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text} for text in texts]
    return {"type": "message", "id": f"msg_{number}", "role": role, "content": content}


_INPUT = [
    _said(1, "developer", "You are a coding agent running in the Codex CLI."),
    _said(2, "developer", "Skills", "Permissions"),
    _said(3, "user", "<environment_context>"),
    _said(4, "user", 'sim:{"text":"Hello"}'),
]
CODEX: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "input": _INPUT,
    "tools": [
        *map(_function, ("exec_command", "write_stdin", "request_user_input", "view_image")),
        {
            "type": "namespace",
            "name": "multi_agent_v1",
            "description": "Agents.",
            "tools": [*map(_function, ("spawn_agent", "send_input", "wait_agent", "close_agent", "resume_agent"))],
        },
        *map(_function, ("get_goal", "create_goal", "update_goal")),
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "019a9d0c-1f2e-7c3b-8a4d-5e6f70819203",
    "client_metadata": {"x-codex-installation-id": "1"},
}
_EXEC = {
    "type": "custom",
    "name": "exec",
    "description": "Runs code.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /(.|\\n)+/"},
}
CODEX_TOOLS_AS_ITEM: dict[str, Any] = {
    **{name: value for name, value in CODEX.items() if name != "tools"},
    "input": [
        {
            "type": "additional_tools",
            "role": "developer",
            "tools": [
                {"type": "namespace", "name": "functions", "description": "", "tools": [_EXEC, _function("wait")]},
                {"type": "namespace", "name": "clock", "description": "", "tools": [_function("now")]},
            ],
        },
        *_INPUT,
    ],
    "parallel_tool_calls": False,
    "text": {"verbosity": "low"},
    "reasoning": {"effort": "low", "context": "all_turns"},
}
"""With names of models that it knows."""
