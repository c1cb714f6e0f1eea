"""Chunks that are read without being parsed say what they would say when parsed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from gateway.core.byte_budget import ByteBudget, Held
from gateway.core.continuation import SentText
from gateway.core.events import Event, Failed
from gateway.core.messages import Chat, Complete, Message, Text
from gateway.wire import sse
from gateway.wire.chunk_template import MARK, TemplateCache, cut
from gateway.wire.json import encode
from gateway.wire.openai.replies.reading import ChatReader, TextReader
from gateway.wire.openai.streams.passthrough import Asked, Passthrough, PassthroughLane
from tests.support.sampled import examples

CHAT = Chat(model="m", messages=(Message("user", (Text("hi"),)),))
TEXT = Complete(model="m", prompts=("hi",))
HEAD = {"id": "c-1", "object": "chat.completion.chunk", "created": 1763720000, "model": "up"}
ASKED = Asked(Raw(b'"mine"'), True, 1, False)
DELTA: tuple[str | int, ...] = ("choices", 0, "delta")


def chunk(text: object, *, name: str = "content", index: int = 0, ascii: bool = True, **more: Any) -> bytes:
    choice = {"index": index, "delta": {name: text}, "logprobs": None, "finish_reason": None, **more}
    return json.dumps({**HEAD, "choices": [choice]}, separators=(",", ":"), ensure_ascii=ascii).encode()


def text_chunk(text: str, **more: Any) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None, **more}
    return json.dumps({**HEAD, "choices": [choice]}, ensure_ascii=False).encode()


def test_a_template_is_all_but_the_text() -> None:
    found = cut(chunk("a"), DELTA, "content")
    assert found is not None
    assert found.filled(b"b", 0) == sse.frame(chunk("b"))
    assert found.end == b""


def test_a_template_with_a_token_id() -> None:
    found = cut(chunk("a", token_ids=[5], prompt_token_ids=None), DELTA, "content", token=True)
    assert found is not None
    assert found.filled(b"b", 17) == sse.frame(chunk("b", token_ids=[17], prompt_token_ids=None))


def counted(text: str, total: int, output: int, finish_reason: str | None = None, **more: Any) -> bytes:
    """A chunk with its usage so far, as vLLM's `continuous_usage_stats` write it."""
    usage = {"prompt_tokens": 5, "total_tokens": total, "completion_tokens": output}
    return (
        chunk(text, finish_reason=finish_reason)[:-1]
        + b',"usage":%b}' % json.dumps({**usage, **more}, separators=(",", ":")).encode()
    )


def test_a_template_with_usage() -> None:
    found = cut(counted("a", 6, 1), DELTA, "content", usage=True)
    assert found is not None
    inside = len(found.before) - 1 + len(b'"b"') - 1
    assert found.number(sse.frame(counted("b", 1234, 1229))) == (inside, b"1229")
    for other in (
        counted("b", 7, 2, prompt_tokens_details={"cached_tokens": 4}),
        counted("b", 7, 2).replace(b'"total_tokens":7', b'"total_tokens":-7'),
        counted("b", 7, 2).replace(b'"completion_tokens":2', b'"completion_tokens":2.5'),
        counted("b", 7, 2).replace(b'"prompt_tokens":5', b'"prompt_tokens":6'),
        counted("b", 7, 10**10),
        counted("b", 7, 2).replace(b'"completion_tokens":2', b'"completion_tokens":02'),
        chunk("b"),
    ):
        assert found.number(sse.frame(other)) is None, other


def test_a_template_with_usage_and_more_that_changes_is_none() -> None:
    assert cut(chunk("a"), DELTA, "content", usage=True) is None
    both = counted("a", 6, 1).replace(b'"index":0', b'"index":0,"token_ids":[5]')
    assert cut(both, DELTA, "content", usage=True) is not None
    assert cut(both, DELTA, "content", usage=True, token=True) is None
    assert cut(counted("a", 6, 1, x={"completion_tokens": 1}), DELTA, "content", usage=True) is not None


