"""Tools that the gateway runs, as the vendors' own clients see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.support.harness import Stack
from tests.support.standins.web import Web, web


@pytest.fixture(scope="module")
def service() -> Iterator[Web]:
    with web() as running:
        yield running


@pytest.fixture(scope="module")
def stack(service: Web) -> Iterator[Stack]:
    fetch = {"allow_networks": ["127.0.0.0/8"]}
    with Stack(config={"tools": {"web_search": {"url": service.url}, "web_fetch": fetch}}) as running:
        yield running


def prompt(service: Web) -> str:
    page = f"{service.url}/page"
    rounds = [
        {"text": "Let me look.", "tool_calls": [{"name": "web_search", "arguments": {"query": "weather"}}]},
        {"tool_calls": [{"name": "web_fetch", "arguments": {"url": page}}]},
        {"text": f"It rains: {page}."},
    ]
    return "Go. sim:" + json.dumps({"rounds": rounds})


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic(stack: Stack, service: Web, stream: bool) -> None:
    asked: Any = {
        "model": "m",
        "max_tokens": 300,
        "messages": [{"role": "user", "content": prompt(service)}],
        "tools": [
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 2},
            {"type": "web_fetch_20250910", "name": "web_fetch"},
        ],
    }
    with anthropic.Anthropic(base_url=stack.url, api_key="k", max_retries=0) as client:
        if stream:
            with client.messages.stream(**asked) as streamed:
                citations = [event.citation for event in streamed if event.type == "citation"]
                message: Any = streamed.get_final_message()
            assert [getattr(one, "url", None) for one in citations] == [f"{service.url}/page"]
        else:
            message = client.messages.create(**asked)
    text, searching, found, fetching, fetched, answer = message.content
    assert (text.text, answer.text) == ("Let me look.", f"It rains: {service.url}/page.")
    assert (searching.input, fetching.input) == ({"query": "weather"}, {"url": f"{service.url}/page"})
    assert (found.tool_use_id, fetched.tool_use_id) == (searching.id, fetching.id)
    assert [one.title for one in found.content] == ["Weather in Oslo", "Two"]
    assert fetched.content.content.source.data == "Weather\nIt rains today."
    assert answer.citations[0].url == f"{service.url}/page"
    assert message.usage.server_tool_use.web_search_requests == 1
    assert message.stop_reason == "end_turn"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["web_search", "web_search_preview"])
def test_responses(stack: Stack, service: Web, kind: str, stream: bool) -> None:
    asked: Any = {"model": "m", "input": prompt(service), "tools": [{"type": kind}], "tool_choice": {"type": kind}}
    with openai.OpenAI(base_url=stack.url + "/v1", api_key="k", max_retries=0) as client:
        reply: Any = client.responses.create(**asked, stream=stream)
        if stream:
            events = list(reply)
            assert [event.sequence_number for event in events] == list(range(len(events)))
            names = [event.type for event in events if "web_search_call" in event.type]
            steps = ["in_progress", "searching", "completed"]
            assert names == [f"response.web_search_call.{step}" for step in steps] * 2
            (noted,) = [event for event in events if event.type == "response.output_text.annotation.added"]
            assert noted.annotation.url == f"{service.url}/page"
            reply = events[-1].response
    text, searching, opening, answer = reply.output
    assert (text.content[0].text, text.content[0].annotations) == ("Let me look.", [])
    assert (searching.type, searching.status, searching.action.query) == ("web_search_call", "completed", "weather")
    assert [source.url for source in searching.action.sources] == [f"{service.url}/page", "https://two.example/b"]
    assert (opening.action.type, opening.action.url) == ("open_page", f"{service.url}/page")
    (cited,) = answer.content[0].annotations
    said = answer.content[0].text
    assert said[cited.start_index : cited.end_index] == cited.url == f"{service.url}/page"
    assert reply.output_text == f"Let me look.It rains: {service.url}/page."


@pytest.mark.parametrize(
    "tool",
    [{"type": "web_search", "external_web_access": False}, {"type": "file_search", "vector_store_ids": ["v"]}],
)
def test_what_is_not_run_is_left_out_and_named(stack: Stack, tool: dict[str, Any]) -> None:
    with openai.OpenAI(base_url=stack.url + "/v1", api_key="k", max_retries=0) as client:
        made: Any = client.responses.with_raw_response
        reply = made.create(model="m", input="hi", tools=[tool])
    assert f"tools.{tool['type']}" in reply.headers["x-dragoman-dropped"]
    assert "tools" not in json.loads(stack.sim.entries[-1].body)
