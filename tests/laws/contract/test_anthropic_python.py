"""Anthropic's own client for Python, unmodified, against the gateway at `/anthropic` and at the root."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from tests.support.harness import Stack

TOOLS: Any = [{"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}]


@pytest.fixture(scope="module", params=["", "/anthropic"])
def client(stack: Stack, request: pytest.FixtureRequest) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=stack.url + request.param, api_key="k", max_retries=0) as found:
        yield found


def asking(**script: Any) -> Any:
    messages: Any = [{"role": "user", "content": "sim:" + json.dumps(script)}]
    return {"model": "m", "max_tokens": 64, "messages": messages}


def received(client: anthropic.Anthropic, asked: Any, *, stream: bool) -> Any:
    if not stream:
        return client.messages.create(**asked)
    with client.messages.stream(**asked) as streamed:
        return streamed.get_final_message()


def test_whole(client: anthropic.Anthropic) -> None:
    reply = client.messages.create(**asking(text="Hello there"))
    assert isinstance(reply.content[0], anthropic.types.TextBlock)
    assert reply.content[0].text == "Hello there"
    assert (reply.stop_reason, reply.model, reply.role) == ("end_turn", "m", "assistant")
    assert reply.usage.input_tokens
    assert reply.usage.output_tokens
    assert reply._request_id


def test_streamed(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**asking(text="Hello there")) as stream:
        assert "".join(stream.text_stream) == "Hello there"
        final = stream.get_final_message()
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens


@pytest.mark.parametrize("interleave", [False, True])
def test_tools(client: anthropic.Anthropic, interleave: bool) -> None:
    calls = [{"name": "look", "arguments": {"at": name}} for name in "abc"]
    asked = {**asking(tool_calls=calls, interleave=interleave), "tools": TOOLS}
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    whole = client.messages.create(**asked)
    for reply in (streamed, whole):
        assert reply.stop_reason == "tool_use"
        blocks = [block for block in reply.content if isinstance(block, anthropic.types.ToolUseBlock)]
        assert [block.input for block in blocks] == [{"at": name} for name in "abc"]
        assert len({block.id for block in blocks}) == 3


@pytest.mark.parametrize("finish", ["length", "content_filter", "tool_calls"])
@pytest.mark.parametrize("arguments", ["", " ", "null"])
def test_a_call_without_arguments_has_an_empty_object(client: anthropic.Anthropic, finish: str, arguments: str) -> None:
    calls = [{"name": "look", "arguments": arguments}, {"name": "look", "arguments": {"at": "a"}}]
    asked = {**asking(tool_calls=calls, finish=finish), "tools": TOOLS}
    for reply in (received(client, asked, stream=stream) for stream in (False, True)):
        assert [(block.type, block.input) for block in reply.content] == [("tool_use", {}), ("tool_use", {"at": "a"})]


def test_a_loop_with_thinking_and_a_result(client: anthropic.Anthropic) -> None:
    asked = {**asking(reasoning="hm", tool_calls=[{"name": "look", "arguments": {}}]), "tools": TOOLS}
    first = client.messages.create(**asked)
    assert [block.type for block in first.content] == ["thinking", "tool_use"]
    result: Any = {"type": "tool_result", "tool_use_id": first.content[1].id, "content": "seen"}
    turns: Any = [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    asked["messages"] = [{"role": "user", "content": "look"}, *turns]
    assert client.messages.create(**asked).stop_reason == "end_turn"


def of_the_web(kind: str) -> Any:
    version = {"search": "web_search_20250305", "fetch": "web_fetch_20250910"}[kind]
    return [{"type": version, "name": f"web_{kind}"}]


@pytest.mark.parametrize("kind", ["search", "fetch"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["any", "tool"])
def test_a_tool_of_the_web_that_nothing_runs(
    client: anthropic.Anthropic, stack: Stack, kind: str, stream: bool, choice: str
) -> None:
    asked: Any = {
        "model": "m",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "What is new?"}],
        "tools": of_the_web(kind),
        "tool_choice": {"type": "any"} if choice == "any" else {"type": "tool", "name": f"web_{kind}"},
    }
    message = received(client, asked, stream=stream)
    called, result = message.content
    assert (called.type, called.name) == ("server_tool_use", f"web_{kind}")
    assert (result.type, result.tool_use_id) == (f"web_{kind}_tool_result", called.id)
    assert (result.content.type, result.content.error_code) == (f"web_{kind}_tool_result_error", "unavailable")
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 0)
    assert message.usage.server_tool_use.web_search_requests == 0
    assert not [entry for entry in stack.sim.ledger.entries if b"What is new?" in entry.body]
    assert (stack.records()[-1]["outcome"], stack.records()[-1]["attempts"]) == ("ok", 0)


@pytest.mark.parametrize("kind", ["search", "fetch"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [{}, {"tool_choice": {"type": "auto"}}], ids=str)
def test_the_model_answers_without_a_tool_of_the_web_that_is_not_forced(
    client: anthropic.Anthropic, stack: Stack, kind: str, stream: bool, choice: dict[str, Any]
) -> None:
    message = received(client, {**asking(text="Not much"), "tools": of_the_web(kind), **choice}, stream=stream)
    assert [(block.type, block.text) for block in message.content] == [("text", "Not much")]
    assert message.stop_reason == "end_turn"
    assert "tools" not in json.loads(stack.sim.entries[-1].body)
    assert f"tools.web_{kind}" in stack.records()[-1]["dropped"]


def test_counting(client: anthropic.Anthropic) -> None:
    asked = asking(text="Hello")
    counted = client.messages.count_tokens(model="m", messages=asked["messages"])
    assert counted.input_tokens == client.messages.create(**asked).usage.input_tokens


def test_models(client: anthropic.Anthropic) -> None:
    assert [model.id for model in client.models.list()] == ["m", "alias"]
    assert [model.id for model in client.models.list(limit=1)] == ["m", "alias"]
    assert client.models.retrieve("m").display_name == "m"
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("none")


@pytest.mark.parametrize(
    ("members", "kind"),
    [
        ({"model": "none"}, anthropic.NotFoundError),
        ({"max_tokens": -1}, anthropic.BadRequestError),
        ({"messages": [{"role": "user", "content": "word " * 20_000}]}, anthropic.BadRequestError),
        (asking(fault="status:500"), anthropic.InternalServerError),
        (asking(fault="status:400"), anthropic.BadRequestError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_failures_are_its_own_exceptions(
    client: anthropic.Anthropic, members: dict[str, Any], kind: type[anthropic.APIStatusError], stream: bool
) -> None:
    with pytest.raises(kind) as caught:
        client.messages.create(**{**asking(text="hi"), **members, "stream": stream})
    assert caught.value.body["type"] == "error"  # type: ignore[index]  # a dict
    assert caught.value.request_id


@pytest.mark.parametrize("fault", ["reset@3", "eof@3"])
def test_a_cut_stream_is_never_a_success(client: anthropic.Anthropic, fault: str) -> None:
    with (
        pytest.raises((anthropic.APIError, httpx.RemoteProtocolError)),
        client.messages.stream(**asking(text="Hello there, how are you today?", fault=fault)) as stream,
    ):
        stream.get_final_message()


def test_no_key() -> None:
    with Stack(config={"auth": "keys", "keys": {"app": {"hash": "sha256:" + "ab" * 32}}}) as stack:
        client = anthropic.Anthropic(base_url=stack.url, api_key="wrong")
        with pytest.raises(anthropic.AuthenticationError):
            client.messages.create(**asking(text="hi"))
        assert len(stack.records()) == 1, "it does not try again"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("again", range(10))
def test_a_clients_time_out_is_its_own(stack: Stack, stream: bool, again: int) -> None:
    """Never an error of ours at the same moment, which is another class of exceptions."""
    before = stack.sim.ledger.aborted
    late = pytest.raises(anthropic.APITimeoutError)
    with anthropic.Anthropic(base_url=stack.url, api_key="k", max_retries=0, timeout=0.1) as client, late:
        client.messages.create(**asking(text="a", fault="stall@before"), stream=stream)
    stack.run(stack.sim.ledger.wait(aborted=before + 1))
