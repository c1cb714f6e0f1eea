"""Replies and both kinds of stream of the Ollama-style API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.backends.vllm import Vllm
from gateway.core.http import Response
from gateway.core.lifecycle import fold
from gateway.translation.lanes import EventLane
from tests.unit.dialects import asking
from tests.unit.dialects.ollama_style.exchange import DIALECT, chat, read


def frame(choices: list[Any], **more: Any) -> bytes:
    head = {"id": "chatcmpl-123abc", "created": 1678048938, "model": "w", "choices": choices, **more}
    return b"data: " + json.dumps(head).encode() + b"\n\n"


def delta(finish: str | None = None, **members: Any) -> bytes:
    return frame([{"index": 0, "delta": members, "logprobs": None, "finish_reason": finish, "token_ids": None}])


STREAM = [
    delta(role="assistant", content=""),
    delta(content="I'm "),
    delta(content="doing well"),
    delta("length", content=", thank you!"),
    frame([], usage={"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}),
    b"data: [DONE]\n\n",
]
LINES = [
    b"",
    b'{"message":{"role":"assistant","content":"I\'m "},"done":false,"index":0}\n',
    b'{"message":{"role":"assistant","content":"doing well"},"done":false,"index":1}\n',
    b"",
    b"",
    b'{"message":{"role":"assistant","content":", thank you!"},"done":true,"index":2}\n',
]
EVENTS = [
    b"",
    b'data: {"message":{"role":"assistant","content":"I\'m "},"done":false,"index":0}\n\n',
    b'data: {"message":{"role":"assistant","content":"doing well"},"done":false,"index":1}\n\n',
    b'data: {"message":{"role":"assistant","content":", thank you!"},"done":false,"index":2}\n\n',
    b"",
    b"data: [END]\n\n",
]
ERROR = (
    b'{"message":"the worker\'s reply ended before it was complete","type":"server_error","code":"upstream_truncated"}'
)


def lane(route: str = "chat") -> EventLane:
    return asking.lane(DIALECT, read(chat(stream=True), route))


def test_sample_reply() -> None:
    message = {"role": "assistant", "content": "I'm doing well, thank you for asking! How can I help you today?"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    worker = {"id": "chatcmpl-123abc", "created": 1678048938, "model": "w", "choices": choices}
    op = read(chat(model="model-name"))
    response = DIALECT.write(fold(Vllm().read(Response(200, [], json.dumps(worker).encode()), op)), op)
    head = {"id": "cmpl-123abc", "model": "model-name", "created": 1678048938}
    assert response.body.decode() == json.dumps({**head, "message": message, "done": True}, separators=(",", ":"))
    assert response.headers == [(b"content-type", b"application/json")]


@pytest.mark.parametrize(("route", "wanted"), [("chat", LINES), ("sse", EVENTS)])
def test_sample_streams(route: str, wanted: list[bytes]) -> None:
    found = lane(route)
    assert [found.feed(piece) for piece in STREAM] == wanted
    assert found.done
    headers = dict(found.headers)
    assert headers[b"content-type"] == (b"application/json" if route == "chat" else b"text/event-stream")
    assert headers[b"cache-control"] == b"no-cache"


@pytest.mark.parametrize(("route", "wanted"), [("chat", LINES), ("sse", EVENTS)])
def test_a_text_is_never_held_back_for_the_end(route: str, wanted: list[bytes]) -> None:
    """vLLM ends most replies with a chunk of no text: then the last line is empty, and no token waited for it."""
    found = lane(route)
    end = [delta(content=", thank you!"), delta("stop", content=""), STREAM[5]]
    out = [found.feed(piece) for piece in [*STREAM[:3], *end]]
    third = wanted[5] if route == "chat" else wanted[3]
    assert out[3] == third.replace(b"true", b"false")
    last = b'{"message":{"role":"assistant","content":""},"done":true,"index":3}\n'
    assert out[4:] == [b"", last if route == "chat" else wanted[5]]


@pytest.mark.parametrize("frames", range(len(STREAM)))
def test_a_cut_stream_ends_in_an_error(frames: int) -> None:
    """What was held back for the last line is sent before it."""
    found = lane("chat")
    out = b"".join(found.feed(piece) for piece in STREAM[:frames]) + found.eof()
    assert found.error is not None
    held = LINES[5].replace(b"true", b"false") if frames > 3 else b""
    assert out + found.fail(found.error) == b"".join(LINES[:frames]) + held + b'{"error":' + ERROR + b',"done":true}\n'
    assert found.clean_end
    events = lane("sse")
    events.eof()
    assert events.error is not None
    assert events.fail(events.error) == b"event: error\ndata: " + ERROR + b"\n\ndata: [END]\n\n"


def test_keepalive() -> None:
    assert lane("chat").keepalive() == b" "
    assert lane("sse").keepalive() == b"\n"


CALLS = [
    delta(role="assistant", content=""),
    delta(reasoning="hm"),
    delta(content="ok"),
    delta(tool_calls=[{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]),
    delta(tool_calls=[{"index": 1, "id": "b", "type": "function", "function": {"name": "g"}}]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": '{"x": 1}'}}]),
    delta(tool_calls=[{"index": 1, "function": {"arguments": "{oops"}}]),
    delta("tool_calls"),
    b"data: [DONE]\n\n",
]


def called(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "function": {"name": name, "arguments": arguments}}


def test_thinking_and_interleaved_calls() -> None:
    found = lane()
    lines = [json.loads(line) for line in b"".join(found.feed(piece) for piece in CALLS).splitlines()]
    assert [line["index"] for line in lines] == [0, 1, 2, 3, 4]
    assert [line["done"] for line in lines] == [False] * 4 + [True]
    reader, op = Vllm().reader(read(chat(stream=True))), read(chat())
    whole = DIALECT.write(fold(event for piece in CALLS for event in reader.feed(piece)), op)
    message = json.loads(whole.body)["message"]
    assert message["tool_calls"] == [called("a", "f", {"x": 1}), called("b", "g", "{oops")]
    assert (message["content"], message["thinking"]) == ("ok", "hm")
    assert [line["message"] for line in lines] == [
        {"role": "assistant", "content": "", "thinking": "hm"},
        {"role": "assistant", "content": "ok"},
        {"role": "assistant", "content": "", "tool_calls": [called("a", "f", {"x": 1})]},
        {"role": "assistant", "content": "", "tool_calls": [called("b", "g", "{oops")]},
        {"role": "assistant", "content": ""},
    ]
