"""Chats of the dialect `friendli`. No socket."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.backends.vllm import Vllm
from gateway.core.http import Response
from gateway.core.lifecycle import fold
from gateway.core.messages import Chat
from gateway.core.ports import Settings
from gateway.dialects import create
from gateway.dialects.friendli.fields import FIELDS
from tests.dialects.friendli.exchange import (
    DIALECT,
    HI,
    lane,
    read_chat,
    refused,
    request,
    to_worker,
)

CLIENT_CHAT: dict[str, Any] = {
    **{field.name: None for field in FIELDS["chat"] if field.sample is not None},
    "messages": HI,
    "stream": False,
    "model": "m",
    "tool_choice": "auto",
}


def test_the_clients_chat() -> None:
    op = read_chat(**CLIENT_CHAT)
    assert to_worker(op) == {
        "messages": HI,
        "model": "w",
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
    }
    assert op.dropped == ("tool_choice",)


def test_a_chat_with_everything() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    op = read_chat(
        frequency_penalty=0.5,
        presence_penalty=0.5,
        repetition_penalty=1.2,
        max_tokens=9,
        min_tokens=2,
        n=2,
        stop=["a", "b"],
        temperature=0.3,
        top_p=0.4,
        top_k=5,
        logit_bias={"7": 1},
        logprobs=True,
        top_logprobs=3,
        timeout_microseconds=250_000,
        tools=tools,
        tool_choice="auto",
        seed=4,
    )
    assert to_worker(op) == {
        "messages": HI,
        "model": "w",
        "frequency_penalty": 0.5,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.2,
        "max_tokens": 9,
        "min_tokens": 2,
        "n": 2,
        "stop": ["a", "b"],
        "temperature": 0.3,
        "top_p": 0.4,
        "top_k": 5,
        "logit_bias": {"7": 1.0},
        "logprobs": True,
        "top_logprobs": 3,
        "tools": tools,
        "tool_choice": "auto",
        "seed": 4,
    }
    assert op.timeout == 0.25


@pytest.mark.parametrize(
    ("members", "status", "param"),
    [
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"repetition_penalty": 0.5}, 400, "repetition_penalty"),
        ({"temperature": -0.1}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"top_p": 1.1}, 400, "top_p"),
        ({"top_k": -1}, 400, "top_k"),
        ({"seed": -5}, 400, "seed"),
        ({"max_tokens": 2, "min_tokens": 3}, 400, "min_tokens"),
        ({"response_format": {"type": "regex"}}, 400, "response_format.schema"),
        ({"response_format": {"type": "xml"}}, 400, "response_format.type"),
        ({"soft_prompts": 1}, 422, "soft_prompts"),
    ],
)
def test_chats_refused(members: dict[str, Any], status: int, param: str) -> None:
    found, error = refused({"messages": HI, **members}, route="chat")
    assert (found, error["param"]) == (status, param)


def test_how_hot_a_worker_goes_is_its_own_business() -> None:
    assert to_worker(read_chat(temperature=2.5))["temperature"] == 2.5


def test_what_is_unknown_inside_is_refused_by_its_place() -> None:
    for members, place in (
        ({"messages": [{"role": "user", "content": "a", "images": ["x"]}]}, "messages.0.images"),
        ({"response_format": {"type": "json_object", "x": 1}}, "response_format.x"),
        ({"response_format": {"type": "json_schema", "json_schema": {"x": 1}}}, "response_format.json_schema.x"),
    ):
        status, error = refused({"messages": HI, **members}, route="chat")
        assert (status, error["param"], error["code"]) == (422, place, "unknown_parameter")


def test_what_is_unknown_inside_may_be_dropped_or_passed_on() -> None:
    messages = [{"role": "user", "content": "a", "x": 1}]
    form = {"type": "json_object", "y": 1}
    asked = {"messages": messages, "response_format": form, "stop_token_ids": [7], "brand_new": 1}
    dropping = create("friendli", Settings(extras="drop")).read(request(asked, route="chat"))
    assert isinstance(dropping, Chat)
    assert dropping.dropped == ("brand_new", "response_format.y", "messages[].x")
    assert to_worker(dropping)["stop_token_ids"] == [7]
    passing = create("friendli", Settings(extras="pass")).read(request(asked, route="chat"))
    assert isinstance(passing, Chat)
    assert (passing.dropped, passing.unnamed, [*passing.extra]) == (
        ("response_format.y",),
        ("messages[].x",),
        ["brand_new"],
    )
    sent = to_worker(passing)
    assert (sent["messages"], sent["stop_token_ids"]) == (messages, [7])


def test_a_chat_in_openais_json_schema() -> None:
    given = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    assert to_worker(read_chat(response_format=given))["response_format"] == given


def test_a_chats_reply_has_no_reason_that_the_client_does_not_know() -> None:
    op = read_chat(model="m")
    body = {
        "id": "c",
        "model": "w",
        "created": 5,
        "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "content_filter"}],
    }
    reply = fold(Vllm().read(Response(200, [], json.dumps(body).encode()), op))
    said = json.loads(DIALECT.write(reply, op).body)
    assert said["choices"][0]["finish_reason"] == "stop"
    assert (said["created"], said["model"], said["usage"]["total_tokens"]) == (5, "m", 0)
    chunk = {**body, "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "content_filter"}]}
    stream = b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n"
    out = lane(op).feed(stream)
    assert b'"finish_reason":"stop"' in out
    assert b"content_filter" not in out
    assert out.endswith(b"data: [DONE]\n\n")