@pytest.mark.parametrize(
    "data",
    [
        chunk("a", content="another of the name"),
        chunk("a", note='"content":"not this one, which is escaped", but', content="x"),
        b'{"choices":[{"delta":{"content":"a"},"index":0,"content":"a"}]}',
        # The name is that of another member, beside the right place or around it.
        b'{"content":"a","choices":[{"delta":{}}]}',
        b'{"choices":[{"delta":{"x\\"content":"a"}}]}',
        b'{"choices":[{"delta":\n{"content":"a"}}]}',
        # Nothing that a worker writes makes it raise.
        chunk("a", logprobs={"content": [{"logprob": float("-inf")}]}),
        chunk("\ud83d"),
        chunk("a", note=1).replace(b'"note":1', b'"note":1e999'),
        chunk("a", note=1).replace(b'"note":1', b'"note":' + b"[" * 100_000),
        b'{"note":"\xff","choices":[{"delta":{"content":"a"}}]}',
        b'{"content":"a","choices":[]}',
        b'{"content":"a","choices":[{"delta":null}]}',
        b'{"content":"a","choices":null}',
        b'{"content":"a"}',
        b'["content":"a"]',
    ],
)
def test_no_template_where_the_text_is_in_doubt(data: bytes) -> None:
    assert cut(data, DELTA, "content") is None


def test_no_template_for_several_ids_or_an_id_before_the_text() -> None:
    assert cut(chunk("a", token_ids=[5, 6]), DELTA, "content", token=True) is None
    assert cut(b'{"token_ids":[5],"choices":[{"delta":{"content":"a"}}]}', DELTA, "content", token=True) is None
    assert cut(chunk("a", more={"token_ids": [5]}, token_ids=[5]), DELTA, "content", token=True) is None


_TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            '"',
            "\\",
            '\\"',
            "\n\n",
            "\r",
            "}",
            '"},"finish_reason":"stop"',
            "data: [DONE]",
            "\u2028",
            "🇪🇺",
            "",
            MARK.decode(),
        ]
    ),
)
_IDS = st.one_of(st.none(), st.lists(st.integers(0, 200_000), max_size=2))
_COUNTS = st.integers(0, 3) | st.just(10**12)
_CHUNKS = st.one_of(
    st.builds(chunk, _TEXTS, ascii=st.booleans()),
    st.builds(counted, _TEXTS, _COUNTS, _COUNTS),
    st.builds(counted, _TEXTS, _COUNTS, _COUNTS, finish_reason=st.just("stop")),
    st.just(counted("a", 7, 2).replace(b":7", b":07")),
    st.builds(chunk, _TEXTS, name=st.sampled_from(["content", "reasoning", "reasoning_content", "refusal"])),
    st.builds(chunk, _TEXTS, index=st.sampled_from([0, 1])),
    st.builds(chunk, _TEXTS, token_ids=_IDS),
    st.builds(chunk, _TEXTS, finish_reason=st.sampled_from([None, None, "stop", "length"])),
    st.builds(chunk, _TEXTS, logprobs=st.just({"content": [{"token": "a", "logprob": -1.0}]})),
    st.builds(chunk, st.just([{"index": 0, "id": "call", "function": {"name": "f"}}]), name=st.just("tool_calls")),
    st.just(b"[DONE]"),
    st.just(b'{"error":{"message":"boom","code":500}}'),
    st.just(b'{"choices":[{"delta":{"content":"a'),
    st.just(chunk("a", logprobs={"content": [{"logprob": float("-inf")}]})),
    st.just(chunk("a", note="\ud83d")),
    st.just(chunk("\ud83d")),
    st.just(chunk("a").replace(b'"a"', b'"\xff"')),
    st.just(chunk("a").replace(b'"a"', b'"a\x01"')),
    st.just(chunk("a").replace(b'"a"', b'"\\q"')),
    st.just(chunk("a", token_ids=[7]).replace(b"[7]", b"[007]")),
    st.just(chunk("a", token_ids=[7]).replace(b"[7]", b"[" + b"9" * 5000 + b"]")),
)
_TEXT_CHUNKS = st.one_of(
    st.builds(text_chunk, _TEXTS),
    st.builds(text_chunk, _TEXTS, token_ids=_IDS),
    st.builds(text_chunk, _TEXTS, finish_reason=st.sampled_from([None, "stop"])),
    st.just(b"[DONE]"),
)


