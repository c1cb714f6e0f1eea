"""Replies of the backend `openai`, streamed and whole, and its errors. Streams of every form:
tests/laws/conformance."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.events import Delta, End, Event, Failed, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.http import Response
from gateway.core.lifecycle import checked, fold
from gateway.core.messages import Beams, Chat, Complete, Embed
from gateway.core.usage import Usage
from tests.support.raised import failed, raised
from tests.unit.backends.openai.exchange import BACKEND, chat, text


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


def test_a_fingerprint_of_the_last_chunk_is_the_replys() -> None:
    found = streamed(chunk(content="a"), chunk("stop"), {"choices": [], "system_fingerprint": "fp"})
    assert found[0] == Start("x", "sim", 1, None)
    assert found[-1] == End("fp")
    assert fold(found).start.fingerprint == "fp"


def test_legacy_function_calls_are_tool_calls() -> None:
    found = fold(
        streamed(chunk(function_call={"name": "f"}), chunk("function_call", function_call={"arguments": "{}"}))
    )
    (call,) = found.choices[0].calls
    assert (call.name, call.text) == ("f", "{}")
    assert call.call_id is not None
    assert call.call_id.startswith("call_")
    assert found.choices[0].reason == "tool_calls"


def piece(arguments: str = "", /, **members: Any) -> dict[str, Any]:
    """Of a tool call; `name` is its function's."""
    function = {"name": members.pop("name", None), "arguments": arguments}
    return {**members, "function": function}


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([[piece("1", index=0, id="a", name="f"), piece("2", index=1, id="b", name="g")]], id="together"),
        pytest.param([[piece("1", id="a", name="f"), piece("2", id="b", name="g")]], id="together, no index"),
        pytest.param(
            [[piece(id="a", name="f"), piece(id="b", name="g")], [piece("1"), piece("2")]], id="by their places"
        ),
        pytest.param([[piece("1", id="a", name="f")], [piece("2", id="b", name="g")]], id="no index"),
        pytest.param(
            [[piece("1", index=0, id="a", name="f")], [piece("2", index=0, id="b", name="g")]], id="index 0 for all"
        ),
        pytest.param(
            [
                [piece(index=0, id="a", name="f")],
                [piece("1", index=0)],
                [piece(id="b", index=0, name="g")],
                [piece("2", index=0, id="")],
            ],
            id="index 0 for all, in pieces",
        ),
        pytest.param(
            [[piece(id="a", name="f")], [piece("1")], [piece(id="b", name="g")], [piece("2")]], id="no index, in pieces"
        ),
        pytest.param(
            [[piece(id="a", name="f")], [piece(id="b", name="g")], [piece("1", id="a")], [piece("2", id="b")]],
            id="no index, interleaved",
        ),
        pytest.param(
            [
                [piece(index=0, id="a", name="f")],
                [piece(index=1, id="b", name="g")],
                [piece("2", index=1, id="x")],
                [piece("1", index=0, id="y")],
            ],
            id="a new id for every piece",
        ),
        pytest.param(
            [
                [piece(index=0, id="a", name="f")],
                [piece("1", index=0, id="a", name="f")],
                [piece("2", index=1, id="b", name="g")],
            ],
            id="id and name in every piece",
        ),
    ],
)
def test_calls_side_by_side_stay_apart(chunks: list[list[dict[str, Any]]]) -> None:
    found = fold(streamed(*(chunk(tool_calls=pieces) for pieces in chunks), chunk("tool_calls")))
    assert [(call.call_id, call.name, call.text) for call in found.choices[0].calls] == [
        ("a", "f", "1"),
        ("b", "g", "2"),
    ]


def test_calls_of_one_function_are_told_apart_by_their_ids() -> None:
    said = [[piece("1", index=0, id=one, name="f")] for one in ("a", "b")]
    found = fold(streamed(*(chunk(tool_calls=pieces) for pieces in said), chunk("tool_calls")))
    assert [call.call_id for call in found.choices[0].calls] == ["a", "b"]


