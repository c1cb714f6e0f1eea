"""Backend `openai`: the worker's request, its replies and its errors. Streams of every form: tests/conformance."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from gateway.backends.openai import OpenAI, write_message
from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.events import Delta, End, Event, Failed, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.http import Response
from gateway.core.lifecycle import checked, fold
from gateway.core.messages import (
    Audio,
    Beams,
    Chat,
    Complete,
    Embed,
    Image,
    Logprobs,
    Message,
    NamedTool,
    Op,
    Opaque,
    Output,
    Refusal,
    Sampling,
    Text,
    Thinking,
    Tool,
    ToolCall,
)
from gateway.core.ports import Capabilities
from gateway.core.usage import Usage

BACKEND = OpenAI()
CAN = Capabilities("sim")
HI = (Message("user", (Text("hi"),)),)


def body(op: Op) -> Any:
    request = BACKEND.write(op, CAN)
    assert request.method == "POST"
    assert request.headers == [(b"content-type", b"application/json")]
    return json.loads(request.body)


def refused(op: Op) -> str | None:
    with pytest.raises(GatewayError) as caught:
        BACKEND.write(op, CAN)
    assert caught.value.kind is Kind.UNSUPPORTED
    return caught.value.param


def chat(**members: Any) -> Chat:
    return Chat(model="m", messages=HI, **members)


def text(**members: Any) -> Complete:
    return Complete(model="m", prompts=("hi",), **members)


# -- requests -------------------------------------------------------------------------------------------------------


def test_each_operation_has_its_path() -> None:
    ops: dict[str, Op] = {
        "/v1/chat/completions": chat(),
        "/v1/completions": text(),
        "/v1/embeddings": Embed(model="m", inputs=("a",)),
    }
    assert [BACKEND.write(op, CAN).path for op in ops.values()] == list(ops)


def test_what_was_not_said_is_not_sent() -> None:
    assert body(chat()) == {"messages": [{"role": "user", "content": "hi"}], "model": "sim"}
    assert body(text()) == {"prompt": "hi", "model": "sim"}
    assert body(Embed(model="m", inputs=("a",))) == {"input": "a", "model": "sim"}


def test_a_client_of_the_same_wire_is_forwarded_as_it_spoke() -> None:
    raw = {"model": Raw(b'"m"'), "messages": Raw(b'[{"role":"user","zz":1.10}]'), "unknown": Raw(b"[1, 2]")}
    request = BACKEND.write(chat(raw=raw, wire="openai"), CAN)
    assert request.body == b'{"model":"sim","messages":[{"role":"user","zz":1.10}],"unknown":[1, 2]}'
    assert body(chat(raw=raw, wire="another")) == body(chat())


def test_usage_is_always_asked_of_a_stream() -> None:
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    assert body(chat(stream=True)) == {**body(chat()), **asked}
    raw = {"stream_options": Raw(b'{"include_usage":false,"other":1}')}
    found = body(chat(stream=True, raw=raw, wire="openai"))
    assert found["stream_options"] == {"include_usage": True, "other": 1}


def test_all_that_a_chat_may_say() -> None:
    op = chat(
        max_output=5,
        sampling=Sampling(0.5, 0.9, seed=7, frequency_penalty=1.0, presence_penalty=-1.0, logit_bias={7: -1.0}),
        stop=("a", "b"),
        n=2,
        tools=(Tool("f", "d", Raw(b'{"type":"object"}'), True), Tool("g")),
        tool_choice=NamedTool("f"),
        parallel_tools=False,
        output=Output("schema", Raw(b"{}"), name="n", strict=True),
        reasoning="low",
        logprobs=Logprobs(2),
        user="u",
        extra={"top_x": Raw(b"1")},
    )
    assert body(op) == {
        "model": "sim",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
        "frequency_penalty": 1.0,
        "presence_penalty": -1.0,
        "logit_bias": {"7": -1.0},
        "stop": ["a", "b"],
        "n": 2,
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
            },
            {"type": "function", "function": {"name": "g"}},
        ],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}},
        "reasoning_effort": "low",
        "logprobs": True,
        "top_logprobs": 2,
        "user": "u",
        "top_x": 1,
    }


def test_what_has_no_canonical_name_is_written_where_it_stood() -> None:
    x = Raw(b'{"deep":1.0}')
    call = ToolCall("1", "f", "{}", {"index": x, "function": {"x": x}})
    message = Message(
        "user",
        (Text("a", {"x": x}), Image("u", None, {"image_url": {"x": x}}), Audio("d", "wav", {"x": x}), call),
        extra={"x": x},
    )
    refusals = (Text("b"), Refusal("c"), Refusal("d", {"x": x}))
    op = Chat(
        model="m",
        messages=(message, Message("assistant", refusals), Message("user", (Text("e", {"x": x}),))),
        tools=(Tool("f", extra={"x": x, "function": {"y": x}}),),
        tool_choice=NamedTool("f", {"function": {"x": x}}),
        output=Output("schema", Raw(b"{}"), name="n", description="d", extra={"x": x, "json_schema": {"y": x}}),
        stream=True,
        extra={"stream_options": Raw(b'{"x":1}')},
        unnamed=("max_tokens", "messages[].x"),
    )
    deep = {"deep": 1.0}
    assert body(op) == {
        "model": "sim",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "a", "x": deep},
                    {"type": "image_url", "image_url": {"url": "u", "x": deep}},
                    {"type": "input_audio", "input_audio": {"data": "d", "format": "wav"}, "x": deep},
                ],
                "tool_calls": [
                    {
                        "id": "1",
                        "type": "function",
                        "function": {"name": "f", "arguments": "{}", "x": deep},
                        "index": deep,
                    }
                ],
                "x": deep,
            },
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "b"}, {"type": "refusal", "refusal": "d", "x": deep}],
                "refusal": "c",
            },
            {"role": "user", "content": [{"type": "text", "text": "e", "x": deep}]},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "y": deep}, "x": deep}],
        "tool_choice": {"type": "function", "function": {"name": "f", "x": deep}},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {}, "description": "d", "y": deep},
            "x": deep,
        },
        "stream": True,
        "stream_options": {"x": 1, "include_usage": True},
    }
    assert BACKEND.write(op, CAN).dropped == ("max_tokens",)
    assert BACKEND.write(chat(raw={}, wire="openai", unnamed=("max_tokens",)), CAN).dropped == ()


@pytest.mark.parametrize(("kind", "word"), [("text", "text"), ("json", "json_object")])
def test_a_format_is_sent_for_what_stands_beside_its_type(kind: Any, word: str) -> None:
    assert body(chat(output=Output(kind, extra={"x": Raw(b"1")})))["response_format"] == {"type": word, "x": 1}


def test_all_that_a_completion_may_say() -> None:
    op = Complete(
        model="m", prompts=("a", "b"), echo=True, suffix="s", logprobs=Logprobs(0), max_output=0, seeds=(7, 8), n=2
    )
    assert body(op) == {
        "model": "sim",
        "prompt": ["a", "b"],
        "echo": True,
        "suffix": "s",
        "logprobs": 0,
        "max_tokens": 0,
        "seed": 7,
        "n": 2,
    }
    assert body(Complete(model="m", prompts=((1, 2),)))["prompt"] == [1, 2]


def test_all_that_embeddings_may_say() -> None:
    op = Embed(model="m", inputs=("a", "b"), encoding="float", dimensions=8, user="u", extra={"x": Raw(b"1")})
    assert body(op) == {
        "model": "sim",
        "input": ["a", "b"],
        "encoding_format": "float",
        "dimensions": 8,
        "user": "u",
        "x": 1,
    }


@pytest.mark.parametrize("kind", ["regex", "grammar", "choice"])
def test_output_beyond_openai_is_refused(kind: Any) -> None:
    assert refused(chat(output=Output(kind, pattern="a", choices=("a",)))) == "response_format"
    assert "response_format" not in body(chat(output=Output("text")))
    assert body(chat(output=Output("json")))["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"top_k": 5}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"min_tokens": 1}, "min_tokens"),
        ({"stop_tokens": (1,)}, "stop_tokens"),
        ({"bad_words": ("x",)}, "bad_words"),
        ({"ignore_eos": True}, "ignore_eos"),
    ],
)
def test_sampling_beyond_openai_is_refused(members: dict[str, Any], param: str) -> None:
    assert refused(chat(sampling=Sampling(**members))) == param


def test_sampling_that_changes_nothing_is_left_out() -> None:
    neutral = Sampling(top_k=0, min_p=0.0, repetition_penalty=1.0, min_tokens=0, no_repeat_ngram=0, ignore_eos=False)
    assert body(chat(sampling=neutral)) == body(chat())


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"beams": Beams(2)}, "num_beams"),
        ({"max_total": 9}, "max_total_tokens"),
        ({"min_total": 9}, "min_total_tokens"),
        ({"seeds": (7, 9), "n": 2}, "seed"),
        ({"want_tokens": True}, "tokens"),
    ],
)
def test_completions_beyond_openai_are_refused(members: dict[str, Any], param: str) -> None:
    assert refused(text(**members)) == param


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Message("user", (Text("a"),), name="ann"), {"role": "user", "content": "a", "name": "ann"}),
        (Message("user"), {"role": "user", "content": ""}),
        (
            Message("user", (Text("a"), Image("u", "low"), Audio("d", "wav"))),
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "image_url", "image_url": {"url": "u", "detail": "low"}},
                    {"type": "input_audio", "input_audio": {"data": "d", "format": "wav"}},
                ],
            },
        ),
        (Message("user", (Opaque("x", Raw(b"{}")),)), {"role": "user", "content": [Raw(b"{}")]}),
        (
            Message("assistant", (Thinking("hm"), Text("a"), ToolCall("1", "f", "{}"))),
            {
                "role": "assistant",
                "content": "a",
                "reasoning_content": "hm",
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
        ),
        (Message("assistant", (Refusal("no"),)), {"role": "assistant", "content": None, "refusal": "no"}),
        (Message("tool", (Text("x"),), None, "1"), {"role": "tool", "content": "x", "tool_call_id": "1"}),
    ],
)
def test_a_message(message: Message, expected: dict[str, Any]) -> None:
    assert write_message(message) == expected


# -- replies --------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("members", "param"), [({"max_total": 9}, "max_total_tokens"), ({"min_total": 9}, "min_total_tokens")]
)
def test_no_word_tells_how_long_a_prompt_is(members: dict[str, Any], param: str) -> None:
    with pytest.raises(GatewayError) as caught:
        BACKEND.count(text(**members), CAN)
    assert (caught.value.kind, caught.value.param) == (Kind.UNSUPPORTED, param)


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