def _said(events: Iterable[Event]) -> list[object]:
    return [event.error.message if isinstance(event, Failed) else event for event in events]


def _blocks(datas: Sequence[bytes], cuts: Sequence[int]) -> list[bytes]:
    """Mostly whole events, some of them in two pieces, with a keep-alive behind them, or together in one block."""
    blocks: list[bytes] = []
    for data, at in zip(datas, cuts, strict=False):
        event = sse.frame(data)
        if at > 200 and blocks:
            blocks[-1] += event
            continue
        blocks += [event] if at > 60 else [event + sse.KEEPALIVE] if at == 60 else [event[:at], event[at:]]
    return blocks


@settings(max_examples=examples(600))
@given(st.lists(_CHUNKS, max_size=12), st.lists(st.integers(0, 300), min_size=12, max_size=12))
def test_a_chat_reader_says_the_same_with_and_without(datas: list[bytes], cuts: list[int]) -> None:
    quick, slow = ChatReader(CHAT), ChatReader(CHAT)
    slow.tries = 0
    for block in _blocks(datas, cuts):
        assert _said(quick.feed(block)) == _said(slow.feed(block))
    assert _said(quick.eof()) == _said(slow.eof())


@settings(max_examples=examples(300))
@given(st.lists(_TEXT_CHUNKS, max_size=12), st.lists(st.integers(0, 300), min_size=12, max_size=12))
def test_a_text_reader_says_the_same_with_and_without(datas: list[bytes], cuts: list[int]) -> None:
    quick, slow = TextReader(TEXT), TextReader(TEXT)
    slow.tries = 0
    for block in _blocks(datas, cuts):
        assert _said(quick.feed(block)) == _said(slow.feed(block))
    assert _said(quick.eof()) == _said(slow.eof())


@pytest.mark.parametrize("number", [10**9 - 1, 2**31 - 1, 2**31, 9_999_999_990])
@pytest.mark.parametrize("usage", [True, False])
def test_a_number_beyond_its_range_is_refused_with_and_without(number: int, usage: bool) -> None:
    quick, slow = ChatReader(CHAT), ChatReader(CHAT)
    slow.tries = 0
    chunks = [counted("a", most, one) if usage else chunk("a", token_ids=[one]) for most, one in ((7, 2), (8, 3))]
    odd = (counted("a", number, 4), counted("a", 9, number)) if usage else (chunk("a", token_ids=[number]),)
    for data in (*chunks, *odd, chunk("", finish_reason="stop"), b"[DONE]"):
        assert _said(quick.feed(sse.frame(data))) == _said(slow.feed(sse.frame(data)))
    assert quick.over


def _relay(model: str, *, chat: bool) -> PassthroughLane:
    return PassthroughLane(Asked(Raw(encode(model)), chat, 1, False), Passthrough(lambda error: error.message.encode()))


@settings(max_examples=examples(600))
@given(
    st.lists(_CHUNKS, max_size=12),
    st.lists(st.integers(0, 300), min_size=12, max_size=12),
    st.sampled_from(["up", "a longer name"]),
)
def test_the_bytes_lane_sends_the_same_with_and_without(datas: list[bytes], cuts: list[int], model: str) -> None:
    quick, slow = _relay(model, chat=True), _relay(model, chat=True)
    slow.lessons.tries = 0
    for block in _blocks(datas, cuts):
        if quick.done or quick.error is not None:
            break
        sent, expected = quick.feed(block), slow.feed(block)
        assert sent == expected
        assert (quick.done, quick.produced) == (slow.done, slow.produced)
        assert str(quick.error) == str(slow.error)


