"""Replies that are not quite OpenAI's form are read as what they mean, streamed and whole, by both lanes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.http import Response
from gateway.core.lifecycle import fold
from gateway.core.messages import Chat, Message, NamedTool, Text, Tool
from gateway.wire.openai.replies.reading import ChatReader
from gateway.wire.openai.streams.passthrough import Passthrough

HEAD = {"id": "c1", "object": "chat.completion.chunk", "created": 1763726400, "model": "m"}


def asked(**members: Any) -> Chat:
    return Chat(
        model="m", messages=(Message("user", (Text("hi"),)),), tools=(Tool("f"),), raw={}, wire="openai", **members
    )


def events(*deltas: dict[str, Any], end: str = "stop", between: bytes = b"") -> list[bytes]:
    chunks = [{**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**HEAD, "choices": [{"index": 0, "delta": {}, "finish_reason": end}]})
    frames = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
    return [piece for frame in frames for piece in (between, frame)] + [between, b"data: [DONE]\n\n"]


def whole(message: dict[str, Any], end: str = "stop") -> bytes:
    choices = [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": end}]
    return json.dumps({**HEAD, "object": "chat.completion", "choices": choices}).encode()


def heard(op: Chat, frames: list[bytes], together: bool) -> dict[str, Any]:
    """What a client of OpenAI's own makes of the passed-through stream."""
    lane = Passthrough(lambda error: b"").lane(op)
    out = lane.feed(b"".join(frames)) if together else b"".join(map(lane.feed, frames))
    assert lane.error is None, lane.error
    assert lane.done
    found: dict[str, Any] = {"content": "", "reasoning": "", "calls": {}, "end": None}
    for piece in out.split(b"\n\n")[:-2]:
        (choice,) = json.loads(piece.removeprefix(b"data: "))["choices"]
        delta = choice["delta"]
        found["content"] += delta.get("content") or ""
        found["reasoning"] += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or ():
            found["calls"][call["index"]] = found["calls"].get(call["index"], "") + call["function"].get(
                "arguments", ""
            )
        found["end"] = choice["finish_reason"] or found["end"]
    assert found["end"] == lane.finishes[0]
    return {**found, "calls": list(found["calls"].values())}


def read(op: Chat, frames: list[bytes], together: bool) -> dict[str, Any]:
    """The same by way of events."""
    reader = ChatReader(op)
    blocks = [b"".join(frames)] if together else frames
    (choice,) = fold([*(event for block in blocks for event in reader.feed(block)), *reader.eof()]).choices
    calls = [call.text for call in choice.calls]
    return {
        "content": choice.text() or "",
        "reasoning": choice.text("thinking") or "",
        "calls": calls,
        "end": choice.reason,
    }


def read_whole(op: Chat, body: bytes) -> dict[str, Any]:
    (choice,) = fold(ChatReader(op).whole(body)).choices
    calls = [call.text for call in choice.calls]
    return {
        "content": choice.text() or "",
        "reasoning": choice.text("thinking") or "",
        "calls": calls,
        "end": choice.reason,
    }


def passed_whole(op: Chat, body: bytes) -> dict[str, Any]:
    reply, _ = Passthrough(lambda error: b"").whole(Response(200, [], body), op)
    (choice,) = json.loads(reply.body)["choices"]
    message = choice["message"]
    return {
        "content": message.get("content") or "",
        "reasoning": message.get("reasoning_content") or "",
        "calls": [call["function"]["arguments"] for call in message.get("tool_calls") or ()],
        "end": choice["finish_reason"],
    }


def every_way(op: Chat, frames: list[bytes], body: bytes) -> list[dict[str, Any]]:
    streamed = [way(op, frames, together) for way in (heard, read) for together in (False, True)]
    return [*streamed, read_whole(op, body), passed_whole(op, body)]


def call(arguments: Any, *, absent: bool = False) -> dict[str, Any]:
    function = {"name": "f"} if absent else {"name": "f", "arguments": arguments}
    return {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}


