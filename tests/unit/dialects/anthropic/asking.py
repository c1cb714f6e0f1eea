"""Requests of the Messages API, what is made of them, and its streams as its clients hear them."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.dialects.asking import HI, Asking

TOOL: dict[str, Any] = {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}


ASKING = Asking("anthropic", max_tokens=50, messages=HI)
DIALECT, body, read, crossing, sent = ASKING.dialect, ASKING.body, ASKING.read, ASKING.crossing, ASKING.sent


def scripted(*, stream: bool = False, **script: Any) -> dict[str, Any]:
    """A request to which a simulated worker answers as `script` says."""
    return body(stream=stream, messages=[{"role": "user", "content": "sim:" + json.dumps(script)}])


def roles(messages: list[dict[str, Any]]) -> list[str]:
    return [message["role"] for message in messages]


def frames(stream: str) -> list[dict[str, Any]]:
    """The events of a stream. Each has a name, which is the type in its data."""
    found = []
    for piece in stream.split("\n\n"):
        if piece:
            name, data = piece.split("\n")
            said = json.loads(data.removeprefix("data: "))
            assert name == f"event: {said['type']}"
            found.append(said)
    return found


def heard(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of a stream, accumulated as strictly as the strictest client does: one open at a time, indices without
    gaps, each closed."""
    blocks: list[dict[str, Any]] = []
    is_open = False
    for event in events:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(blocks)
            is_open = True
            blocks.append({**event["content_block"]})
        elif event["type"] == "content_block_delta":
            assert is_open
            assert event["index"] == len(blocks) - 1
            delta = dict(event["delta"])
            kind = delta.pop("type")
            ((name, text),) = delta.items()
            block = blocks[-1]
            assert (block["type"], kind) in {
                ("text", "text_delta"),
                ("thinking", "thinking_delta"),
                ("thinking", "signature_delta"),
                ("tool_use", "input_json_delta"),
            }
            block[name] = text if name == "signature" else block.get(name, "") + text
        elif event["type"] == "content_block_stop":
            assert is_open
            assert event["index"] == len(blocks) - 1
            is_open = False
    assert not is_open
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("partial_json", "") or "{}")
    return blocks
