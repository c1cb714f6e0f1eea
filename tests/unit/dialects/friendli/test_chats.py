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
from tests.unit.dialects.asking import HI
from tests.unit.dialects.friendli.exchange import DIALECT, lane, read_chat, refused, request, to_worker

CLIENT_CHAT: dict[str, Any] = {
    **{field.name: None for field in FIELDS["chat"] if field.sample is not None},
    "messages": HI,
    "stream": False,
    "model": "m",
    "tool_choice": "auto",
}


def test_the_clients_chat() -> None:
    op = read_chat(**CLIENT_CHAT)
    assert to_worker(op) == {"messages": HI, "model": "w", "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    assert op.dropped == ("tool_choice",)


@pytest.mark.parametrize(
    ("members", "status", "param"),
    [
        ({"tool_choice": "required"}, 400, "tool_choice"),
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
    assert read_chat(timeout_microseconds=250_000).timeout == 0.25


def test_what_is_unknown_inside_is_refused_by_its_place() -> None:
    for members, place in (
        ({"messages": [{"role": "user", "content": "a", "images": ["x"]}]}, "messages.0.images"),
        ({"response_format": {"type": "json_object", "x": 1}}, "response_format.x"),
        ({"response_format": {"type": "json_schema", "json_schema": {"x": 1}}}, "response_format.json_schema.x"),
    ):
        status, error = refused({"messages": HI, **members}, route="chat")
        assert (status, error["param"], error["code"]) == (422, place, "unknown_parameter")


def test_what_is_unknown_inside_a_format_is_dropped_even_when_passed_on() -> None:
    asked = {"messages": [{"role": "user", "content": "a", "x": 1}], "response_format": {"type": "text", "y": 1}}
    passing = create("friendli", Settings(extras="pass")).read(request(asked, route="chat"))
    assert isinstance(passing, Chat)
    assert (passing.dropped, passing.unnamed) == (("response_format.y",), ("messages[].x",))


def test_a_chat_in_openais_json_schema() -> None:
    given = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    assert to_worker(read_chat(response_format=given))["response_format"] == given


def test_a_chats_reply_has_no_reason_that_the_client_does_not_know() -> None:
    op = read_chat(model="m")
    choice = {"index": 0, "message": {"content": "hi"}, "finish_reason": "content_filter"}
    body = {"id": "c", "model": "w", "created": 5, "choices": [choice]}
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
