"""Anthropic's clients."""

from __future__ import annotations

import json
from typing import Any

from tests.laws.conformance.clients.heard import PNG, Client, Heard, HeardChoice, Turn, events
from tests.laws.conformance.clients.openai import refused_openai


def hear_anthropic(stream: bytes) -> Heard:
    """As strictly as the strictest client: one begin, one block open at a time, indices without gaps, one end."""
    heard = Heard()
    choice = heard.of(0)
    begun = over = False
    opened = -1
    block: str | None = None
    began: dict[str, Any] = {}
    for kind, data in events(stream):
        said = json.loads(data)
        assert said["type"] == kind
        assert not over, "something follows message_stop"
        assert heard.error is None, "something follows an error"
        if kind == "error":
            heard.error = said["error"]["message"]
        elif kind == "message_start":
            assert not begun
            begun = True
            assert {"input_tokens", "output_tokens"} <= set(said["message"]["usage"])
        elif kind == "content_block_start":
            assert begun
            assert block is None, "two blocks are open"
            opened, block = opened + 1, said["content_block"]["type"]
            assert said["index"] == opened
            if block == "tool_use":
                began = said["content_block"]
                choice.calls.append([began["id"], began["name"], ""])
        elif kind == "content_block_delta":
            assert said["index"] == opened
            assert block is not None
            _hear_anthropic_delta(choice, block, said["delta"])
        elif kind == "content_block_stop":
            assert said["index"] == opened
            if block == "tool_use" and not choice.calls[-1][2]:
                # As Anthropic's own clients do: only a delta replaces the input that the block began with.
                choice.calls[-1][2] = json.dumps(began["input"])
            block = None
        elif kind == "message_delta":
            _hear_anthropic_end(heard, {**said["delta"], "usage": said["usage"]})
        elif kind == "message_stop":
            assert block is None
            assert choice.finish is not None
            over = heard.complete = True
    return heard


def _hear_anthropic_delta(choice: HeardChoice, block: str, delta: dict[str, Any]) -> None:
    if delta["type"] == "text_delta":
        assert block == "text"
        choice.text += delta["text"]
    elif delta["type"] == "thinking_delta":
        assert block == "thinking"
        choice.thinking += delta["thinking"]
    elif delta["type"] == "input_json_delta":
        assert block == "tool_use"
        choice.calls[-1][2] = (choice.calls[-1][2] or "") + delta["partial_json"]
    else:
        assert delta["type"] == "signature_delta"
        assert delta["signature"]


def _hear_anthropic_end(heard: Heard, said: dict[str, Any]) -> None:
    choice, usage = heard.of(0), said["usage"]
    choice.finish, choice.stop = said["stop_reason"], said["stop_sequence"]
    cached = usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    heard.usage = usage["input_tokens"] + cached, usage["output_tokens"]


def read_anthropic(body: bytes) -> Heard:
    reply = json.loads(body)
    heard = Heard(complete=True)
    choice = heard.of(0)
    assert reply["content"]
    for block in reply["content"]:
        if block["type"] == "text":
            choice.text += block["text"]
        elif block["type"] == "thinking":
            choice.thinking += block["thinking"]
        else:
            given = block["input"]
            text = given["__unparsedToolInput"]["raw"] if "__unparsedToolInput" in given else json.dumps(given)
            choice.calls.append([block["id"], block["name"], text])
    _hear_anthropic_end(heard, reply)
    return heard


def _in_messages(body: dict[str, Any]) -> dict[str, Any]:
    """A body of OpenAI's words in those of the Messages API."""
    names = {"stop": "stop_sequences"}
    found = {names.get(name, name): value for name, value in body.items() if name != "stream_options"}
    if isinstance(found.get("stop_sequences"), str):
        found["stop_sequences"] = [found["stop_sequences"]]
    if "tools" in found:
        tools = [tool["function"] for tool in found["tools"]]
        found["tools"] = [{"name": tool["name"], "input_schema": tool.get("parameters") or {}} for tool in tools]
    if "tool_choice" in found:
        choice = found["tool_choice"]
        words = {"auto": "auto", "required": "any", "none": "none"}
        found["tool_choice"] = (
            {"type": words[choice]} if isinstance(choice, str) else {"type": "tool", "name": choice["function"]["name"]}
        )
    found.setdefault("max_tokens", 64)
    return found


_ANTHROPIC_ENDS = {
    "stop": "end_turn",
    "stop_sequence": "stop_sequence",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


_ANTHROPIC = {
    "n": "a reply has one message",
    "stop": "of tokens that matched it has no word",
    "usage": "it always has counts: those that nobody told are 0",
    "logprobs": "it has no logprobs",
    "refusal": "a refusal is the message's text",
}


def write_turns(found: list[Turn]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for kind, *rest in found:
        if kind in ("user", "system"):
            block: dict[str, Any] = {"type": "text", "text": rest[0]}
        elif kind == "say":
            block = {"type": "text", "text": rest[0]}
        elif kind == "call":
            block = {"type": "tool_use", "id": f"c{rest[0]}", "name": "f", "input": {"a": rest[1]}}
        else:
            image = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}]
            content = [{"type": "text", "text": rest[1]}, *(image if rest[2] else [])]
            block = {"type": "tool_result", "tool_use_id": f"c{rest[0]}", "content": content}
        role = {"say": "assistant", "call": "assistant", "result": "user"}.get(kind, kind)
        if messages and messages[-1]["role"] == role and role != "system":
            messages[-1]["content"].append(block)
        else:
            messages.append({"role": role, "content": [block]})
    return {"model": "m", "max_tokens": 9, "messages": messages}


CLIENTS: tuple[Client, ...] = (
    Client(
        "anthropic",
        "anthropic",
        "chat",
        "/v1/messages",
        "chat",
        hear_anthropic,
        read_anthropic,
        refused_openai,
        blind=_ANTHROPIC,
        words=_ANTHROPIC_ENDS,
        own=_in_messages,
    ),
)
