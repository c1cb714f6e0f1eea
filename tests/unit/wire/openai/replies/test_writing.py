"""What clients of OpenAI's wire are sent, piece by piece; whole streams are in tests/laws/conformance and
tests/laws/golden."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from gateway.backends.openai import OpenAI
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, End, Event, Failed, Finish, PartEnd, PartKind, PartStart, Start, UsageReport
from gateway.core.http import Response
from gateway.core.lifecycle import ReplyChoice, ReplyPart, fold
from gateway.core.messages import Chat, Complete
from gateway.core.usage import Usage
from gateway.wire import sse
from gateway.wire.json import encode
from gateway.wire.openai.replies import refusals
from gateway.wire.openai.replies import writing as replies
from gateway.wire.openai.streams.writing import OpenAIStreamWriter
from tests.unit.core.replies import streams

KINDS: tuple[PartKind, ...] = ("text", "thinking", "refusal")
CHAT = Chat(model="m", messages=())
_TOP = b'[{"token":"c","logprob":-1.0,"bytes":[99]}]'
TOKEN = Raw(b'[{"token":"ab","logprob":-0.5,"bytes":[97,98],"top_logprobs":' + _TOP + b"}]")


def written(op: Chat | Complete, *events: Event) -> list[Any]:
    writer = OpenAIStreamWriter(op, lambda error: sse.frame(b'{"error":1}'))
    out = b"".join(writer.write(event) for event in events)
    datas = [frame.data for frame in sse.Reader().feed(out)]
    return [data.decode() if data == b"[DONE]" else json.loads(data) for data in datas]


@pytest.mark.parametrize(
    ("kind", "status", "after", "expected"),
    [
        (Kind.LIMITED, 429, 0.2, b"1"),
        (Kind.LIMITED, 429, 1.0, b"1"),
        (Kind.LIMITED, 429, 1.2, b"2"),
        (Kind.LIMITED, 429, 600.0, b"600"),
        (Kind.NO_WORKER, 503, 599.2, b"600"),
        (Kind.OVERLOADED, 503, 600.0, b"60"),
        (Kind.OVERLOADED, 503, None, None),
        (Kind.LIMITED, 400, 5.0, None),
        (Kind.TIMEOUT, 504, 5.0, None),
        (Kind.UPSTREAM, 502, 600.0, b"600"),
        (Kind.UPSTREAM, 502, None, None),
    ],
)
def test_retry_after_is_whole_seconds_on_two_statuses_and_on_what_is_held(
    kind: Kind, status: int, after: float | None, expected: bytes | None
) -> None:
    headers = dict(refusals.error_headers(GatewayError(kind, "x", retry_after=after), status))
    assert headers.get(b"retry-after") == expected


def test_a_401_says_how_to_authenticate() -> None:
    assert refusals.error_headers(GatewayError(Kind.UNAUTHENTICATED, "x"), 401) == [(b"www-authenticate", b"Bearer")]


@pytest.mark.parametrize(
    ("usage", "body"),
    [
        (Usage(), {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}),
        (Usage(3, 4), {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}),
        (
            Usage(3, 4, 0, 2),
            {
                "prompt_tokens": 3,
                "completion_tokens": 4,
                "total_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
        ),
    ],
)
def test_usage(usage: Usage, body: dict[str, Any]) -> None:
    assert replies.write_usage(usage) == body


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], {"content": "", "refusal": None}),
        ([ReplyPart("text", "a"), ReplyPart("text", "b")], {"content": "ab", "refusal": None}),
        ([ReplyPart("refusal", "no")], {"content": None, "refusal": "no"}),
        (
            [ReplyPart("thinking", "hm"), ReplyPart("text", "a")],
            {"content": "a", "refusal": None, "reasoning": "hm", "reasoning_content": "hm"},
        ),
        (
            [ReplyPart("tool", "{}", "c", "f")],
            {
                "content": None,
                "refusal": None,
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
        ),
    ],
)
def test_a_message(parts: list[ReplyPart], message: dict[str, Any]) -> None:
    assert replies.write_message(ReplyChoice(0, parts)) == {"role": "assistant", **message}


def test_choices_have_their_logprobs() -> None:
    choice = ReplyChoice(1, [ReplyPart("text", "abab", logprobs=(TOKEN, TOKEN))], "length", extra={"x": Raw(b"1")})
    item = json.loads(bytes(TOKEN))[0]
    assert replies.write_choice(choice)["logprobs"] == {"content": [item, item], "refusal": None}
    assert replies.write_text_choice(choice) == {
        "index": 1,
        "text": "abab",
        "logprobs": {
            "text_offset": [0, 2],
            "token_logprobs": [-0.5, -0.5],
            "tokens": ["ab", "ab"],
            "top_logprobs": [{"c": -1.0}, {"c": -1.0}],
        },
        "finish_reason": "length",
        "x": Raw(b"1"),
    }


@given(st.lists(st.lists(st.dictionaries(st.text(max_size=3), st.floats(-9, 0)), max_size=3), max_size=5))
def test_logprobs_are_joined_unread(found: list[list[dict[str, float]]]) -> None:
    raws = [Raw(encode(one)) for one in found]
    assert encode(replies.joined_logprobs(raws)) == encode(replies.join_logprobs(raws))


def test_the_model_shown_is_what_was_asked_for() -> None:
    assert replies.shown(CHAT, "sim") == "m"
    assert replies.shown(Chat(model=None, messages=()), "sim") == "sim"


def test_a_stream_begins_with_a_role_for_each_choice() -> None:
    start = Start("id", "sim", 7, "fp", "default")
    found = written(Chat(model="m", messages=(), n=2), start)
    assert [body["choices"][0] for body in found] == [
        {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        for index in (0, 1)
    ]
    head = {name: value for name, value in found[0].items() if name != "choices"}
    assert head == {
        "id": "id",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": "m",
        "system_fingerprint": "fp",
        "service_tier": "default",
    }
    assert written(Complete(model="m", prompts=("a",)), start) == []


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("op", [Chat(model="m", messages=(), n=2), Complete(model="m", prompts=("a", "b"))])
def test_a_late_fingerprint_stands_in_the_last_chunk(op: Chat | Complete, usage: bool, include_usage: bool) -> None:
    """Whatever the last chunk is: of usage, or of the choice that ends last."""
    op = replace(op, include_usage=include_usage)
    ended: list[Event] = [event for choice in (1, 0) for event in (PartStart(choice, 0, "text"), PartEnd(choice, 0))]
    ended += [Finish(1, "stop", "stop"), Finish(0, "stop", "stop")]
    found = written(op, Start("id", "s", 7), *ended, *([UsageReport(Usage(1, 2))] if usage else []), End("fp"))
    assert found[-1] == "[DONE]"
    assert [body.get("system_fingerprint") for body in found[:-1]] == [None] * (len(found) - 2) + ["fp"]
    assert ("usage" in found[-2]) is (usage and include_usage)
    assert found == [
        {**body, "system_fingerprint": "fp"} if place == len(found) - 2 else body
        for place, body in enumerate(
            written(op, Start("id", "s", 7), *ended, *([UsageReport(Usage(1, 2))] if usage else []), End())
        )
    ]


def test_tools_are_counted_for_each_choice() -> None:
    found = written(
        CHAT,
        Start("id", "sim", 7),
        PartStart(0, 0, "text"),
        PartEnd(0, 0),
        PartStart(0, 1, "tool", "a", "f"),
        PartStart(0, 2, "tool", "b", "g"),
        PartStart(1, 0, "tool", "c", "h"),
        Delta(0, 2, "{}"),
    )
    calls = [body["choices"][0]["delta"]["tool_calls"][0] for body in found[1:]]
    assert [(call["index"], call.get("id")) for call in calls] == [(0, "a"), (1, "b"), (0, "c"), (1, None)]


def test_offsets_of_logprobs_go_on_through_a_stream() -> None:
    events = (Start("id", "sim", 7), PartStart(0, 0, "text"), Delta(0, 0, "ab", (), TOKEN), Delta(0, 0, "c"))
    found = written(Complete(model="m", prompts=("a",)), *events, Delta(0, 0, "ab", (), TOKEN))
    assert [(body["choices"][0]["logprobs"] or {}).get("text_offset") for body in found] == [[0], None, [2]]


def test_usage_comes_only_if_asked_for() -> None:
    events = (Start("id", "sim", 7), Finish(0, "stop", "stop"), UsageReport(Usage(1, 2)), End())
    assert [body for body in written(CHAT, *events) if "usage" in body] == []
    found = written(Chat(model="m", messages=(), include_usage=True), *events)
    assert found[-2]["choices"] == []
    assert found[-2]["usage"]["total_tokens"] == 3
    assert found[-1] == "[DONE]"


def test_a_failed_stream_has_no_end() -> None:
    found = written(CHAT, Start("id", "sim", 7), Failed(GatewayError(Kind.UPSTREAM, "x")))
    assert found[-1] == {"error": 1}
    assert OpenAIStreamWriter(CHAT, lambda error: b"").clean_end is False


@given(streams)
def test_any_stream_reads_back(events: list[Event]) -> None:
    """Whatever is legal can be written, and says the same when it is read; of texts side by side, in their order."""
    choices = [event.choice for event in events if isinstance(event, PartStart | Finish)]
    op = Chat(model="m", messages=(), include_usage=True, n=max(choices, default=0) + 1)
    writer = OpenAIStreamWriter(op, lambda error: b"")
    out = b"".join(writer.write(event) for event in events)
    finished = [event for event in events if isinstance(event, Finish)]
    reader = OpenAI().reader(op)
    again = [*reader.feed(out), *reader.eof()]
    if not finished:
        return
    told, wanted = fold(again), fold(events)
    assert told.usage == (Usage(wanted.usage.input, wanted.usage.output) if wanted.usage else None)
    kinds = {(event.choice, event.index): event.kind for event in events if isinstance(event, PartStart)}
    said: dict[tuple[int, str], str] = {}
    for event in events:
        if isinstance(event, Delta):
            key = event.choice, kinds[event.choice, event.index]
            said[key] = said.get(key, "") + event.text
    for one, other in zip(told.choices, wanted.choices, strict=True):
        assert one.reason == ("tool_calls" if other.reason == "stop" and other.calls else other.reason)
        for kind in KINDS:
            assert (one.text(kind) or "") == said.get((one.index, kind), "")
        given = ["{}" if call.text.strip() in ("", "null") else call.text for call in other.calls]
        if given and one.reason != "tool_calls" and other.calls[-1].text.strip() in ("", "null"):
            given[-1] = ""  # it was cut
        assert [call.text for call in one.calls] == given


def test_what_is_written_whole_reads_back() -> None:
    part = ReplyPart("tool", "{oops", "c", "f")
    body = {
        "id": "i",
        "model": "m",
        "created": 1,
        "choices": [replies.write_choice(ReplyChoice(0, [ReplyPart("text", "a"), part], "tool_calls", "tool_calls"))],
        "usage": replies.write_usage(Usage(1, 2)),
    }
    reply = fold(OpenAI().read(Response(200, [], json.dumps(body).encode()), CHAT))
    assert reply.choices[0].parts == [ReplyPart("text", "a"), part]
    assert reply.usage == Usage(1, 2)
