"""A tool of the web that nothing here runs does not decide the reply: the model answers without it, and it is named.

Only a choice that forces it learns that there is none, and no model makes its result up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.clients import DIALECTS, Way, usual
from tests.support.harness import Stack
from tests.support.sampled import sampled

CHATS = [way for way in map(usual, DIALECTS) if way.operation == "chat" and way.field("tools") is not None]
_PLACE = {"type": "approximate", "country": "DE"}
TOOLS: dict[str, tuple[dict[str, Any], ...]] = {
    "function": (  # OpenAI's and z.ai's, Groq's, OpenRouter's, Friendli's, and Anthropic's as proxies pass it on
        {"type": "web_search"},
        {"type": "web_search_preview", "search_context_size": "low", "user_location": _PLACE},
        {"type": "web_search", "web_search": {"enable": True}},
        {"type": "browser_search"},
        {"type": "openrouter:web_search", "parameters": {"max_results": 3}},
        {"type": "web:search"},
        {"type": "web_fetch_20250910", "name": "web_fetch", "max_uses": 2},
    ),
    "input_schema": (
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "web_fetch_20250910", "name": "web_fetch", "max_uses": 2},
    ),
    "functionDeclarations": (
        {"googleSearch": {}},
        {"google_search": {}},
        {"googleSearchRetrieval": {}},
        {"urlContext": {}},
    ),
    "name": (
        {"type": "web_search"},
        {"type": "web_search_preview", "search_context_size": "low", "user_location": _PLACE},
    ),
}
"""The first of these members that a function has in an API -> forms of that API's tools of the web."""


def form_of(way: Way) -> str:
    return next(name for name in TOOLS if name in function_of(way))


def function_of(way: Way) -> Any:
    field = way.field("tools")
    assert field is not None
    return field.sample[0]


def forcing(way: Way) -> tuple[dict[str, Any], ...]:
    if form_of(way) == "functionDeclarations":
        return ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},)
    if form_of(way) == "input_schema":
        return ({"tool_choice": {"type": "any"}},)
    field = way.field("tool_choice")
    if field is None:
        return ()
    upper = isinstance(field.sample, str) and field.sample.isupper()
    return (
        ({"tool_choice": "REQUIRED"},)
        if upper
        else ({"tool_choice": "required"}, {"tool_choice": {"type": "web_search"}})
    )


CASES = [(way, tool) for way in CHATS for tool in TOOLS[form_of(way)]]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as started:
        yield started


def offering(way: Way, *tools: Any, stream: bool = False, **members: Any) -> dict[str, Any]:
    return {**way.body(model="m", max_tokens=10, stream=stream), "tools": list(tools), **members}


def asked(stack: Stack, way: Way, body: dict[str, Any]) -> tuple[httpx.Response, list[Any]]:
    """(the reply, the bodies that the worker got for it)"""
    before = len(stack.sim.entries)
    reply = httpx.post(stack.url + way.path("m"), json=body, timeout=60)
    return reply, [json.loads(entry.body) for entry in stack.sim.entries[before:]]


def of_kind(case: tuple[Way, dict[str, Any]]) -> object:
    return case[0].dialect, len(case[1]) > 1


@pytest.mark.parametrize(("way", "tool"), sampled(CASES, 2, of=of_kind), ids=str)
def test_the_model_answers_without_it(stack: Stack, way: Way, tool: dict[str, Any]) -> None:
    for stream in (False, True):
        reply, (sent,) = asked(stack, way, offering(way, tool, stream=stream))
        assert reply.status_code == 200, reply.text
        named = reply.headers["x-dragoman-dropped"]
        kind = tool.get("type", next(iter(tool))).replace("google_search", "googleSearch").replace(":", "?")
        assert kind in named or str(tool.get("name")) in named, named
        assert not sent.keys() & {"tools", "tool_choice"}


@pytest.mark.parametrize(("way", "tool"), sampled(CASES, 4, of=lambda case: case[0].dialect), ids=str)
def test_functions_beside_it_stay(stack: Stack, way: Way, tool: dict[str, Any]) -> None:
    for tools in ((tool, function_of(way)), (function_of(way), tool)):
        reply, (sent,) = asked(stack, way, offering(way, *tools))
        assert reply.status_code == 200, reply.text
        _, (alone,) = asked(stack, way, offering(way, function_of(way)))
        assert sent["tools"] == alone["tools"] != []


def misnamed(value: Any) -> Any:
    """`value` with a number for each name."""
    if isinstance(value, list):
        return [misnamed(one) for one in value]
    return {key: 7 if key == "name" else misnamed(one) for key, one in value.items()} if type(value) is dict else value


@pytest.mark.parametrize("way", CHATS, ids=str)
def test_an_error_names_the_place_of_a_function_in_the_clients_own_tools(stack: Stack, way: Way) -> None:
    function, tool = function_of(way), TOOLS[form_of(way)][0]
    for before in ((tool,), (function, tool), (tool, function, tool)):
        at = len(before)
        reply, sent = asked(stack, way, offering(way, *before, misnamed(function), tool))
        assert (reply.status_code in (400, 422), sent) == (True, [])
        alone, _ = asked(stack, way, offering(way, *[function] * at, misnamed(function)))
        told = [json.dumps(one.json()).replace(one.headers["x-request-id"], "") for one in (reply, alone)]
        assert told[0] == told[1]
        assert f"tools.{at}" in told[0]


@pytest.mark.parametrize("way", CHATS, ids=str)
def test_a_choice_that_forces_it_gets_no_result_made_up(stack: Stack, way: Way) -> None:
    tool = TOOLS[form_of(way)][0]
    for choice in forcing(way):
        reply, sent = asked(stack, way, offering(way, tool, **choice))
        assert sent == []
        if reply.status_code == 200:  # the tool's own error, in APIs that have one
            assert "unavailable" in reply.text or '"failed"' in reply.text
        else:
            assert reply.status_code in (400, 422)
            assert "tool" in reply.text
