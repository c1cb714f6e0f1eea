"""What clients of OpenAI's wire send, in its canonical form; and what is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from gateway.core.errors import Kind
from gateway.core.fields import ExtrasPolicy
from gateway.core.messages import (
    Chat,
    Complete,
    Embed,
    Image,
    Logprobs,
    Message,
    NamedTool,
    Output,
    Text,
    Thinking,
    Tool,
    ToolCall,
)
from gateway.wire.openai.requests.reading import read_chat, read_text
from gateway.wire.openai.requests.views import LONGEST_PATTERN
from tests.support.raised import raised
from tests.unit.wire.openai.exchange import CALL, HI, TOOLS, chat, embed, refusal, text


def test_what_is_not_said_stays_unknown() -> None:
    op = chat()
    assert op == Chat(model=None, messages=(Message("user", (Text("hi"),)),), raw={}, wire="openai")
    assert text() == Complete(model=None, prompts=("hi",), raw={}, wire="openai")
    assert embed() == Embed(model=None, inputs=("hi",), raw={}, wire="openai")


def test_every_bias_of_what_is_no_token_is_named() -> None:
    error = refusal(chat, logit_bias={"bad1": 1, "7": 1, "bad2": 1})
    assert error.message == "'logit_bias' keys must be token ids, not 'bad1', 'bad2'"
    assert len(refusal(chat, logit_bias={"x" * 99 + str(n): 1 for n in range(99)}).message) < 700


def test_what_is_said_is_read() -> None:
    op = chat(
        model="m",
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        seed=-1,
        frequency_penalty=-2,
        presence_penalty=2,
        logit_bias={"7": -100},
        stop="END",
        n=2,
        user="u",
        tools=TOOLS,
        parallel_tool_calls=False,
        reasoning_effort="low",
        logprobs=True,
        top_logprobs=3,
    )
    assert (op.model, op.stream, op.include_usage, op.max_output, op.stop, op.n, op.user) == (
        "m",
        True,
        True,
        5,
        ("END",),
        2,
        "u",
    )
    assert (op.parallel_tools, op.reasoning, op.logprobs) == (False, "low", Logprobs(3))
    sampling = op.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0.5, 0.9, -1)
    assert (sampling.frequency_penalty, sampling.presence_penalty, sampling.logit_bias) == (-2, 2, {7: -100})


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_completion_tokens": 7}, 7),
        ({"max_tokens": 5}, 5),
        ({}, None),
    ],
)
def test_the_newer_name_of_the_limit_goes_first(members: dict[str, Any], expected: int | None) -> None:
    assert chat(**members).max_output == expected


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages.0.content.0"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.image_url"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages.0.tool_calls.0.function"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"frequency_penalty": 3}, "frequency_penalty"),
    ({"presence_penalty": -3}, "presence_penalty"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"1_0": 1}}, "logit_bias"),
    ({"logit_bias": {" 7": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"٣": 1}}, "logit_bias"),
    ({"logit_bias": {"7": 1, "1": 101}}, "logit_bias.1"),
    ({"logit_bias": {"7": 1, "1": "2"}}, "logit_bias.1"),
    ({"logit_bias": {"7": 1, "1": True}}, "logit_bias.1"),
    ({"seed": 2**63}, "seed"),
    ({"stop": 7}, "stop"),
    ({"stop": ["x"] * 65}, "stop"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"tools": [{"type": "function"}]}, "tools.0"),
    ({"tools": [{"type": "code", "function": {"name": "f"}}]}, "tools.0"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name"),
    ({"tool_choice": "f"}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"messages": [{"role": "assistant", "tool_calls": [{**CALL, "type": "x"}]}]}, "messages.0.tool_calls.0.type"),
]


@pytest.mark.parametrize(("members", "param"), WRONG)
def test_what_is_wrong_is_named(members: dict[str, Any], param: str) -> None:
    error = refusal(chat, **members)
    assert error.kind is Kind.BAD_REQUEST
    assert error.param == param
    assert error.code


@pytest.mark.parametrize("policy", ["pass", "drop", "error"])
@pytest.mark.parametrize(("members", "param"), WRONG)
def test_what_is_unknown_does_not_hide_what_is_wrong(members: dict[str, Any], param: str, policy: ExtrasPolicy) -> None:
    alone = refusal(chat, **members)
    given = members.get("messages", HI)
    if isinstance(given, list) and all(isinstance(message, dict) for message in given):
        members = {**members, "messages": [{**message, "x": 1} for message in given]}
    beside = refusal(chat, **{"response_format": {"type": "text", "x": 1}, **members}, policy=policy)
    assert (beside.kind, beside.message, beside.param) == (alone.kind, alone.message, alone.param)


@pytest.mark.parametrize("name", ["functions", "function_call"])
def test_deprecated_functions_are_refused(name: str) -> None:
    error = raised(read_chat, b'{"messages":[{"role":"user","content":"x"}]}', {name: Raw(b"[]")}, {}, ())
    assert (error.kind, error.param) == (Kind.UNSUPPORTED, name)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "text"}, Output("text")),
        ({"type": "json_object"}, Output("json")),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"a": 1}, "strict": True}},
            Output("schema", Raw(b'{"a": 1}'), name="n", strict=True),
        ),
    ],
)
def test_output_formats(given: dict[str, Any], expected: Output) -> None:
    assert chat(response_format=given).output == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a", ("a",)),
        ("", ("",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_prompts_in_four_forms(given: Any, expected: Any) -> None:
    assert text(prompt=given).prompts == expected
    assert embed(input=given).inputs == expected


@pytest.mark.parametrize("given", [["a", 1], [[1], "a"], [[]], [[-1]], [True], [1.5], {"a": 1}, 7])
def test_other_prompts_are_refused(given: Any) -> None:
    for read, name in ((text, "prompt"), (embed, "input")):
        error = refusal(read, **{name: given})
        assert error.kind is Kind.BAD_REQUEST
        assert (error.param or "").startswith(name)


def test_completions_have_members_of_their_own() -> None:
    op = text(echo=True, suffix="s", logprobs=0, n=2, best_of=2)
    assert (op.echo, op.suffix, op.logprobs, op.n) == (True, "s", Logprobs(0), 2)
    assert text().logprobs is None
    assert refusal(text, prompt=None).code == "missing_parameter"
    error = refusal(text, n=1, best_of=4)
    assert (error.kind, error.param) == (Kind.UNSUPPORTED, "best_of")


def test_embeddings_have_members_of_their_own() -> None:
    op = embed(model="m", encoding_format="base64", dimensions=8, user="u")
    assert (op.model, op.encoding, op.dimensions, op.user) == ("m", "base64", 8, "u")
    assert refusal(embed, encoding_format="hex").param == "encoding_format"
    assert refusal(embed, dimensions=0).param == "dimensions"
    assert refusal(embed, input=[]).param == "input"
    assert refusal(embed, input=["x"] * 2049).param == "input"


# -- what has no canonical name -------------------------------------------------------------------------------------

STRAYS: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "a", "x": 1},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c", "x": 2}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u", "x": 3}, "y": 4}]},
        {"role": "assistant", "reasoning": "hm", "content": "d", "tool_calls": [{**CALL, "index": 0}], "x": 5},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "x": 6}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}, "x": 7},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "description": "d", "x": 8}},
    "stream": True,
    "stream_options": {"include_usage": True, "x": 9},
}
NAMES = (
    "stream_options.x",
    "response_format.json_schema.x",
    "messages[].x",
    "messages[].content[].x",
    "messages[].content[].image_url.x",
    "messages[].content[].y",
    "messages[].tool_calls[].index",
    "tools[].function.x",
    "tool_choice.x",
)


def test_it_is_kept_where_it_stood() -> None:
    op = chat(**STRAYS)
    assert op.messages == (
        Message("user", (Text("a"),), extra={"x": Raw(b"1")}),
        Message("user", (Text("b"), Text("c", {"x": Raw(b"2")}))),
        Message("user", (Image("u", None, {"image_url": {"x": Raw(b"3")}, "y": Raw(b"4")}),)),
        Message(
            "assistant",
            (Thinking("hm"), Text("d"), ToolCall("1", "f", "", {"index": Raw(b"0")})),
            extra={"x": Raw(b"5")},
        ),
    )
    assert op.tools == (Tool("f", extra={"function": {"x": Raw(b"6")}}),)
    assert op.tool_choice == NamedTool("f", {"x": Raw(b"7")})
    assert op.output == Output("schema", name="n", description="d", extra={"json_schema": {"x": Raw(b"8")}})
    assert op.extra == {"stream_options": Raw(b'{"x":9}')}
    assert (op.unnamed, op.dropped) == (NAMES, ())


def test_it_is_dropped_and_named() -> None:
    raw = {name: Raw(json.dumps(value).encode()) for name, value in STRAYS.items()}
    op = read_chat(json.dumps(STRAYS).encode(), raw, {}, ("before",), "drop")
    assert (op.unnamed, op.dropped) == ((), ("before", *NAMES))
    assert op.raw is raw
    assert b'"x"' not in b"".join(bytes(value) for value in raw.values())
    assert read_chat(
        json.dumps({name: json.loads(bytes(value)) for name, value in raw.items()}).encode(), raw, {}, ()
    ) == (msgspec.structs.replace(op, dropped=()))


def test_it_is_refused_by_its_place() -> None:
    body = json.dumps({"messages": [*HI, *STRAYS["messages"]]}).encode()
    error = raised(read_chat, body, {}, {}, (), "error", Kind.UNSUPPORTED)
    assert (error.kind, error.param, error.code) == (Kind.UNSUPPORTED, "messages.1.x", "unknown_parameter")
    assert "'messages.2.content.1.x'" in error.message


@pytest.mark.parametrize("policy", ["pass", "drop", "error"])
def test_null_is_absent(policy: ExtrasPolicy) -> None:
    nulls = dict.fromkeys(("annotations", "audio", "function_call", "x"))
    assert chat(policy, messages=[{**HI[0], **nulls}], response_format={"type": "text", "x": None}) == chat(
        response_format={"type": "text"}
    )


def test_a_text_completion_keeps_it_too() -> None:
    members: dict[str, Any] = {"response_format": {"type": "json_object", "x": 1}}
    members |= {"stream": True, "stream_options": {"y": 2}}
    op = text(**members)
    assert op.output == Output("json", extra={"x": Raw(b"1")})
    assert (op.extra, op.unnamed) == ({"stream_options": Raw(b'{"y":2}')}, ("stream_options.y", "response_format.x"))
    assert text("drop", **members).dropped == ("stream_options.y", "response_format.x")
    assert refusal(text, policy="error", **members).param == "stream_options.y"


def test_a_member_belongs_to_one_type() -> None:
    part = {"type": "text", "text": "a", "refusal": "b"}
    op = chat(messages=[{"role": "user", "content": [part]}], response_format={"type": "text", "json_schema": {"a": 1}})
    assert op.messages[0].parts == (Text("a", {"refusal": Raw(b'"b"')}),)
    assert op.output == Output("text", extra={"json_schema": Raw(b'{"a": 1}')})
    assert op.unnamed == ("response_format.json_schema", "messages[].content[].refusal")


@pytest.mark.parametrize(
    ("members", "unnamed"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 7}, ("max_tokens",)),
        ({"max_tokens": 7, "max_completion_tokens": 7}, ()),
        ({"max_tokens": 7}, ()),
    ],
)
def test_a_limit_that_another_replaces_has_no_place(members: dict[str, Any], unnamed: tuple[str, ...]) -> None:
    assert chat(**members).unnamed == unnamed


@pytest.mark.parametrize("length", [LONGEST_PATTERN, LONGEST_PATTERN + 1])
@pytest.mark.parametrize(
    "place",
    [
        "guided_regex",
        "guided_grammar",
        "guided_whitespace_pattern",
        "structured_outputs.regex",
        "structured_outputs.grammar",
        "structured_outputs.whitespace_pattern",
    ],
)
@pytest.mark.parametrize("letter", ["a", "\u4e00"])
def test_a_pattern_is_bounded_before_it_is_passed_on(place: str, letter: str, length: int) -> None:
    outer, _, inner = place.partition(".")
    value: Any = {inner: letter * length} if inner else letter * length
    for own, read_it in (
        ({"messages": [{"role": "user", "content": "x"}]}, read_chat),
        ({"prompt": "x"}, read_text),
    ):
        body = json.dumps({**own, outer: value}).encode()
        raw = msgspec.json.decode(body, type=dict[str, Raw])
        if length <= LONGEST_PATTERN:
            assert outer in read_it(body, raw, {outer: raw[outer]}, ()).extra
            continue
        error = raised(read_it, body, raw, {outer: raw[outer]}, ())
        assert (error.kind, error.param) == (Kind.BAD_REQUEST, place)


def test_other_constraints_may_be_longer_than_a_pattern() -> None:
    for value in (
        {"json": {"enum": ["a" * LONGEST_PATTERN] * 3}},
        {"choice": ["a" * 9] * LONGEST_PATTERN},
        ["a" * 20_000],
    ):
        body = json.dumps({"prompt": "x", "structured_outputs": value}).encode()
        raw = msgspec.json.decode(body, type=dict[str, Raw])
        assert read_text(body, raw, {"structured_outputs": raw["structured_outputs"]}, ()).extra
