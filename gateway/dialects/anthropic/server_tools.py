"""Blocks of the tools that the server of this API runs: `web_search` and `web_fetch`.

Source: Anthropic's pages of both tools, and the types of anthropic-python 2.12.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.core.messages import ServerCall

_NAMES = {"search": "web_search", "fetch": "web_fetch"}


def call_block(call: ServerCall) -> dict[str, Any]:
    return {"type": "server_tool_use", "id": f"srvtoolu_{call.id}", "name": _NAMES[call.tool.kind], "input": {}}


def result_block(call: ServerCall) -> dict[str, Any]:
    kind = f"{_NAMES[call.tool.kind]}_tool_result"
    content = {"type": f"{kind}_error", "error_code": call.error}
    return {"type": kind, "tool_use_id": f"srvtoolu_{call.id}", "content": content}


def server_usage(calls: Sequence[ServerCall]) -> dict[str, Any]:
    """The member of `usage` that counts calls; without calls it is left out. Calls that failed are not counted."""
    if not calls:
        return {}
    done = [call.tool.kind for call in calls if call.error is None]
    return {"server_tool_use": {"web_search_requests": done.count("search"), "web_fetch_requests": done.count("fetch")}}
