"""Members that client libraries send or replay, at the places where they send them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import dialects
from gateway.core.fields import ExtrasPolicy
from tests.laws.fidelity.matrix import BACKENDS
from tests.laws.nested import (
    _ASK,
    _CALL,
    _FORMAT,
    _LIMITS,
    _SCHEMA,
    PAIRS,
    PNG,
    POLICIES,
    Place,
    _chat,
    handling,
    is_free,
    named,
    objects,
    put,
    rich,
    send,
)
from tests.support.clients import like_openai
from tests.support.sampled import sampled

_PART: dict[str, Any] = {"type": "text", "text": "a"}
_TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
_CACHE: dict[str, Any] = {"type": "ephemeral"}


def _message(role: str = "user", **members: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": "hi", **members}]}


def _part(**members: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{**_PART, **members}]}]}


def _tool(**members: Any) -> dict[str, Any]:
    return {"messages": [_ASK], "tools": [{**_TOOL, **members}]}


def _called(**members: Any) -> dict[str, Any]:
    return {"messages": [_ASK, {"role": "assistant", "tool_calls": [{**_CALL, **members}]}]}


_FIRST, _CONTENT = ("messages", 0), ("messages", 0, "content", 0)
_NAMED: dict[str, Any] = {"name": "f"}

SENT: list[tuple[Place, dict[str, Any]]] = [
    ((*_FIRST, "cache_control"), _message(cache_control=_CACHE)),
    ((*_FIRST, "prefix"), _message("assistant", prefix=True)),
    ((*_FIRST, "audio"), _message("assistant", audio={"id": "a1"})),
    ((*_FIRST, "annotations"), _message("assistant", annotations=[{"type": "url_citation"}])),
    ((*_FIRST, "function_call"), _message("assistant", function_call={"name": "f", "arguments": "{}"})),
    ((*_FIRST, "tool_name"), _message("tool", tool_name="f")),
    ((*_FIRST, "thinking"), _message("assistant", thinking="hm")),
    ((*_FIRST, "images"), _message(images=[PNG])),
    ((*_FIRST, "reasoning"), _message("assistant", reasoning="one", reasoning_content="two")),
    ((*_FIRST, "reasoning_content"), _message("assistant", reasoning="one", reasoning_content="two")),
    ((*_CONTENT, "cache_control"), _part(cache_control=_CACHE)),
    ((*_CONTENT, "uuid"), _part(uuid="u-1")),
    ((*_CONTENT, "refusal"), _part(refusal="no")),
    ((*_CONTENT, "image_url"), _part(image_url={"url": "http://x/y.png"})),
    (("tools", 0, "cache_control"), _tool(cache_control=_CACHE)),
    (("tools", 0, "function", "returns"), _tool(function={"name": "f", "returns": {"type": "string"}})),
    (("tool_choice", "mode"), {**_tool(), "tool_choice": {"type": "function", "function": _NAMED, "mode": "hard"}}),
    (
        ("tool_choice", "function", "x"),
        {**_tool(), "tool_choice": {"type": "function", "function": {**_NAMED, "x": 1}}},
    ),
    (("messages", 1, "tool_calls", 0, "index"), _called(index=7)),
    (("messages", 1, "tool_calls", 0, "type"), _called(type="custom")),
    (("messages", 1, "tool_calls", 0, "function", "index"), _called(function={**_CALL["function"], "index": 7})),
    (
        ("response_format", "json_schema", "description"),
        _chat(response_format={**_FORMAT, "json_schema": {**_FORMAT["json_schema"], "description": "what for"}}),
    ),
    (
        ("response_format", "json_schema", "strict"),
        _chat(response_format={**_FORMAT, "json_schema": {**_FORMAT["json_schema"], "strict": True}}),
    ),
    (("response_format", "schema"), _chat(response_format={"type": "json_object", "schema": _SCHEMA})),
    (("response_format", "json_schema"), _chat(response_format={**_FORMAT, "type": "text"})),
    (
        ("stream_options", "continuous_usage_stats"),
        _chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}),
    ),
    (("max_tokens",), _chat(**_LIMITS)),
    (("max_completion_tokens",), _chat(**_LIMITS)),
    (("top_logprobs",), _chat(top_logprobs=3)),
    (("top_logprobs",), _chat(logprobs=False, top_logprobs=3)),
    (("tool_choice",), _chat(tool_choice="auto")),
    (("tool_choice",), _chat(tool_choice="required")),
    (("tool_choice",), _chat(tools=[], tool_choice={"type": "function", "function": _NAMED})),
    (("parallel_tool_calls",), _chat(parallel_tool_calls=True)),
    (("parallel_tool_calls",), {**_tool(), "parallel_tool_calls": True}),
]

# What Ollama's API and Friendli's have a place of their own for.
_PLACED = {("ollama_style", name) for name in ("thinking", "images", "tool_name")} | {("friendli", "schema")}

# What reaches the worker under its other name, as the field tables say.
_RENAMED = {"max_completion_tokens": "max_tokens"}


@pytest.mark.parametrize("policy", [None, *POLICIES])
@pytest.mark.parametrize(("place", "body"), SENT, ids=[named(place) for place, _ in SENT])
def test_what_clients_send_is_not_lost(place: Place, body: dict[str, Any], policy: ExtrasPolicy | None) -> None:
    value = body
    for key in place:
        value = value[key]  # type: ignore[index]
    lost = {}
    for dialect in filter(like_openai, dialects.REGISTRY):
        for backend in BACKENDS:
            met = handling(dialect, "chat", backend, policy, body, place, value)
            if met.word in ("lost", "wrong") and not _elsewhere(dialect, backend, body, place, value, policy):
                lost[dialect, backend] = met
    assert lost == {}


def _elsewhere(
    dialect: str, backend: str, body: dict[str, Any], place: Place, value: Any, policy: ExtrasPolicy | None
) -> bool:
    """Whether it reaches the worker in a place of the dialect's own, or by its other name."""
    sent = json.loads(send(dialect, "chat", backend, body, policy).outgoing.body)
    if (dialect, place[-1]) in _PLACED:
        return json.dumps(value[0] if isinstance(value, list) else value).strip('"') in json.dumps(sent)
    other = _RENAMED.get(str(place[0]))
    return other is not None and sent.get(other) == value


_REPLAYED = "provider_specific_fields"


@pytest.mark.parametrize("policy", [None, *POLICIES])
@pytest.mark.parametrize(
    ("dialect", "backend"),
    sampled(((one.values[0], one.values[2]) for one in PAIRS if one.values[1] == "chat"), 3, lambda case: case[0]),
)
def test_what_client_libraries_replay_is_taken(dialect: str, backend: str, policy: ExtrasPolicy | None) -> None:
    """LiteLLM adds a member to the messages of a reply, and to their calls, and sends both back."""
    body = rich(dialect, "chat", backend)
    turns = ("messages", "input", "contents")
    replayed = [place for place in objects(body) if place[0] in turns and not is_free(dialect, place)]
    messages = [place for place in replayed if len(place) == 2 or "tool_calls" in place]
    assert messages
    for place in messages:
        sent = put(body, place, _REPLAYED, {"x": 1})
        met = handling(dialect, "chat", backend, policy, sent, (*place, _REPLAYED), {"x": 1})
        own_messages = policy == "error" and not like_openai(dialect)
        assert met.word in ({"refused"} if own_messages else {"named", "carried", "moved"}), (place, met)
