"""What Claude Code 2.1.330 was recorded to send, shortened where it is long, and what a worker gets of it."""

from __future__ import annotations

import json
from typing import Any

import httpx

from gateway.translation.offline import send
from tests.laws.fidelity.matrix import BACKENDS, CAN
from tests.support.harness import Stack
from tests.unit.dialects.anthropic.asking import DIALECT, frames, heard

CACHED = {"cache_control": {"type": "ephemeral"}}
HEADERS = {
    "x-api-key": "k",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "x-stainless-timeout": "600",
    "x-claude-code-session-id": "5f0c2e0e-5c5b-4f29-9d3f-2f7b6b1f3a10",
    "x-app": "cli",
    "user-agent": "claude-cli/2.1.330 (external, sdk-cli)",
    "anthropic-dangerous-direct-browser-access": "true",
}
TOOLS: list[dict[str, Any]] = [
    {
        "name": name,
        "description": f"{name} something.",
        "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {}},
    }
    for name in ("Agent", "Bash", "Edit", "Read", "ToolSearch", "Write")
]
PLACEHOLDER = {"name": "DeferredToolPlaceholder", "input_schema": {"type": "object"}, "defer_loading": True}
BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": 128000,
    "stream": True,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.330.d01; cc_entrypoint=sdk-cli;"},
        {"type": "text", "text": "You are a Claude agent.", **CACHED},
        {"type": "text", "text": "The rest.", **CACHED},
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system>"},
                {"type": "text", "text": 'sim:{"text":"Hello"}'},
            ],
        },
        {
            "role": "system",
            "content": [{"type": "text", "text": "# Environment", **CACHED}],
            "output_config": {"effort": "medium"},
        },
    ],
    "tools": [*TOOLS, PLACEHOLDER],
    "metadata": {"user_id": json.dumps({"device_id": "d", "account_uuid": "", "session_id": "s"})},
    "thinking": {"type": "adaptive", "display": "omitted"},
    "output_config": {"effort": "medium"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
}


def test_the_first_request_of_a_session() -> None:
    told = json.loads(send(DIALECT, BACKENDS["vllm"], json.dumps(BODY).encode(), CAN, route="chat").outgoing.body)
    assert [message["role"] for message in told["messages"]] == ["system", "user"]
    assert told["messages"][0]["content"] == "You are a Claude agent.\n\nThe rest."
    assert told["messages"][1]["content"].endswith("\n\n# Environment")
    assert [tool["function"]["name"] for tool in told["tools"]] == [tool["name"] for tool in TOOLS]
    assert told["reasoning_effort"] == "medium"
    assert len(told["user"]) == 32


def test_it_is_answered_streamed_and_whole() -> None:
    with Stack(config={"models": {"m": {"max_context": 8192}}}) as stack:
        address = stack.url + "/v1/messages?beta=true"
        streamed = httpx.post(address, json=BODY, headers=HEADERS)
        assert streamed.status_code == 200, streamed.text
        assert heard(frames(streamed.text))
        named = streamed.headers["x-dragoman-dropped"].split(", ")
        assert {"context_management", "max_tokens", "tools.DeferredToolPlaceholder", "thinking.display"} <= set(named)
        whole = httpx.post(address, json={**BODY, "stream": False, "max_tokens": 32000}, headers=HEADERS)
        assert whole.status_code == 200, whole.text
        assert whole.json()["stop_reason"] == "end_turn"


def test_what_a_session_asks_beside() -> None:
    """Its probe, its count of tokens, its search of the web, its history with a PDF and with arguments that it could
    not parse."""
    with Stack() as stack, httpx.Client(base_url=stack.url, headers=HEADERS) as client:
        assert client.head("/api/hello", headers={"user-agent": "Bun/1.3"}).status_code == 200
        count = {name: BODY[name] for name in ("model", "messages", "system", "thinking", "output_config")}
        assert client.post("/v1/messages/count_tokens?beta=true", json={**count, "tools": []}).json()["input_tokens"]
        search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
        asked = {**BODY, "tools": [search], "tool_choice": {"type": "tool", "name": "web_search"}}
        assert client.post("/v1/messages", json=asked).status_code == 200
        pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}}
        unparsed = {"__unparsedToolInput": {"raw": "{", "len": 1}}
        calls = [
            {"type": "tool_use", "id": "call_1", "name": "Read", "input": unparsed},
            {"type": "tool_use", "id": "call_2", "name": "Read", "input": {}},
        ]
        results = [
            {"type": "tool_result", "tool_use_id": "call_1", "content": "bad input", "is_error": True, **CACHED},
            {"type": "tool_result", "tool_use_id": "call_2", "content": [pdf], "is_error": False},
        ]
        history = [
            *BODY["messages"],
            {"role": "assistant", "content": [{"type": "text", "text": "I read."}, *calls]},
            {"role": "user", "content": results},
        ]
        reply = client.post("/v1/messages", json={**BODY, "messages": history})
        assert reply.status_code == 200, reply.text
        got = json.loads(stack.sim.entries[-1].body)["messages"]
        assert [message["content"] for message in got if message["role"] == "tool"] == [
            "Error: bad input",
            "[PDF omitted]",
        ]