def _stream(
    lane: PassthroughLane, datas: Sequence[bytes], number: int, cuts: Sequence[int] = (300,) * 20
) -> list[object]:
    """What a lane makes of the stream with this number, which has an id and a time of its own."""
    seen: list[object] = []
    for block in _blocks([_numbered(data, number) for data in datas], cuts):
        if lane.done or lane.error is not None:
            break
        seen.append((lane.feed(block), lane.produced, dict(lane.finishes), lane.done, str(lane.error), lane.partial()))
    return seen


def _numbered(data: bytes, number: int) -> bytes:
    return data.replace(b'"c-1"', b'"c-%d"' % number).replace(b"1763720000", b"%d" % (1763720000 + number))


def _role(**more: Any) -> bytes:
    return chunk("", **more).replace(b'"content"', b'"role":"assistant","content"')


def _seen() -> SentText:
    return SentText(Held(ByteBudget(), ""))


_STOP = chunk("", finish_reason="stop")
_STREAM = st.lists(_CHUNKS, max_size=10).map(lambda datas: [_role(), chunk("a"), *datas, _STOP, b"[DONE]"])


@settings(max_examples=examples(600))
@given(
    st.lists(_STREAM, min_size=1, max_size=4),
    st.lists(_CHUNKS, max_size=12) | _STREAM,
    st.lists(st.integers(0, 300), min_size=14, max_size=14),
)
def test_streams_before_change_nothing(before: list[list[bytes]], datas: list[bytes], cuts: list[int]) -> None:
    owner = Passthrough(lambda error: error.message.encode())
    for number, one in enumerate(before, 2):
        _stream(PassthroughLane(ASKED, owner, _seen()), one, number)
    quick = PassthroughLane(ASKED, owner, _seen())
    slow = PassthroughLane(ASKED, Passthrough(owner.refuse), _seen())
    slow.lessons.tries = 0
    assert _stream(quick, datas, 1, cuts) == _stream(slow, datas, 1, cuts)


def _known() -> Passthrough:
    """It has seen an ordinary stream."""
    owner = Passthrough(lambda error: error.message.encode())
    _stream(PassthroughLane(ASKED, owner), [_role(), chunk("a"), chunk("b"), _STOP, b"[DONE]"], 2)
    return owner


def test_the_next_stream_knows_its_ordinary_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = PassthroughLane(ASKED, _known())
    lane.feed(sse.frame(_numbered(_role(), 7)))
    monkeypatch.setattr(lane, "_read", None)
    ordinary = sse.frame(_numbered(chunk("c"), 7))
    assert lane.feed(ordinary) == ordinary.replace(b'"up"', b'"mine"')
    assert lane.produced == 1


def test_what_the_client_is_sent_as_it_came_is_kept_once() -> None:
    lane = PassthroughLane(replace(ASKED, model=Raw(b'"up"')), _known())
    for data in (_role(), chunk("a")):
        lane.feed(sse.frame(_numbered(data, 7)))
    ((before, after, pieces, _),) = lane.usual
    assert pieces[0] is before
    assert pieces[1] is after


@pytest.mark.parametrize(
    "first",
    [
        _role(finish_reason="stop"),
        _role(index=1),
        _role().replace(b'"c-1"', b"null"),
        _role().replace(b"1763720000", b"1763720000.5"),
        b'{"choices":[]}',
    ],
)
def test_a_stream_that_begins_otherwise_knows_none(first: bytes) -> None:
    lane = PassthroughLane(ASKED, _known())
    lane.feed(sse.frame(_numbered(first, 7)))
    assert lane.usual == []


def test_what_was_asked_for_otherwise_is_not_known() -> None:
    owner = _known()
    for asked in (replace(ASKED, include_usage=True), replace(ASKED, model=Raw(b'"m"')), replace(ASKED, choices=2)):
        lane = PassthroughLane(asked, owner)
        lane.feed(sse.frame(_numbered(_role(), 7)))
        assert lane.usual == []


def test_thinking_is_not_taken_for_text() -> None:
    owner = Passthrough(lambda error: error.message.encode())
    thought = [_role(), chunk("a", name="reasoning"), chunk("b", name="reasoning"), chunk("c"), chunk("d"), _STOP]
    _stream(PassthroughLane(ASKED, owner, _seen()), thought, 1)
    for end in range(2, 5):
        lane = PassthroughLane(ASKED, owner, _seen())
        _stream(lane, thought[:end], end)
        assert len(lane.usual) >= 1
        assert lane.partial() == "thinking"


