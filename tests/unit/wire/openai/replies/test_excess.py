"""Lists in a worker's reply that have too many entries are refused before any entry is looked at."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.backends.llamacpp.replies import TextReader as LlamaCppText
from gateway.backends.tgi.replies import TextReader as TgiText
from gateway.core.errors import GatewayError
from gateway.core.events import End, Event, Failed, PartStart, Start
from gateway.core.http import Response
from gateway.core.messages import Chat, Complete, Embed, Logprobs, Score
from gateway.wire.bulk import MOST_NESTED
from gateway.wire.openai.replies.excess import MOST_CALLS, MOST_TOKENS, ORDINARY_BYTES, refuse_excess, refuse_longer
from gateway.wire.openai.replies.reading import read_embeddings, reader_of
from gateway.wire.openai.replies.whole import whole
from gateway.wire.openai.scores import read_scores
from gateway.wire.openai.streams.passthrough import Passthrough
from tests.support.steps import steps

CODE = "upstream_malformed"
TOLD = Complete(model="m", prompts=("hi",), logprobs=Logprobs(20))
TOKEN = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": [{"token": "a", "logprob": -1.0}] * 5}
PADDED = {"id": "x" * ORDINARY_BYTES}
"""Makes any chunk larger than an ordinary one."""


def chat(n: int = 1) -> Chat:
    return Chat(model="m", messages=(), n=n)


def text(n: int = 1) -> Complete:
    return Complete(model="m", prompts=("hi",), n=n)


def framed(said: Any) -> bytes:
    return b"data: " + msgspec.json.encode(said) + b"\n\n"


def choices(count: int, **more: Any) -> dict[str, Any]:
    return {**PADDED, "choices": [{"index": 0, "text": "", "delta": {}, **more} for _ in range(count)]}


def calling(*pieces: dict[str, Any]) -> dict[str, Any]:
    return {**PADDED, "choices": [{"index": 0, "delta": {"tool_calls": pieces}}]}


def events(op: Chat | Complete, *blocks: bytes) -> list[Event]:
    reader = reader_of(op)
    return [event for block in blocks for event in reader.feed(block)]


def relayed(op: Chat | Complete, *blocks: bytes) -> tuple[str | None, bytes]:
    """(the code of the error that ended the passthrough lane, what the client was sent)."""
    lane = Passthrough(lambda error: b"").lane(op)
    out = b"".join(map(lane.feed, blocks))
    return (lane.error.code if lane.error is not None else None), out


def code_of(found: list[Event]) -> str | None:
    """The code of the failure that `found` ends with."""
    return found[-1].error.code if found and isinstance(found[-1], Failed) else None


def refused(data: bytes, count: int) -> bool:
    try:
        refuse_excess(data, count)
    except GatewayError as error:
        return error.code == CODE
    return False


@settings(deadline=None)
@given(st.integers(1, 700), st.integers(0, 3000), st.sampled_from(["choices", "index", "id"]))
@example(1, 64, "id")
@example(1, 65, "id")
@example(512, 1024, "id")
@example(512, 1025, "id")
def test_as_many_choices_as_were_asked_for_are_read_and_far_more_are_not(asked: int, sent: int, first: str) -> None:
    data = msgspec.json.encode({first: 0 if first != "choices" else [], "choices": [{}] * sent})
    outcome = refused(data, asked)
    if sent <= asked:
        assert not outcome
    if sent > max(64, 4 * asked) and asked <= 512:
        assert outcome


@settings(deadline=None)
@given(st.integers(0, 3 * MOST_CALLS), st.sampled_from(["delta", "message"]))
@example(MOST_CALLS, "delta")
@example(MOST_CALLS + 1, "message")
def test_tool_calls_have_a_bound(sent: int, holder: str) -> None:
    data = msgspec.json.encode({"choices": [{holder: {"tool_calls": [{}] * sent}}]})
    assert refused(data, 1) is (sent > MOST_CALLS)


@pytest.mark.parametrize("op", [chat(), text(), chat(4)])
def test_a_crowd_of_choices_of_one_index_says_nothing(op: Chat | Complete) -> None:
    """They were decoded, rewritten and told one by one, because only different indices counted."""
    block = framed(choices(50_000))
    assert [type(event) for event in events(op, block)] == [Failed]
    assert code_of(events(op, block)) == CODE
    assert relayed(op, block) == (CODE, b"")


@pytest.mark.parametrize("piece", [{}, {"index": 0}, {"id": "a"}, {"function": {"name": "f"}}])
def test_a_crowd_of_pieces_of_calls_says_nothing(piece: dict[str, Any]) -> None:
    block = framed(calling(*[piece] * (MOST_CALLS + 1)))
    assert [type(event) for event in events(chat(), block)] == [Failed]
    assert relayed(chat(), block) == (CODE, b"")


def test_a_choice_has_a_bound_of_calls_however_they_are_cut_into_chunks() -> None:
    blocks = [framed(calling({"index": at, "id": f"c{at}", "function": {"name": "f"}})) for at in range(MOST_CALLS + 1)]
    found = events(chat(), *blocks)
    assert sum(isinstance(event, PartStart) for event in found) == MOST_CALLS
    assert code_of(found) == CODE
    code, out = relayed(chat(), *blocks)
    assert (code, out.count(b'"f"')) == (CODE, MOST_CALLS)


@pytest.mark.long
def test_three_times_as_many_calls_are_three_times_the_work() -> None:
    """Each id was compared with those of all calls before it."""

    def work(count: int) -> int:
        pieces = [{"id": f"c{at}", "function": {"name": "f", "arguments": "{}"}} for at in range(count)]
        return steps(lambda: (events(chat(), framed(calling(*pieces))), relayed(chat(), framed(calling(*pieces)))))

    work(10)  # what is looked up once is looked up
    assert work(900) < 4 * work(300)


def test_a_whole_reply_has_the_same_bounds() -> None:
    crowd = choices(50_000, finish_reason="stop", message={"role": "assistant", "content": "a"})
    calls = {"choices": [{"message": {"content": "", "tool_calls": [{"id": "a"}] * (MOST_CALLS + 1)}}], **PADDED}
    for said in (crowd, calls):
        body = msgspec.json.encode(said)
        found = list(reader_of(chat()).whole(body))
        assert [type(event) for event in found] == [Failed]
        assert code_of(found) == CODE
        with pytest.raises(GatewayError) as error:
            whole(body, chat())
        assert error.value.code == CODE


def test_large_replies_within_the_bounds_are_read() -> None:
    """A long text, the most choices, lone surrogates, an error object: a first pass refuses none of them."""
    many = [{"index": at, "delta": {"role": "assistant", "content": "a" * 100}} for at in range(128)]
    found = events(chat(128), framed({"id": "x", "choices": many}))
    assert sum(isinstance(event, PartStart) for event in found) == 128
    long = framed({"id": "x", "choices": [{"index": 0, "delta": {"content": "[{," * ORDINARY_BYTES}}]})
    assert type(events(chat(), long)[0]) is Start
    assert relayed(chat(), long)[0] is None
    half = json.dumps({**PADDED, "choices": [{"index": 0, "delta": {"content": "\ud83d"}}]}).encode()
    code, out = relayed(chat(), b"data: " + half + b"\n\n")
    assert code is None
    assert rb"\ud83d" in out
    failing = framed({**PADDED, "error": {"message": "no", "code": 400}})
    (failed,) = events(chat(), failing)
    assert isinstance(failed, Failed)
    assert failed.error.message == "no"


def test_values_of_a_chunk_have_a_bound_that_is_higher_with_logprobs() -> None:
    nested = framed({"id": "x", "choices": [], "more": [{}] * (MOST_NESTED + 1)})
    told = framed({"choices": [{"delta": {"content": "a"}, "logprobs": {"content": [TOKEN] * 5000}}]})
    for block in (nested, told):
        assert [type(event) for event in events(chat(), block)] == [Failed]
        assert relayed(chat(), block) == (CODE, b"")
    asking = Chat(model="m", messages=(), logprobs=Logprobs(5))
    assert code_of(events(asking, told)) is None
    assert relayed(asking, told)[0] is None
    for op in (TOLD, asking):
        much = framed({"choices": [], "more": [{}] * (8 * MOST_NESTED + 1)})
        assert code_of(events(op, much)) == CODE


@pytest.mark.parametrize("tops", [0, 20])
def test_logprobs_of_a_text_have_a_bound_in_a_chunk(tops: int) -> None:
    """They are looked at token by token. A prompt that is echoed has as many as it may have tokens."""

    def block(tokens: int) -> bytes:
        told = {"tokens": ["a"] * tokens, "top_logprobs": [{f"t{at}": -1.0 for at in range(tops)}] * tokens}
        return framed({"choices": [{"index": 0, "text": "a", "logprobs": told}]})

    assert code_of(events(TOLD, block(MOST_TOKENS))) is None
    assert code_of(events(TOLD, block(MOST_TOKENS + 1))) == CODE
    echoing = Complete(model="m", prompts=("word " * 100,), logprobs=Logprobs(20), echo=True)
    assert code_of(events(echoing, block(MOST_TOKENS + 500))) is None
    crowd = {"tokens": ["a"], "top_logprobs": [{f"t{at}": -1.0 for at in range(32 * MOST_TOKENS + 1)}]}
    assert code_of(events(TOLD, framed({"choices": [{"text": "a", "logprobs": crowd}]}))) == CODE


@pytest.mark.parametrize("count", [MOST_TOKENS, MOST_TOKENS + 1])
def test_logprobs_of_a_text_have_a_bound_in_a_chunk_of_any_engine(count: int) -> None:
    token, prob = {"id": 1, "text": "a", "logprob": -1.0}, {"token": "a", "logprob": -1.0}
    details = {"finish_reason": "length", "generated_tokens": 1}
    ending = {"generated_text": "a", "details": {**details, "tokens": [token] * count}}
    for reader, said in (
        (TgiText(TOLD), {"token": token, "top_tokens": [token] * count}),
        (TgiText(TOLD), ending),
        (LlamaCppText(TOLD), {"content": "a", "completion_probabilities": [prob] * count}),
    ):
        assert code_of(list(reader.feed(framed(said)))) == (CODE if count > MOST_TOKENS else None)


def test_rows_of_a_whole_reply_have_a_bound() -> None:
    """Of vectors, of scores, and of llama.cpp's choices: a crowd of them is refused at its first entry too many."""
    op = Embed(model="m", inputs=("a", "b"))
    for name in ("data", "results"):
        crowd = msgspec.json.encode({name: [{"index": 0, "embedding": [0.5]}] * 20_000})
        assert longer(crowd, 2)
    response = Response(200, [], msgspec.json.encode({"data": [{"embedding": [0.5] * 9}] * 20_000}))
    for read in (lambda: read_embeddings(response, op), lambda: whole(response.body, op)):
        with pytest.raises(GatewayError) as error:
            read()
        assert error.value.code == CODE
    scored = Response(200, [], msgspec.json.encode({"results": [{"index": 0, "score": 0.5}] * 20_000}))
    with pytest.raises(GatewayError) as error:
        read_scores(scored, Score(model="m", queries=("a",), documents=("b",)))
    assert error.value.code == CODE
    body = msgspec.json.encode([{"content": "a", "stop": True, "stop_type": "eos"}] * 20_000)
    (failed,) = LlamaCppText(text()).whole(body)
    assert isinstance(failed, Failed)
    assert failed.error.code == CODE
    (failed,) = LlamaCppText(text()).feed(framed({"content": "a", "more": [{}] * (MOST_NESTED + 1)}))
    assert isinstance(failed, Failed)
    assert failed.error.code == CODE


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(0, 5000), st.booleans())
def test_as_many_rows_as_were_asked_for_are_read_and_far_more_are_not(asked: int, sent: int, bare: bool) -> None:
    rows: Any = [{}] * sent
    body = msgspec.json.encode(rows if bare else {"data": rows}).ljust((1 << 18) + 1)  # only large ones are counted
    outcome = longer(body, asked)
    if sent <= asked:
        assert not outcome
    if sent > max(64, 2 * asked):
        assert outcome


