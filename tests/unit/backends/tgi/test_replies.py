"""Replies of the backend `tgi`, streamed and whole, and its stop sequences."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import Kind
from gateway.core.events import Delta, Event, Failed, Finish, UsageReport
from gateway.core.http import Response
from gateway.core.lifecycle import checked, fold
from gateway.core.messages import Chat, Complete, Logprobs
from gateway.core.usage import Usage
from tests.support.raised import failed
from tests.unit.backends.tgi.exchange import TGI, streamed, text


def token(number: int, said: str, *, special: bool = False) -> dict[str, Any]:
    return {"id": number, "text": said, "logprob": -0.5, "special": special}


def event(said: dict[str, Any], whole: str | None = None, finish: str = "", **details: Any) -> bytes:
    body: dict[str, Any] = {"index": 1, "token": said, "generated_text": whole, "details": None}
    if finish:
        body["details"] = {"finish_reason": finish, "generated_tokens": 3, "seed": None, "input_length": 5, **details}
    return b"data:" + msgspec.json.encode(body) + b"\n\n"


STREAM = event(token(1, "a")) + event(token(2, " b")) + event(token(0, "</s>", special=True), "a b", "eos_token")
WHOLE: dict[str, Any] = {
    "generated_text": "a b",
    "details": {
        "finish_reason": "eos_token",
        "generated_tokens": 3,
        "seed": 1,
        "prefill": [],
        "tokens": [token(1, "a"), token(2, " b"), token(0, "</s>", special=True)],
    },
}


def whole(op: Chat | Complete, body: Any, *headers: tuple[bytes, bytes]) -> list[Event]:
    return list(checked(TGI.read(Response(200, list(headers), msgspec.json.encode(body)), op)))


def test_a_text_streamed_and_whole_are_the_same() -> None:
    op = text(want_tokens=True, logprobs=Logprobs())
    by_stream = fold(streamed(op, STREAM))
    by_whole = fold(whole(op, WHOLE, (b"x-prompt-tokens", b"5")))
    for reply in (by_stream, by_whole):
        choice = reply.choices[0]
        assert (choice.text(), choice.tokens, choice.reason, choice.raw_reason) == ("a b", (1, 2), "stop", "eos_token")
        logprobs = [item for raw in choice.logprobs for item in json.loads(bytes(raw))]
        assert [item["token"] for item in logprobs] == ["a", " b"]
        assert reply.usage == Usage(5, 3)


def test_nothing_that_was_not_asked_for() -> None:
    choice = fold(streamed(text(), STREAM)).choices[0]
    assert (choice.tokens, choice.logprobs) == ((), ())


def test_alternatives() -> None:
    tops = [token(1, "a"), token(9, "z")]
    op = text(logprobs=Logprobs(2))
    stream = event({**token(1, "a")}).replace(b'"generated_text"', b'"top_tokens":%b,"generated_text"' % _json(tops))
    stream += event(token(2, "b"), "ab", "length")
    first = json.loads(bytes(fold(streamed(op, stream)).choices[0].logprobs[0]))[0]
    assert [top["token"] for top in first["top_logprobs"]] == ["a", "z"]
    body = json.loads(json.dumps(WHOLE))
    body["details"]["top_tokens"] = [tops, tops, tops]
    first = json.loads(bytes(fold(whole(op, body)).choices[0].logprobs[0]))[0]
    assert [top["token"] for top in first["top_logprobs"]] == ["a", "z"]


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


@pytest.mark.parametrize(
    ("headers", "prefill", "expected"),
    [([], [], None), ([(b"x-prompt-tokens", b"8")], [], 8), ([], [{"id": 1}, {"id": 2}], 2)],
)
def test_the_prompts_tokens_where_they_are_told(headers: Any, prefill: Any, expected: int | None) -> None:
    body = {**WHOLE, "details": {**WHOLE["details"], "prefill": prefill}}
    assert fold(whole(text(), body, *headers)).usage == Usage(expected, 3)


@pytest.mark.parametrize("place", [0, 20, len(STREAM) // 2, STREAM.rindex(b"data:")])
def test_a_stream_that_is_cut(place: int) -> None:
    assert failed(streamed(text(), STREAM[:place])).kind is Kind.TRUNCATED


@pytest.mark.parametrize("junk", [b"{}", b"[]", b'{"generated_text":"x"}', b'{"token":{"id":1}}', b"\xff"])
def test_junk(junk: bytes) -> None:
    assert failed(streamed(text(), event(token(1, "a")) + b"data:" + junk + b"\n\n")).kind is Kind.UPSTREAM
    last = list(TGI.read(Response(200, [], junk), text()))[-1]
    assert isinstance(last, Failed)


# -- stop sequences -------------------------------------------------------------------------------------------------


@given(
    tokens=st.lists(st.text("abX\n", max_size=4), max_size=8),
    stops=st.lists(st.text("abX", min_size=1, max_size=3), min_size=1, max_size=3),
    newline=st.booleans(),
    stopped=st.booleans(),
    together=st.booleans(),
)
def test_a_stop_sequence_never_shows(
    tokens: list[str], stops: list[str], newline: bool, stopped: bool, together: bool
) -> None:
    """However the text is cut into tokens. `together`: in the last event with the reason, or before it."""
    said = "".join(tokens)
    ending = stops[0] + "\n" * newline if stopped else ""
    pieces = [*tokens, *list(ending)] if not together else [*tokens, ending]
    finish = "stop_sequence" if stopped else "eos_token"
    op = text(stop=tuple(stops))
    frames = [event(token(1, piece)) for piece in pieces]
    if together and stopped:
        frames[-1] = event(token(9, ending), said + ending, finish)
    else:
        frames.append(event(token(0, "</s>", special=True), said + ending, finish))
    events = streamed(op, *frames)
    reply = fold(events)
    body = {"generated_text": said + ending, "details": {"finish_reason": finish, "generated_tokens": 3}}
    choice, buffered = reply.choices[0], fold(whole(op, body)).choices[0]
    assert (choice.text() or "") == (buffered.text() or "")
    assert choice.stop_sequence == buffered.stop_sequence
    shown = choice.text() or ""
    assert (said + ending).startswith(shown)
    if stopped:
        assert choice.stop_sequence is not None
        assert (said + ending).removeprefix(shown) in (choice.stop_sequence, f"{choice.stop_sequence}\n")
    else:
        assert choice.stop_sequence is None
        assert said.removeprefix(shown) in ("", *stops)
    assert isinstance(events[-2], UsageReport)
    assert sum(isinstance(one, Finish) for one in events) == 1


def test_text_that_is_held_back_is_not_lost_when_the_stream_is() -> None:
    events = streamed(text(stop=("END",)), event(token(1, "the EN")))
    assert "".join(one.text for one in events if isinstance(one, Delta)) == "the EN"
    assert isinstance(events[-1], Failed)


@pytest.mark.parametrize(("said", "shown"), [("the e", "the e"), ("the E", "the ")])
def test_only_what_may_begin_a_stop_sequence_is_held_back(said: str, shown: str) -> None:
    events = streamed(text(stop=("END",)), event(token(1, said)))
    assert next(one.text for one in events if isinstance(one, Delta)) == shown
