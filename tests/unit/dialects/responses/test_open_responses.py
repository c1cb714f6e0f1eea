"""The laws of Open Responses, the open standard of this API (openresponses.org): its objects have every member."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.core.events import End, Event, Finish, Start
from gateway.core.messages import Chat
from gateway.dialects.responses.requests import Asked
from tests.support.harness import Stack
from tests.unit.dialects.responses.asking import (
    DIALECT,
    body,
    call,
    crossing,
    frames,
    message,
    output,
    read,
    scripted,
    sent,
)

NUMBERS = {"temperature": 1, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "top_logprobs": 0}
NULLS = ("max_tool_calls", "safety_identifier", "prompt_cache_key", "incomplete_details", "error", "instructions")
BARE = {"type": "function", "name": "f"}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(config={"store": {"where": "memory"}}) as found:
        yield found


def post(client: httpx.Client, request: dict[str, Any]) -> list[dict[str, Any]]:
    """The response in each of its states: the last is the end."""
    reply = client.post("/v1/responses", json=request)
    assert reply.status_code == 200, reply.text
    if not request.get("stream"):
        return [reply.json()]
    return [event["response"] for event in frames(reply.text) if "response" in event]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("absent", [False, True])
def test_every_state_of_a_response_has_every_member(client: httpx.Client, stream: bool, absent: bool) -> None:
    """A member with an explicit null is as one that is not there."""
    names = [*NUMBERS, "tool_choice", "tools", "metadata", "parallel_tool_calls", "text", "reasoning"]
    also = {} if absent else {**dict.fromkeys(names), **dict.fromkeys(NULLS[:3])}
    for response in post(client, scripted(text="a", stream=stream, also=also)):
        assert {name: response[name] for name in NUMBERS} == NUMBERS
        assert {response[name] for name in NULLS} == {None}
        assert (response["service_tier"], response["truncation"]) == ("default", "disabled")
        assert (response["tool_choice"], response["tools"], response["parallel_tool_calls"]) == ("auto", [], True)
        assert (response["metadata"], response["text"]) == ({}, {"format": {"type": "text"}})
        assert response["reasoning"] == {"effort": None, "summary": None}
        assert "user" not in response, "a text, if there is one"
        assert isinstance(response["completed_at"], int) == (response["status"] == "completed")


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_cut_off_was_not_completed(client: httpx.Client, stream: bool) -> None:
    response = post(client, scripted(text="a", finish="length", stream=stream))[-1]
    assert (response["status"], response["completed_at"]) == ("incomplete", None)


def test_a_completed_response_ends_behind_its_beginning() -> None:
    """However far ahead the clock of the worker is."""
    later = 2**33
    writer = DIALECT.writer(read())
    said: tuple[Event, ...] = (Start("w", "m", later), Finish(0, "stop", "stop"), End())
    found = frames(b"".join(map(writer.write, said)).decode())
    assert found[0]["response"]["created_at"] == later
    assert found[-1]["response"]["completed_at"] >= found[-1]["response"]["created_at"]


def test_a_response_shows_what_was_used_and_not_what_was_wished(client: httpx.Client) -> None:
    used: dict[str, Any] = {"temperature": 0.5, "top_p": 0.25, "presence_penalty": 0.5, "frequency_penalty": -0.5}
    used |= {"top_logprobs": 2, "prompt_cache_key": "k", "user": "u"}
    wished = {"service_tier": "priority", "safety_identifier": "s", "max_tool_calls": 3}
    reply = client.post("/v1/responses", json=scripted(text="a", also=used | wished))
    response = reply.json()
    assert {name: response[name] for name in used} == used
    assert [response[name] for name in wished] == ["default", None, None]
    assert set(wished) <= set(reply.headers["x-dragoman-dropped"].replace(" ", "").split(","))
    told = sent(**used)
    assert {name: told[name] for name in used.keys() & told.keys()} == {
        name: value for name, value in used.items() if name != "prompt_cache_key"
    }


def test_penalties_have_the_bounds_of_the_api(client: httpx.Client) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        reply = client.post("/v1/responses", json=body(**{name: 2.5}))
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)


def test_a_summary_has_no_logprobs() -> None:
    found = crossing(input=[message("user", "a"), {"type": "compaction_trigger"}], top_logprobs=3)
    assert isinstance(found.op, Chat)
    assert json.loads(b"{%b}" % found.op.facts(Asked).echo)["top_logprobs"] == 0


@pytest.mark.parametrize(
    "tool", [BARE, {**BARE, "strict": False}, {**BARE, "description": "d", "parameters": {"type": "object"}}]
)
def test_a_function_has_every_member(client: httpx.Client, tool: dict[str, Any]) -> None:
    (response,) = post(client, scripted(text="a", also={"tools": [tool]}))
    assert response["tools"] == [{"description": None, "parameters": None, "strict": None, **tool}]


def test_items_that_led_to_a_response_have_every_member(client: httpx.Client) -> None:
    """Clients leave out ids, states and what a part need not have."""
    pixel = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]}
    bare = {**call(1), "status": None}
    turns = [message("user", "a"), {"role": "assistant", "content": "b"}, said, bare, output(1, "x")]
    (response,) = post(client, body(input=[*turns, {"role": "user", "content": [pixel]}]))
    items = client.get(f"/v1/responses/{response['id']}/input_items", params={"order": "asc"}).json()["data"]
    assert [item["type"] for item in items] == ["message"] * 3 + ["function_call", "function_call_output", "message"]
    assert {item["status"] for item in items} == {"completed"}
    assert all(item["id"] for item in items)
    spoken = {"type": "output_text", "text": "b", "annotations": [], "logprobs": []}
    assert [items[1]["content"], items[2]["content"]] == [[spoken], [spoken]]
    assert items[-1]["content"] == [{**pixel, "detail": "auto"}]
    kept = {"type": "message", "role": "user", "content": "c", "status": "incomplete"}
    (response,) = post(client, body(input=[kept]))
    assert client.get(f"/v1/responses/{response['id']}/input_items").json()["data"][0]["status"] == "incomplete"


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"background": True}, "while its client waits"),
        ({"conversation": "conv_1"}, "conversations are not kept"),
        ({"prompt": {"id": "pmpt_1"}}, "prompts are not kept"),
    ],
)
def test_a_refusal_gives_the_true_reason(client: httpx.Client, members: dict[str, Any], why: str) -> None:
    """Also where responses are stored. An explicit null asks for nothing."""
    error = client.post("/v1/responses", json=body(**members)).json()["error"]
    assert (error["code"], [error["param"]]) == ("unsupported_parameter", list(members))
    assert why in error["message"]
    reply = client.post("/v1/responses", json=body(**dict.fromkeys(members)))
    assert reply.status_code == 200, reply.text