@pytest.mark.parametrize(
    ("delta", "arguments"),
    [
        (call(""), "{}"),
        (call(None), "{}"),
        (call("", absent=True), "{}"),
        (call("null"), "{}"),
        (call(" \n"), "{}"),
        (call({}), "{}"),
        (call({"a": [1, None]}), '{"a":[1,null]}'),
        (call('{"a":1}'), '{"a":1}'),
        (call("nullable"), "nullable"),
    ],
    ids=str,
)
@pytest.mark.parametrize("end", ["stop", "tool_calls"])
def test_arguments_are_an_object_and_the_reason_is_the_call(delta: dict[str, Any], arguments: str, end: str) -> None:
    for found in every_way(asked(), events(delta, end=end), whole(delta, end)):
        assert [text.replace(" ", "") for text in found["calls"]] == [arguments]
        assert found["end"] == "tool_calls"


def test_a_call_that_was_cut_before_its_arguments_has_none() -> None:
    for found in every_way(asked(), events(call(""), end="length"), whole(call(""), "length")):
        assert (found["calls"], found["end"]) == ([""], "length")


def test_only_the_last_call_of_a_choice_was_cut() -> None:
    first, second = (
        {"index": at, "id": f"call_{at}", "type": "function", "function": {"name": "f", "arguments": ""}}
        for at in (0, 1)
    )
    both = {"tool_calls": [first, second]}
    for found in every_way(asked(), events(both, end="length"), whole(both, "length")):
        assert (found["calls"], found["end"]) == (["{}", ""], "length")


@pytest.mark.parametrize("end", ["stop", "tool_calls"])
def test_a_named_function_ends_as_the_worker_ends_it(end: str) -> None:
    """OpenAI itself has `stop` there."""
    op = asked(tool_choice=NamedTool("f"))
    for found in every_way(op, events(call("{}"), end=end), whole(call("{}"), end)):
        assert (found["calls"], found["end"]) == (["{}"], end)


def test_text_alone_still_ends_by_stop() -> None:
    for found in every_way(asked(), events({"content": "x"}), whole({"content": "x"})):
        assert (found["content"], found["calls"], found["end"]) == ("x", [], "stop")


THOUGHT = {
    "type": "thinking",
    "thinking": [{"type": "text", "text": "Hm"}, {"type": "text", "text": "."}],
    "closed": True,
}
PARTS: list[dict[str, Any]] = [THOUGHT, {"type": "text", "text": "Par"}, {"type": "reference", "reference_ids": [1]}]


def test_content_in_parts_is_text_and_thinking() -> None:
    frames = events(
        {"role": "assistant", "content": PARTS}, {"content": "is"}, {"content": [{"type": "text", "text": "."}]}
    )
    for found in every_way(asked(), frames, whole({"content": [*PARTS, {"type": "text", "text": "is."}]})):
        assert (found["content"], found["reasoning"], found["end"]) == ("Paris.", "Hm.", "stop")


SILENT = [
    b"data:\n\n",
    b"data: \n\n",
    b"data: : keepalive\n\n",
    b"data: : OPENROUTER PROCESSING\n\n",
    b"event: ping\ndata: {}\n\n",
    b'event: ping\ndata: {"type": "ping"}\n\n',
    b"event: keepalive\ndata:\n\n",
    b"event: heartbeat\ndata: null\n\n",
    b"data:\r\n\r\n",
    b"data:\ndata:\n\n",
]


@pytest.mark.parametrize("silent", SILENT, ids=str)
@pytest.mark.parametrize("together", [False, True])
def test_events_that_are_none_are_skipped(silent: bytes, together: bool) -> None:
    frames = events({"content": "Hel"}, {"content": "lo"}, {"content": "!"}, between=silent)
    for way in (heard, read):
        assert way(asked(), frames, together)["content"] == "Hello!"