def test_chunks_that_differ_in_each_stream_are_not_kept() -> None:
    owner = Passthrough(lambda error: error.message.encode())
    varied = [chunk("a", note=number) for number in range(3)]
    _stream(PassthroughLane(ASKED, owner), [_role(), *varied, _STOP], 1)
    lane = PassthroughLane(ASKED, owner)
    _stream(lane, [_role()], 2)
    assert lane.usual == []


def test_a_second_worker_of_a_stream_is_read_as_new() -> None:
    lane = PassthroughLane(ASKED, _known(), _seen())
    _stream(lane, [_role(), chunk("a")], 7)
    lane.splice("")
    _stream(lane, [_role()], 8)
    assert lane.usual == []


def test_what_is_known_is_bounded() -> None:
    cache = TemplateCache()
    for number in range(200):
        for after in range(20):
            usual = b'"x"1763720000"content":"', b'"%d' % after, [b'"x"1763720000', b"end"], 0
            cache.keep(b"%d" % number, (b'"x"', b"1763720000"), usual)
    known = [len(cache.recall(b"%d" % number, (b'"y"', b"1"))) for number in range(200)]
    assert known == [0] * 136 + [4] * 64


@pytest.mark.parametrize("before", [b'"x""x"17', b'"x"1717', b"17", b'"x"'])
def test_what_stands_there_twice_or_not_at_all_is_not_kept(before: bytes) -> None:
    cache = TemplateCache()
    cache.keep(b"", (b'"x"', b"17"), (before, b"", [before, b""], 0))
    assert cache.recall(b"", (b'"y"', b"18")) == []


def test_ordinary_chunks_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above would compare the slow way with itself."""
    reader, relay = ChatReader(CHAT), _relay("mine", chat=True)
    start = sse.frame(chunk("", role="assistant"))
    for lane in (reader, relay):
        for block in (start, sse.frame(chunk("a")), sse.frame(chunk("b"))):
            list(lane.feed(block))
    with_usage = ChatReader(CHAT)
    for block in (start, sse.frame(counted("a", 6, 1)), sse.frame(counted("b", 7, 2))):
        list(with_usage.feed(block))
    monkeypatch.setattr(with_usage, "chunk", None)
    assert [event.text for event in with_usage.feed(sse.frame(counted("c", 1005, 1000)))] == ["c"]  # type: ignore[union-attr]
    monkeypatch.setattr(reader, "chunk", None)
    monkeypatch.setattr(relay, "_read", None)
    for number in (1, 3):  # when the gateway is behind, several come in one block
        block = sse.frame(chunk("c\n")) * number
        assert [event.text for event in reader.feed(block)] == ["c\n"] * number  # type: ignore[union-attr]
        assert relay.feed(block) == sse.frame(chunk("c\n").replace(b'"up"', b'"mine"')) * number
    assert relay.produced == 6


def test_what_a_stream_may_learn_is_bounded() -> None:
    reader = ChatReader(CHAT)
    for number in range(40):
        name = "content" if number % 2 else "reasoning"
        list(reader.feed(sse.frame(chunk("a", name=name))))
    assert reader.tries == 0
    assert [event.text for event in reader.feed(sse.frame(chunk("b", name="content")))][-1:] == ["b"]  # type: ignore[union-attr]


def test_more_than_text_between_the_same_ends_is_parsed() -> None:
    quick, slow = _relay("up", chat=True), _relay("up", chat=True)
    slow.lessons.tries = 0
    odd = sse.frame(chunk("a").replace(b'"a"', b'"a","role":"assistant","refusal":"b"'))
    blocks = [sse.frame(chunk("", role="assistant")), sse.frame(chunk("a")), sse.frame(chunk("b")), odd]
    assert [quick.feed(block) for block in blocks] == [slow.feed(block) for block in blocks]
    assert b'"role"' not in quick.feed(odd)
