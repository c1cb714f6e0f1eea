"""Streams of events and of sound: cut anywhere, they give the same bytes and the same end."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers
from gateway.core.messages import Media, Work
from gateway.wire.openai.media import replies
from gateway.wire.openai.replies.refusals import error_event
from tests.support.sampled import examples

SSE: Headers = [(b"content-type", b"text/event-stream")]
SOUND: Headers = [(b"content-type", b"audio/mpeg"), (b"transfer-encoding", b"chunked")]
CHUNK = {"object": "transcription.chunk", "model": "w", "choices": [{"delta": {"content": "wörter"}}]}
DONE = {"type": "transcript.text.done", "text": "x"}
DRAWN = {"type": "image_generation.completed", "b64_json": "eA=="}
LAST = {"object": "transcription.chunk", "choices": [{"delta": {"content": ""}, "finish_reason": "stop"}]}
EVENTS = st.sampled_from(
    [CHUNK, LAST, DONE, DRAWN, {"type": "transcript.text.delta", "delta": "x"}, {"error": "broken"}]
)


def body_of(events: list[Any], done: bool) -> bytes:
    said = b"".join(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n" for event in events)
    return said + (b"data: [DONE]\n\n" if done else b"")


def through(work: Work, body: bytes, cuts: list[int], n: int = 1) -> tuple[bytes, bool, Kind | None]:
    lane = replies.lane(SSE, Media(model="m", stream=True, work=work, n=n), error_event)
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    out = b""
    for start, end in itertools.pairwise(places):
        if not lane.done and lane.error is None:
            out += lane.feed(body[start:end])
    if not lane.done and lane.error is None:
        out += lane.eof()
    assert lane.done is (lane.error is None)
    return out, lane.done, lane.error.kind if lane.error is not None else None


@settings(max_examples=examples(100))
@given(st.lists(EVENTS, max_size=6), st.booleans(), st.lists(st.integers(0, 2000), max_size=20))
def test_a_stream_is_the_same_however_it_is_cut(events: list[Any], done: bool, cuts: list[int]) -> None:
    body = body_of(events, done)
    assert through("transcribe", body, []) == through("transcribe", body, cuts)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300)))
def test_any_bytes_end_or_fail(body: bytes, cuts: list[int]) -> None:
    for work in ("transcribe", "draw"):
        _, done, kind = through(work, body, cuts)
        assert done is (kind is None)


def test_each_image_has_its_end() -> None:
    assert through("draw", body_of([DRAWN], False), [], 2)[1:] == (False, Kind.TRUNCATED)
    assert through("draw", body_of([DRAWN, DRAWN], False), [], 2)[1]
    assert through("draw", body_of([DRAWN], True), [], 2)[1], "[DONE] ends it, too"


@pytest.mark.parametrize("work", ["transcribe", "translate", "speak", "draw", "edit"])
@given(events=st.lists(EVENTS, max_size=5))
def test_done_ends_nothing_that_has_not_ended(work: Work, events: list[Any]) -> None:
    """A server closes its stream by `[DONE]` in any case. The reply is whole only by an end of its own before that."""
    _, done, kind = through(work, body_of(events, True), [])
    ends = [DRAWN, *([DONE] if work in ("transcribe", "translate") else [])]
    broken = events.index({"error": "broken"}) if {"error": "broken"} in events else len(events)
    if any(event in ends for event in events[:broken]):
        assert done
    elif broken < len(events):
        assert kind is Kind.UPSTREAM
    else:
        chunks = [event for event in events if event in (CHUNK, LAST)]
        assert done is (chunks[-1:] == [LAST])
        assert done or kind is Kind.TRUNCATED


@pytest.mark.parametrize("word", ["abort", "error"])
def test_a_transcript_that_its_engine_has_given_up_is_a_failure(word: str) -> None:
    last = {"object": "transcription.chunk", "choices": [{"delta": {"content": ""}, "finish_reason": word}]}
    out, done, kind = through("transcribe", body_of([CHUNK, last], True), [])
    assert (done, kind) == (False, Kind.UPSTREAM)
    assert b"transcript.text.done" not in out


def test_a_transcript_has_a_bound(monkeypatch: Any) -> None:
    monkeypatch.setattr(replies, "MOST_TEXT", 20)
    assert through("transcribe", body_of([CHUNK] * 4, True), [])[2] is Kind.UPSTREAM


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=9))
def test_sound_is_not_touched(blocks: list[bytes]) -> None:
    lane = replies.lane(SOUND, Media(model="m", work="speak"), error_event)
    assert b"".join(map(lane.feed, blocks)) + lane.eof() == b"".join(blocks)
    assert lane.done is bool(blocks)
    assert lane.fail(GatewayError(Kind.INTERNAL, "x")) == b""
    assert lane.keepalive() == b""