def longer(body: bytes, asked: int) -> bool:
    try:
        refuse_longer(body, asked)
    except GatewayError as error:
        return error.code == CODE
    return False


def test_large_rows_within_the_bounds_are_read() -> None:
    vectors = [{"index": at, "embedding": [0.5] * 1000} for at in range(100)]
    op = Embed(model="m", inputs=("a",) * 100)
    response = Response(200, [], msgspec.json.encode({"data": vectors, "model": "m"}))
    assert len(read_embeddings(response, op).vectors) == 100
    assert whole(response.body, op)[0] == response.body
    stops = [{"index": at, "content": "a" * 9000, "stop": True, "stop_type": "eos"} for at in range(100)]
    found = list(LlamaCppText(text(100)).whole(msgspec.json.encode(stops)))
    assert isinstance(found[-1], End)


def test_an_ordinary_chunk_has_no_first_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    for module in ("gateway.wire.openai.streams.reading", "gateway.wire.openai.streams.passthrough"):
        monkeypatch.setattr(f"{module}.refuse_bulky", lambda data, *asked: passes.append(len(data)))
    small = {"id": "x", "choices": [{"index": 0, "delta": {"content": "a" * 4000}}]}
    events(chat(), framed(small))
    relayed(chat(), framed(small))
    assert passes == []
    events(chat(), framed({**small, **PADDED}))
    relayed(chat(), framed({**small, **PADDED}))
    assert len(passes) == 2
    assert min(passes) > ORDINARY_BYTES
