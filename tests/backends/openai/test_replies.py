"""Replies of the backend `openai`, streamed and whole, and its errors. Streams of every form: tests/conformance."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.events import Delta, End, Event, Failed, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.http import Response
from gateway.core.lifecycle import checked, fold
from gateway.core.messages import Chat, Complete, Embed
from gateway.core.usage import Usage
from tests.backends.openai.exchange import BACKEND, chat, text


def streamed(*chunks: Any, op: Chat | Complete | None = None, done: bool = True) -> list[Event]:
    reader = BACKEND.reader(op or chat())
    stream = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    return list(checked([*reader.feed(stream + b"data: [DONE]\n\n" * done), *reader.eof()]))


def chunk(finish: str | None = None, index: int = 0, /, **delta: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "x", "model": "sim", "created": 1, "choices": [choice]}


def test_the_events_of_a_stream() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 1}}
    found = streamed(
        {**chunk(role="assistant", content=""), "system_fingerprint": "fp", "service_tier": "default"},
        chunk(reasoning="hm"),
        chunk(content="a"),
        chunk("stop", content="b"),
        {"choices": [], "usage": usage},
    )
    assert found == [
        Start("x", "sim", 1, "fp", "default"),
        PartStart(0, 0, "thinking"),
        Delta(0, 0, "hm"),
        PartEnd(0, 0),
        PartStart(0, 1, "text"),
        Delta(0, 1, "a"),
        Delta(0, 1, "b", last=True),
        PartEnd(0, 1),
        Finish(0, "stop", "stop"),
        UsageReport(Usage(3, 2, None, 1)),
        End(),
    ]


def test_legacy_function_calls_are_tool_calls() -> None:
    found = fold(
        streamed(chunk(function_call={"name": "f"}), chunk("function_call", function_call={"arguments": "{}"}))
    )
    assert [(call.name, call.text) for call in found.choices[0].calls] == [("f", "{}")]
    assert found.choices[0].reason == "tool_calls"


def test_calls_without_an_index_are_told_apart_by_their_place() -> None:
    calls = [{"id": one, "function": {"name": one, "arguments": "{}"}} for one in ("a", "b")]
    found = fold(streamed(chunk("tool_calls", tool_calls=calls)))
    assert [call.call_id for call in found.choices[0].calls] == ["a", "b"]


def test_nulls_everywhere_are_absent() -> None:
    nulls = {"content": None, "reasoning": None, "tool_calls": None, "refusal": None, "function_call": None}
    found = streamed({**chunk(**nulls), "usage": None, "error": None}, chunk("stop", **nulls))
    assert [type(event) for event in found] == [Start, Finish, End]


def test_a_choice_that_goes_on_after_its_end_is_not_heard() -> None:
    found = fold(streamed(chunk(content="a"), chunk("stop"), chunk(content="b"), chunk("length")))
    assert (found.choices[0].text(), found.choices[0].reason) == ("a", "stop")


@pytest.mark.parametrize("word", ["abort", "error"])
def test_a_generation_given_up_is_a_failure(word: str) -> None:
    last = streamed(chunk(content="a"), chunk(word))[-1]
    assert isinstance(last, Failed)
    assert last.error.code == "upstream_aborted"


def test_a_whole_reply_without_a_reason_has_ended() -> None:
    whole = {"choices": [{"message": {"content": "a"}}], "created": 1}
    reply = fold(BACKEND.read(Response(200, [], json.dumps(whole).encode()), chat()))
    assert (reply.choices[0].text(), reply.choices[0].reason) == ("a", "stop")


def test_what_has_no_canonical_name_is_kept() -> None:
    whole = {"choices": [{"text": "a", "finish_reason": "stop", "prompt_logprobs": [None]}], "kv_transfer_params": {}}
    reply = fold(BACKEND.read(Response(200, [], json.dumps(whole).encode()), text()))
    assert reply.start.extra == {"kv_transfer_params": Raw(b"{}")}
    assert reply.choices[0].extra == {"prompt_logprobs": Raw(b"[null]")}


def test_embeddings_are_put_in_order() -> None:
    said = {"data": [{"index": 1, "embedding": [2.50]}, {"index": 0, "embedding": "AAA="}], "model": "sim"}
    found = BACKEND.read_embeddings(Response(200, [], json.dumps(said).encode()), Embed(model="m", inputs=("a", "b")))
    assert found.vectors == (Raw(b'"AAA="'), Raw(b"[2.5]"))
    assert (found.model, found.usage) == ("sim", None)


@pytest.mark.parametrize("said", [b"", b"<p>", b"{}", b'{"data":7}', b'{"data":[{}]}', b'{"error":"x"}'])
def test_what_are_no_embeddings(said: bytes) -> None:
    with pytest.raises(GatewayError) as caught:
        BACKEND.read_embeddings(Response(200, [], said), Embed(model="m", inputs=("a",)))
    assert caught.value.blame is Blame.WORKER


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "said", "kind", "words", "retryable"),
    [
        (400, {"error": {"message": "bad", "param": "n"}}, Kind.BAD_REQUEST, "bad", True),
        (400, {"message": "flat"}, Kind.BAD_REQUEST, "flat", True),
        (422, {"detail": [{"loc": ["n"]}]}, Kind.BAD_REQUEST, '[{"loc": ["n"]}]', True),
        (400, {"error": "text"}, Kind.BAD_REQUEST, "text", True),
        (400, {"error": {"message": "maximum context length is 5"}}, Kind.CONTEXT_LENGTH, "context length", True),
        (413, {}, Kind.TOO_LARGE, "too large", True),
        (501, {"error": "no"}, Kind.UNSUPPORTED, "no", True),
        (429, {"error": "secret"}, Kind.OVERLOADED, "overloaded", True),
        (503, {"error": "secret"}, Kind.OVERLOADED, "overloaded", True),
        (401, {"error": "secret"}, Kind.UPSTREAM, "(401)", False),
        (404, {"error": "secret"}, Kind.UPSTREAM, "(404)", False),
        (302, {}, Kind.UPSTREAM, "redirect", False),
        (500, {"error": "secret"}, Kind.UPSTREAM, "(500)", True),
    ],
)
def test_what_a_worker_answers_means(status: int, said: Any, kind: Kind, words: str, retryable: bool) -> None:
    error = BACKEND.fault(Response(status, [], json.dumps(said).encode()))
    assert (error.kind, error.upstream, error.retryable) == (kind, status, retryable)
    assert words in error.message
    assert "secret" not in error.message


@pytest.mark.parametrize(("said", "after"), [(b"7", 7.0), (b"Wed, 21 Oct 2026", 1.0), (b"", 1.0)])
def test_how_long_a_busy_worker_wants_to_be_left_alone(said: bytes, after: float) -> None:
    assert BACKEND.fault(Response(429, [(b"retry-after", said)], b"{}")).retry_after == after
