"""Cohere's own client for Python, unmodified, against the gateway."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from cohere import ClientV2
from cohere.core.api_error import ApiError
from cohere.errors import BadRequestError, NotFoundError, TooManyRequestsError, UnauthorizedError

from tests.support.harness import Stack
from tests.unit.ratelimit.asking import made

LOOK = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
TOOLS: Any = [{"type": "function", "function": LOOK}]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    config = {"breaker": {"failures": 10_000}, "retry": {"attempts": 1}}
    with Stack(workers=({"itl_ms": 2, "reasoning": True},), config=config) as running:
        yield running


@contextmanager
def at(url: str, key: str = "any") -> Iterator[Any]:
    with httpx.Client(follow_redirects=True) as connections:
        yield ClientV2(base_url=url, api_key=key, max_retries=0, httpx_client=connections)


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[Any]:
    with at(stack.url) as one:
        yield one


def asking(**script: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "sim:" + json.dumps(script)}]}


def test_chats(client: Any) -> None:
    reply = client.chat(**asking(text="Hello there", reasoning="hm"))
    assert [(block.type, getattr(block, block.type)) for block in reply.message.content] == [
        ("thinking", "hm"),
        ("text", "Hello there"),
    ]
    assert (reply.finish_reason, bool(reply.id)) == ("COMPLETE", True)
    assert reply.usage.tokens == type(reply.usage.tokens)(
        **reply.usage.billed_units.dict(include={"input_tokens", "output_tokens"})
    )
    assert reply.usage.tokens.output_tokens > 0
    events = list(client.chat_stream(**asking(text="Hello there", reasoning="hm")))
    assert [events[0].type, events[-1].type] == ["message-start", "message-end"]
    deltas = [event.delta.message.content for event in events if event.type == "content-delta"]
    assert "".join(delta.text or "" for delta in deltas) == "Hello there"
    assert "".join(delta.thinking or "" for delta in deltas) == "hm"
    assert events[-1].delta.finish_reason == "COMPLETE"
    assert events[-1].delta.usage.billed_units.output_tokens == reply.usage.tokens.output_tokens


def test_a_conversation_with_a_tool(client: Any) -> None:
    calls = [{"name": "look", "arguments": {"at": place}} for place in "ab"]
    rounds = [{"text": "Let me look.", "tool_calls": calls}, {"text": "Done"}]
    turns: list[Any] = [{"role": "user", "content": "Go on. sim:" + json.dumps({"rounds": rounds})}]
    reply = client.chat(model="m", messages=turns, tools=TOOLS)
    assert (reply.finish_reason, reply.message.tool_plan, reply.message.content) == ("TOOL_CALL", "Let me look.", None)
    turns.append(reply.message)
    for call in reply.message.tool_calls:
        data = {"seen": json.loads(call.function.arguments)["at"]}
        result = {"type": "document", "document": {"data": data}}
        turns.append({"role": "tool", "tool_call_id": call.id, "content": [result]})
    assert client.chat(model="m", messages=turns, tools=TOOLS).message.content[0].text == "Done"


def test_calls_in_a_stream(client: Any) -> None:
    calls = [{"name": "look", "arguments": {"at": place}} for place in "ab"]
    found: list[Any] = []
    for event in client.chat_stream(**asking(text="Let me look.", tool_calls=calls), tools=TOOLS):
        if event.type == "tool-call-start":
            found.append([event.delta.message.tool_calls.function.name, ""])
        elif event.type == "tool-call-delta":
            found[event.index][1] += event.delta.message.tool_calls.function.arguments
    assert [(name, json.loads(text)) for name, text in found] == [("look", {"at": "a"}), ("look", {"at": "b"})]
    assert event.delta.finish_reason == "TOOL_CALL"


def kept(events: list[Any], event: Any) -> Any:
    events.append(event)
    return event


def test_a_worker_that_breaks_off(client: Any) -> None:
    """The last event says why, and a program that does not look at it gets an error, too."""
    stream = client.chat_stream(**asking(text="one two three four five six", fault="reset@3"))
    events: list[Any] = []
    with pytest.raises(httpx.RemoteProtocolError):
        deque((kept(events, event) for event in stream), maxlen=0)
    assert (events[-1].type, events[-1].delta.finish_reason) == ("message-end", "ERROR")
    assert "closed the connection" in events[-1].delta.error
    assert events[-1].delta.code == "upstream_truncated"


def test_errors_have_their_classes(client: Any) -> None:
    with pytest.raises(NotFoundError) as unknown:
        client.chat(model="nobody", messages=[{"role": "user", "content": "hi"}])
    assert "nobody" in unknown.value.body["message"]
    with pytest.raises(BadRequestError) as cited:
        client.chat(**asking(text="a"), documents=["x"], citation_options={"mode": "FAST"})
    assert cited.value.body["param"] == "citation_options"
    with pytest.raises(ApiError) as failed:
        list(client.chat_stream(**asking(fault="status:500")))
    assert failed.value.status_code == 502


def test_keys_and_limits() -> None:
    good, entry = made("good", limits={"requests": 1})
    with Stack(config={"keys": entry}) as stack:
        with at(stack.url, "wrong") as stranger, pytest.raises(UnauthorizedError):
            stranger.chat(**asking(text="a"))
        with at(stack.url, good) as client:
            assert client.chat(**asking(text="a")).message.content[0].text == "a"
            with pytest.raises(TooManyRequestsError) as limited:
                client.chat(**asking(text="a"))
        assert int((limited.value.headers or {})["retry-after"]) > 0


def test_models(client: Any) -> None:
    assert [model.name for model in client.models.list(endpoint="chat").models] == ["m", "alias"]
    assert client.models.get("m").endpoints == ["chat"]


def test_a_schema_and_log_probabilities(stack: Stack, client: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    client.chat(**asking(text='{"a": 1}'), response_format={"type": "json_object", "json_schema": schema})
    sent = json.loads(stack.sim.entries[-1].body)
    assert sent["response_format"]["json_schema"]["schema"] == schema
    items = client.chat(**asking(text="Hi there"), logprobs=True).logprobs
    assert "".join(item.text for item in items) == "Hi there"
    assert all(item.token_ids for item in items if item.text)