@pytest.mark.parametrize("numbers", [{"index": 0}, {}])
def test_calls_without_ids_are_told_apart_by_their_names(numbers: dict[str, int]) -> None:
    said = [[piece("1", name="f", **numbers)], [piece("2", name="g", **numbers)], [piece("3", **numbers)]]
    calls = fold(streamed(*(chunk(tool_calls=pieces) for pieces in said), chunk("tool_calls"))).choices[0].calls
    assert [(call.name, call.text) for call in calls] == [("f", "1"), ("g", "23")]
    assert len({call.call_id for call in calls}) == 2
    assert all(call.call_id for call in calls)


@pytest.mark.parametrize("indices", [(0, 0), (None, None), (1, 0)])
def test_in_a_whole_reply_every_call_is_its_own(indices: tuple[int | None, ...]) -> None:
    calls = [piece(text, index=index, id="a", name="f") for text, index in zip("12", indices, strict=True)]
    found = fold(whole(chosen({"tool_calls": calls}, "tool_calls"), chat()))
    assert [call.text for call in found.choices[0].calls] == ["1", "2"]


def test_nulls_everywhere_are_absent() -> None:
    nulls = {"content": None, "reasoning": None, "tool_calls": None, "refusal": None, "function_call": None}
    found = streamed({**chunk(**nulls), "usage": None, "error": None}, chunk("stop", **nulls))
    assert [type(event) for event in found] == [Start, Finish, End]


def test_an_empty_reason_is_none() -> None:
    """LocalAI's chunks have one until the last."""
    said = [chunk("", content="a"), chunk("", content="b"), chunk("", content="c"), chunk("length", content="")]
    reply = fold(streamed(*said))
    assert (reply.choices[0].text(), reply.choices[0].reason) == ("abc", "length")
    texts = [
        {"choices": [{"text": text, "finish_reason": word}]} for text, word in (("a", ""), ("b", ""), ("", "stop"))
    ]
    assert fold(streamed(*texts, op=text())).choices[0].text() == "ab"
    assert fold(whole(chosen({"content": "a"}, ""), chat())).choices[0].text() == "a"


