"""Backend llamacpp: how it reads what llama.cpp sends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, End, Event, Failed, Finish, UsageReport
from gateway.core.http import Response
from gateway.core.lifecycle import checked, fold
from gateway.core.messages import (
    Complete,
    Logprobs,
    Output,
)
from gateway.core.usage import Usage
from tests.support.raised import failed, raised
from tests.unit.backends.llamacpp.exchange import BACKEND, CAN, complete


def frame(**members: Any) -> bytes:
    return b"data: " + json.dumps({"index": 0, "stop": False, "id_slot": -1, **members}).encode() + b"\n\n"


def last(**members: Any) -> bytes:
    told = {"content": "", "tokens": [], "stop": True, "stop_type": "limit", "stopping_word": "", "model": "small"}
    counts = {"tokens_predicted": 2, "tokens_evaluated": 5, "timings": {"cache_n": 4, "prompt_n": 1}}
    return frame(**{**told, **counts, **members})


# Recorded: "The capital of France is", three tokens.
STREAM = [
    frame(content=" Paris", tokens=[7042], tokens_predicted=1, tokens_evaluated=5),
    frame(content=".", tokens=[30], tokens_predicted=2, tokens_evaluated=5),
    frame(content="\n", tokens=[198], tokens_predicted=3, tokens_evaluated=5),
    last(tokens_predicted=3),
]


def events(op: Complete, *blocks: bytes) -> list[Event]:
    reader = BACKEND.reader(op)
    found = [event for block in blocks for event in reader.feed(block)]
    return list(checked([*found, *reader.eof()]))


def deltas(found: list[Event]) -> list[tuple[int, str, tuple[int, ...]]]:
    return [(event.choice, event.text, event.tokens) for event in found if isinstance(event, Delta)]


def test_a_stream() -> None:
    op = complete(stream=True, want_tokens=True)
    found = events(op, *STREAM)
    assert deltas(found) == [(0, " Paris", (7042,)), (0, ".", (30,)), (0, "\n", (198,))]
    assert found[-3:] == [Finish(0, "length", "limit"), UsageReport(Usage(5, 3, 4)), End()]


def test_the_models_own_end_is_no_token_of_the_text() -> None:
    op = complete(stream=True, want_tokens=True)
    found = events(op, frame(content="?", tokens=[47]), frame(content="", tokens=[2]), last(stop_type="eos"))
    assert deltas(found) == [(0, "?", (47,))]
    body = last(content="?", tokens=[47, 2], stop_type="eos")[6:]
    assert fold(BACKEND.read(Response(200, [], body), op)).choices[0].tokens == (47,)


def test_held_back_ids_come_with_the_next_text_or_with_the_end() -> None:
    op = complete(stream=True, want_tokens=True, stop=("7, 8",))
    held = [frame(content="", tokens=[token]) for token in (39, 28)]
    found = events(op, frame(content=" ", tokens=[216]), *held, frame(content="7,x", tokens=[9]), last())
    assert deltas(found) == [(0, " ", (216,)), (0, "7,x", (39, 28, 9))]
    found = events(op, frame(content=" ", tokens=[216]), *held, last(stop_type="word", stopping_word="7, 8"))
    assert deltas(found) == [(0, " ", (216,)), (0, "", (39, 28))]
    assert found[-3] == Finish(0, "stop", "word", "7, 8")


def test_choices_of_several_prompts_are_counted_each_once() -> None:
    op = complete("a", "b", n=2, stream=True)
    found = events(op, *(frame(index=i, content="x") for i in (3, 1, 0, 2)), *(last(index=i) for i in (2, 0, 3, 1)))
    assert {choice for choice, _, _ in deltas(found)} == {0, 1, 2, 3}
    assert found[-2:] == [UsageReport(Usage(10, 8, 8)), End()]
    body = json.dumps([json.loads(last(index=i, content="x")[6:]) for i in range(4)]).encode()
    whole = fold(BACKEND.read(Response(200, [], body), op))
    assert (len(whole.choices), whole.usage) == (4, Usage(10, 8, 8))


@pytest.mark.parametrize("top", [0, 1])
def test_logprobs_are_in_the_canonical_form(top: int) -> None:
    other = {"token": "a", "logprob": -0.25, "bytes": [97]}
    prob = {"id": 5, **other, "top_logprobs": [{"id": 5, **other}]}
    op = complete(stream=True, logprobs=Logprobs(top))
    found = events(op, frame(content="a", tokens=[5], completion_probabilities=[prob]), last())
    (delta,) = [event for event in found if isinstance(event, Delta)]
    assert delta.logprobs is not None
    assert json.loads(bytes(delta.logprobs)) == [{**other, "top_logprobs": [other] if top else []}]


def test_the_end_has_no_logprob() -> None:
    prob = {"token": "a", "logprob": -0.25, "bytes": [97], "top_logprobs": []}
    op = complete(stream=True, want_tokens=True, logprobs=Logprobs())
    ended = frame(content="", tokens=[2], completion_probabilities=[{**prob, "token": ""}])
    first = frame(content="a", tokens=[5], completion_probabilities=[prob])
    for blocks in ([first, ended], [first, frame(content="", tokens=[2])]):
        reply = fold(events(op, *blocks, last(stop_type="eos")))
        assert len(reply.choices[0].logprobs) == 1
        assert reply.choices[0].tokens == (5,)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<html>", Kind.UPSTREAM),
        (b"[]", Kind.UPSTREAM),
        (b'{"content":"x"}', Kind.UPSTREAM),
        (b'{"content":"x","stop":true,"stop_type":"none"}', Kind.UPSTREAM),
        (b'{"error":{"code":500,"message":"m","type":"server_error"}}', Kind.UPSTREAM),
    ],
)
def test_bodies_that_are_no_reply(body: bytes, kind: Kind) -> None:
    assert raised(fold, BACKEND.read(Response(200, [], body), complete())).kind is kind


@pytest.mark.parametrize(("there", "all_there"), [(1, False), (2, True), (3, False)])
def test_a_reply_has_as_many_choices_as_were_asked_for(there: int, all_there: bool) -> None:
    choices = [{"index": index, "content": "a", "stop": True, "stop_type": "limit"} for index in range(there)]
    found = list(checked(BACKEND.read(Response(200, [], json.dumps(choices).encode()), complete(n=2))))
    assert isinstance(found[-1], End) is all_there
    if not all_there:
        assert failed(found).code == "upstream_malformed"


@pytest.mark.parametrize(
    "extra", [frame(index=2, content="c"), frame(index=0, content="late")], ids=["a choice too many", "after its end"]
)
def test_what_no_choice_takes_is_not_lost_in_silence(extra: bytes) -> None:
    begun = [frame(index=1, content="b"), frame(index=0, content="a"), last(index=0)]
    found = events(complete(n=2, stream=True), *begun, extra, last(index=1))
    assert failed(found).code == "upstream_malformed"


def test_what_waits_is_counted_as_held() -> None:
    def held(output: Output | None, *said: bytes) -> list[int]:
        reader, found = BACKEND.reader(complete(stream=True, output=output)), []
        for block in said:
            list(reader.feed(block))
            found.append(reader.buffered_bytes)
        return found

    text, silent = frame(content="a", tokens=[1]), frame(content="", tokens=[2])
    begun, passed, one, two, told = held(None, text, text, silent, silent, text)
    assert begun == passed == told < one < two
    assert two - told == 2 * (len(silent) - len(b"data: \n\n"))
    # All of a text is kept that has to be JSON in the end.
    first, second, third = held(Output("json"), text, text, text)
    assert third - second == second - first == len(text) - len(b"data: \n\n")
    assert first == 2 * begun


def test_how_long_a_prompt_is_is_asked_first() -> None:
    counting = BACKEND.count(complete("hi", max_total=9), CAN)
    assert (counting.request.method, counting.request.path) == ("POST", "/tokenize")
    assert json.loads(counting.request.body) == {"content": "hi", "add_special": True}
    assert counting.read(Response(200, [], b'{"tokens":[504,3575]}')).tokens == 2
    with pytest.raises(GatewayError, match="min_total_tokens"):
        BACKEND.count(complete(min_total=9), CAN)


def test_a_schema_passed_over_in_silence_is_noticed() -> None:
    op = complete(stream=True, output=Output("json"))
    assert isinstance(events(op, frame(content='{"a":'), frame(content="1}"), last(stop_type="eos"))[-1], End)
    error = failed(events(op, frame(content="Once "), frame(content="upon"), last(stop_type="eos")))
    assert (error.kind, error.param) == (Kind.UNSUPPORTED, "response_format")


@pytest.mark.parametrize(
    ("status", "message", "kind", "param"),
    [
        (400, "request (9 tokens) exceeds the available context size (8 tokens)", Kind.CONTEXT_LENGTH, None),
        (400, "Field 'n': Value must be between 1 <= value <= 2, but got 3", Kind.BAD_REQUEST, "n"),
        (400, "Field 'n_predict': type must be number", Kind.BAD_REQUEST, "max_tokens"),
        (400, "Failed to initialize samplers: failed to parse grammar", Kind.BAD_REQUEST, "response_format"),
        (400, "Prompt contains invalid tokens", Kind.BAD_REQUEST, None),
        (501, "This server does not support embeddings", Kind.UNSUPPORTED, None),
        (503, "Loading model", Kind.OVERLOADED, None),
        (500, "secret", Kind.UPSTREAM, None),
        (500, "secret at row 19", Kind.UPSTREAM, None),
        (500, "While executing secret", Kind.UPSTREAM, None),
        (500, "secret\nError: secret", Kind.UPSTREAM, None),
    ],
)
def test_errors(status: int, message: str, kind: Kind, param: str | None) -> None:
    told = {"error": {"code": status, "message": message, "type": "x"}}
    error = BACKEND.fault(Response(status, [], json.dumps(told).encode()))
    assert (error.kind, error.param) == (kind, param)
    (end,) = events(complete(stream=True), b"data: " + json.dumps(told).encode() + b"\n\n")
    assert isinstance(end, Failed)
    assert (end.error.kind, end.error.param) == (kind, param)


@pytest.mark.parametrize("prompts", [("",), ("hi", ""), ((),)])
def test_several_choices_of_an_empty_prompt_are_refused(prompts: tuple[Any, ...]) -> None:
    """The engine would never answer."""
    error = raised(BACKEND.write, complete(*prompts, n=2), CAN)
    assert (error.kind, error.param) == (Kind.UNSUPPORTED, "n")
    BACKEND.write(complete(*prompts), CAN)
