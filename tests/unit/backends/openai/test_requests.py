"""What a worker of OpenAI's wire is asked, by the backend `openai`; and what it is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from gateway.core.errors import GatewayError, Kind
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
from gateway.wire.json import encode
from gateway.wire.openai.requests.parts import write_message
from tests.support.raised import raised
from tests.unit.backends.openai.exchange import BACKEND, CAN, chat, text


def body(op: Op) -> Any:
    request = BACKEND.write(op, CAN)
    assert request.method == "POST"
    assert request.headers == [(b"content-type", b"application/json")]
    return json.loads(request.body)


def refused(op: Op) -> str | None:
    error = raised(BACKEND.write, op, CAN)
    assert error.kind is Kind.UNSUPPORTED
    return error.param


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
        ({"stop_tokens": (1,)}, "stop_token_ids"),
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
        ({"want_tokens": True}, "tokens"),
    ],
)
def test_completions_beyond_openai_are_refused(members: dict[str, Any], param: str) -> None:
    assert refused(text(**members)) == param


@pytest.mark.parametrize(
    ("members", "param"), [({"max_total": 9}, "max_total_tokens"), ({"min_total": 9}, "min_total_tokens")]
)
def test_no_word_tells_how_long_a_prompt_is(members: dict[str, Any], param: str) -> None:
    error = raised(BACKEND.count, text(**members), CAN)
    assert (error.kind, error.param) == (Kind.UNSUPPORTED, param)


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
    assert json.loads(encode(write_message(message))) == json.loads(encode(expected))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('{"a":1.0}', '{"a":1.0}'),
        ("", "{}"),
        (" \n", "{}"),
        ('{"a":', '{"_raw":"{\\"a\\":"}'),
        ("{'a': 1}", '{"_raw":"{\'a\': 1}"}'),
        ("[1]", '{"_raw":"[1]"}'),
        ("[" * 5000, '{"_raw":"' + "[" * 5000 + '"}'),
    ],
)
def test_arguments_of_a_former_call_are_an_object(arguments: str, told: str) -> None:
    """Else a template may fail on this and every later request of the conversation, and the worker seem to fail."""
    written = json.loads(encode(write_message(Message("assistant", (ToolCall("1", "f", arguments),)))))
    assert written["tool_calls"][0]["function"]["arguments"] == told


def test_a_reply_that_goes_on_with_the_last_message_is_beyond_this_wire() -> None:
    with pytest.raises(GatewayError, match=r"messages\.1") as caught:
        BACKEND.write(
            Chat(
                model="m",
                messages=(Message("user", (Text("u"),)), Message("assistant", (Text("a"),))),
                continue_last=True,
            ),
            CAN,
        )
    assert caught.value.kind is Kind.UNSUPPORTED