def test_what_is_empty_may_come_after_the_end() -> None:
    calls = [piece(index=0)]
    late = [chunk(content=""), chunk("stop"), chunk(), chunk(role="assistant", tool_calls=calls), chunk("length")]
    bare = {"choices": [{"index": 0, "finish_reason": "stop"}]}
    usage = {**chunk(content=""), "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    found = streamed(chunk(content="a"), chunk("stop"), *late, bare, usage)
    assert isinstance(found[-2], UsageReport)
    assert (fold(found).choices[0].text(), fold(found).choices[0].reason) == ("a", "stop")


@pytest.mark.parametrize(
    "late",
    [
        {"content": "b"},
        {"reasoning": "b"},
        {"reasoning_content": "b"},
        {"refusal": "b"},
        {"tool_calls": [piece("b", index=0)]},
        {"tool_calls": [piece(index=0, name="f")]},
        {"function_call": {"arguments": "b"}},
    ],
)
def test_what_comes_after_a_choices_end_is_not_lost_in_silence(late: dict[str, Any]) -> None:
    assert code(streamed(chunk(content="a"), chunk("stop"), chunk(**late))) == "upstream_malformed"


def test_text_after_the_end_of_a_text_completion_is_not_lost_in_silence() -> None:
    said = [{"choices": [{"text": text, "finish_reason": "stop"}]} for text in ("a", "")]
    assert fold(streamed(*said, op=text())).choices[0].text() == "a"
    assert code(streamed(*said, said[0], op=text())) == "upstream_malformed"


def whole(body: Any, op: Chat | Complete) -> list[Event]:
    return list(checked(BACKEND.read(Response(200, [], json.dumps(body).encode()), op)))


def chosen(*says: Any) -> dict[str, Any]:
    """A whole chat completion: a message and its reason, and so on."""
    pairs = zip(says[::2], says[1::2], strict=True)
    choices = [
        {"index": index, "message": message, "finish_reason": word} for index, (message, word) in enumerate(pairs)
    ]
    return {"id": "x", "model": "sim", "created": 1, "choices": choices}


def texts(count: int) -> dict[str, Any]:
    return {"choices": [{"index": index, "text": "a", "finish_reason": "stop"} for index in range(count)]}


def code(events: list[Event]) -> str | None:
    """What they failed with."""
    last = events[-1]
    return last.error.code or last.error.kind.value if isinstance(last, Failed) else None


A = {"content": "a"}
TWO = Complete(model="m", prompts=("a", "b"), n=2)
BEAMS = Complete(model="m", prompts=("a",), beams=Beams(3))


@pytest.mark.parametrize(
    ("op", "there", "failure"),
    [
        (chat(), 0, "upstream_malformed"),
        (chat(), 2, "upstream_malformed"),
        (chat(n=2), 1, "upstream_malformed"),
        (chat(n=2), 2, None),
        (chat(n=2), 3, "upstream_malformed"),
        (text(), 2, "upstream_malformed"),
        (TWO, 2, "upstream_malformed"),
        (TWO, 4, None),
        (TWO, 5, "upstream_malformed"),
        (BEAMS, 1, None),
        (BEAMS, 3, None),
        (BEAMS, 4, "upstream_malformed"),
    ],
)
def test_a_reply_has_as_many_choices_as_were_asked_for(op: Chat | Complete, there: int, failure: str | None) -> None:
    body = chosen(*(A, "stop") * there) if isinstance(op, Chat) else texts(there)
    assert code(whole(body, op)) == failure
    # At the mark of a stream's end, what is not there was cut away.
    chunks = [chunk("stop", index, **A) for index in range(there)] if isinstance(op, Chat) else [texts(there)]
    least = 1 if op is BEAMS else op.n * (len(op.prompts) if isinstance(op, Complete) else 1)
    assert code(streamed(*chunks, op=op)) == ("upstream_truncated" if there < least else failure)


@pytest.mark.parametrize("choice", [{}, {"finish_reason": "stop"}, {"index": 0, "finish_reason": "stop", "delta": {}}])
def test_a_whole_choice_that_has_nothing_is_no_reply(choice: dict[str, Any]) -> None:
    for op in (chat(), text()):
        assert code(whole({"choices": [choice]}, op)) == "upstream_malformed"


def test_a_stream_may_end_a_choice_without_a_delta() -> None:
    found = fold(streamed(chunk(content="a"), {"choices": [{"index": 0, "finish_reason": "length"}]}))
    assert (found.choices[0].text(), found.choices[0].reason) == ("a", "length")


@pytest.mark.parametrize(("op", "prefix"), [(chat(), "chatcmpl-"), (text(), "cmpl-")])
@pytest.mark.parametrize("said", [{}, {"id": None}, {"id": ""}])
def test_a_reply_without_an_id_is_given_one(op: Chat | Complete, prefix: str, said: dict[str, Any]) -> None:
    body = {**(chosen(A, "stop") if isinstance(op, Chat) else texts(1)), **said}
    if not said:
        body.pop("id", None)
    ids = {fold(whole(body, op)).start.id for _ in range(2)}
    assert len(ids) == 2
    assert all(one.startswith(prefix) and len(one) == len(prefix) + 24 for one in ids)


@pytest.mark.parametrize("word", ["abort", "error"])
def test_a_generation_given_up_is_a_failure(word: str) -> None:
    assert failed(streamed(chunk(content="a"), chunk(word))).code == "upstream_aborted"


def test_a_whole_reply_without_a_reason_has_ended() -> None:
    whole = {"choices": [{"message": {"content": "a"}}], "created": 1}
    reply = fold(BACKEND.read(Response(200, [], json.dumps(whole).encode()), chat()))
    assert (reply.choices[0].text(), reply.choices[0].reason) == ("a", "stop")


def test_what_has_no_canonical_name_is_kept() -> None:
    whole = {"choices": [{"text": "a", "finish_reason": "stop", "prompt_logprobs": [None]}], "kv_transfer_params": {}}
    reply = fold(BACKEND.read(Response(200, [], json.dumps(whole).encode()), text()))
    assert reply.start.extra == {"kv_transfer_params": Raw(b"{}")}
    assert reply.choices[0].extra == {"prompt_logprobs": Raw(b"[null]")}


@pytest.mark.parametrize("there", [0, 1, 3])
def test_every_input_has_its_vector(there: int) -> None:
    said = {"data": [{"index": index, "embedding": [0.5]} for index in range(there)]}
    with pytest.raises(GatewayError) as caught:
        BACKEND.read_embeddings(Response(200, [], json.dumps(said).encode()), Embed(model="m", inputs=("a", "b")))
    assert caught.value.code == "upstream_malformed"


def test_embeddings_are_put_in_order() -> None:
    said = {"data": [{"index": 1, "embedding": [2.50]}, {"index": 0, "embedding": [1.0]}], "model": "sim"}
    found = BACKEND.read_embeddings(Response(200, [], json.dumps(said).encode()), Embed(model="m", inputs=("a", "b")))
    assert found.vectors == (Raw(b"[1.0]"), Raw(b"[2.5]"))
    assert (found.model, found.usage) == ("sim", None)


@pytest.mark.parametrize("said", [b"", b"<p>", b"{}", b'{"data":7}', b'{"data":[{}]}', b'{"error":"x"}'])
def test_what_are_no_embeddings(said: bytes) -> None:
    error = raised(BACKEND.read_embeddings, Response(200, [], said), Embed(model="m", inputs=("a",)))
    assert error.blame is Blame.WORKER


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "said", "kind", "words", "cause"),
    [
        (400, {"message": "flat"}, Kind.BAD_REQUEST, "flat", None),
        (422, {"detail": [{"loc": ["n"]}]}, Kind.BAD_REQUEST, '[{"loc": ["n"]}]', None),
        (400, {"error": "text"}, Kind.BAD_REQUEST, "text", None),
        (400, {"error": {"message": "maximum context length is 5"}}, Kind.CONTEXT_LENGTH, "context length", None),
        (413, {}, Kind.TOO_LARGE, "too large", None),
        (501, {"error": "no"}, Kind.UNSUPPORTED, "no", None),
        (429, {"error": "secret"}, Kind.OVERLOADED, "overloaded", "overloaded"),
        (503, {"error": "secret"}, Kind.OVERLOADED, "overloaded", "overloaded"),
        (529, {"error": "secret"}, Kind.OVERLOADED, "overloaded", "overloaded"),
        (409, {"error": "secret"}, Kind.OVERLOADED, "overloaded", "not_now"),
        (401, {"error": "secret"}, Kind.UPSTREAM, "rejected", "key_refused"),
        (402, {"error": "secret"}, Kind.UPSTREAM, "rejected", "no_credit"),
        (403, {"error": "secret"}, Kind.UPSTREAM, "rejected", "forbidden"),
        (404, {"error": "secret"}, Kind.UPSTREAM, "rejected", "wrong_path"),
        (404, {"error": "the model secret does not exist"}, Kind.UPSTREAM, "rejected", "unknown_model"),
        (418, {"error": "secret"}, Kind.UPSTREAM, "rejected", "rejected"),
        (204, {}, Kind.UPSTREAM, "no reply to it (204)", "malformed"),
        (302, {}, Kind.UPSTREAM, "rejected", "redirected"),
        (500, {"error": "secret"}, Kind.UPSTREAM, "(500)", "failed"),
    ],
)
def test_what_a_worker_answers_means(status: int, said: Any, kind: Kind, words: str, cause: str | None) -> None:
    error = BACKEND.fault(Response(status, [], json.dumps(said).encode()))
    assert (error.kind, error.upstream, error.retryable) == (kind, status, True)
    assert (error.cause.value if error.cause is not None else None) == cause
    assert words in error.message
    assert "secret" not in error.message
    if "secret" in str(said):
        assert "secret" in (error.detail or "")


@pytest.mark.parametrize(
    ("text", "param", "found"),
    [("m is not a multimodal model", None, "messages"), ("is not a multimodal model", "n", "n")],
)
def test_the_parameter_of_an_error_is_the_workers_own_or_found_in_its_words(
    text: str, param: str | None, found: str
) -> None:
    error = BACKEND.fault(Response(400, [], json.dumps({"error": {"message": text, "param": param}}).encode()))
    assert (error.kind, error.message, error.param) == (Kind.BAD_REQUEST, text, found)


@pytest.mark.parametrize(("said", "after"), [(b"7", 7.0), (b"Wed, 21 Oct 2026", 1.0), (b"", 1.0)])
def test_how_long_a_busy_worker_wants_to_be_left_alone(said: bytes, after: float) -> None:
    assert BACKEND.fault(Response(429, [(b"retry-after", said)], b"{}")).retry_after == after
