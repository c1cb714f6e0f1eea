"""Messages of OpenAI's wire and their parts, in canonical form."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from gateway.core.messages import Audio, Image, Message, Opaque, Part, Refusal, Text, Thinking, ToolCall
from gateway.wire.openai.requests.messages import answer_calls, read_part
from tests.unit.wire.openai.exchange import chat, messages


def test_messages_of_every_form() -> None:
    image = {"type": "image_url", "image_url": {"url": "http://x/y.png", "detail": "low"}}
    found = messages(
        {"role": "system", "content": "be"},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "a"}, image]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}]},
        {"role": "user", "content": [{"type": "video_url", "video_url": 1}]},
        {"role": "assistant", "content": None, "refusal": "no", "reasoning": "hm"},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "1", "content": ""},
        {"role": "assistant", "content": ""},
    )
    assert found == (
        Message("system", (Text("be"),)),
        Message("user", (Text("a"), Image("http://x/y.png", "low")), "ann"),
        Message("user", (Audio("AA==", "wav"),)),
        Message("user", (Opaque("video_url", Raw(b'{"type": "video_url", "video_url": 1}')),)),
        Message("assistant", (Thinking("hm"), Refusal("no"))),
        Message("assistant", (ToolCall("1", "f", ""),)),
        Message("tool", (Text(""),), None, "1"),
        Message("assistant", (Text(""),)),
    )


def test_arguments_may_be_an_object() -> None:
    call = {"function": {"name": "f", "arguments": {"b": 1, "a": [2]}}}
    assert messages({"role": "assistant", "tool_calls": [call]})[0].parts == (
        ToolCall("c00000000", "f", '{"b":1,"a":[2]}'),
    )


def test_a_call_without_an_id_is_given_the_same_one_every_time() -> None:
    bare = {"function": {"name": "f"}}
    given = ({"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [bare, {**bare, "id": ""}]})
    found = messages(*given, {"role": "assistant", "tool_calls": [{**bare, "id": "1"}, {**bare, "id": None}]})
    ids = [part.id for message in found for part in message.parts if isinstance(part, ToolCall)]
    assert ids == ["c00010000", "c00010001", "1", "c00020001"]


def test_invalid_arguments_stay_text() -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": "{oops"}}
    assert messages({"role": "assistant", "tool_calls": [call]})[0].parts == (ToolCall("1", "f", "{oops"),)


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        (b'{"type":"text","text":"a"}', Text("a")),
        (b'{"type":"image_url","image_url":"data:x"}', Image("data:x")),
        (b'{"type":"refusal","refusal":"no"}', Refusal("no")),
    ],
)
def test_a_part(raw: bytes, part: Part) -> None:
    assert read_part(Raw(raw), "here") == part


def test_calls_are_answered_by_name_or_in_their_order() -> None:
    def calls(*ids: str) -> Message:
        return Message("assistant", tuple(ToolCall(one, "f", "{}") for one in ids))

    bare = Message("tool", (Text("x"),))
    found = answer_calls((calls("a", "b"), bare, bare, bare, calls("c"), bare))
    assert [message.call_id for message in found] == [None, "a", "b", None, None, "c"]
    told = Message("tool", (Text("x"),), None, "b")
    found = answer_calls((calls("a", "b"), told, bare))
    assert [message.call_id for message in found] == [None, "b", "a"]
    two = Message("assistant", (ToolCall("a", "f", "{}"), ToolCall("b", "g", "{}"), ToolCall("c", "g", "{}")))
    named = Message("tool", (Text("x"),), "g")
    found = answer_calls((two, named, named, named, named))
    assert [message.call_id for message in found] == [None, "b", "c", "a", None]
    fine = (calls("a"), Message("tool", (), None, "a"))
    assert answer_calls(fine) is fine


def test_two_words_for_thinking() -> None:
    def thought(**members: Any) -> tuple[Message, tuple[str, ...]]:
        op = chat(messages=[{"role": "assistant", "content": "a", **members}])
        return op.messages[0], op.unnamed

    once = Message("assistant", (Thinking("b"), Text("a")))
    for members in ({"reasoning": "b"}, {"reasoning_content": "b"}, {"reasoning": "", "reasoning_content": "b"}):
        assert thought(**members) == (once, ())
    assert thought(reasoning="b", reasoning_content="b") == (once, ())
    both = msgspec.structs.replace(once, extra={"reasoning": Raw(b'"c"')})
    assert thought(reasoning="c", reasoning_content="b") == (both, ("messages[].reasoning",))
