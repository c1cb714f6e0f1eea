"""Backend llamacpp: what it asks of llama.cpp and how it reads what comes; then the real thing behind a gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from msgspec import Raw

from gateway.backends.llamacpp import LlamaCpp
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, End, Event, Failed, Finish, UsageReport
from gateway.core.http import Response
from gateway.core.lifecycle import checked, fold
from gateway.core.messages import (
    Beams,
    Chat,
    Complete,
    Embed,
    Logprobs,
    Message,
    NamedTool,
    Output,
    Sampling,
    Text,
    Tool,
)
from gateway.core.ports import Capabilities, Facts
from gateway.core.usage import Usage
from tests.harness import Stack, sse_data
from tests.raised import failed, raised

BACKEND = LlamaCpp()
CAN = Capabilities("small", 512)
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def complete(*prompts: str | tuple[int, ...], **members: Any) -> Complete:
    return Complete(model="m", prompts=prompts or ("hi",), **members)


def chat(**members: Any) -> Chat:
    return Chat(model="m", messages=(Message("user", (Text("hi"),)),), **members)


def sent(op: Complete | Chat) -> Any:
    return json.loads(BACKEND.write(op, CAN).body)


# -- requests -------------------------------------------------------------------------------------------------------


def test_what_a_text_leaves_out_is_named() -> None:
    output = Output("schema", Raw(b"{}"), description="d", strict=True, extra={"x": Raw(b"1")})
    options = {"stream_options": Raw(b'{"x":1}')}
    op = complete(
        output=output, stream=True, extra=options, unnamed=("response_format.x", "stream_options.x"), user="u"
    )
    named = ("response_format.json_schema.strict", "response_format.json_schema.description")
    assert BACKEND.write(op, CAN).dropped == (*named, *op.unnamed, "user")
    assert "stream_options" not in sent(op)
    lax = Output("schema", Raw(b"{}"), name="n", strict=False)
    assert BACKEND.write(complete(output=lax), CAN).dropped == BACKEND.write(complete(), CAN).dropped == ()


def test_where_an_operation_goes() -> None:
    assert (BACKEND.write(complete(), CAN).path, BACKEND.reply_wire(complete())) == ("/completion", "llamacpp")
    assert (BACKEND.write(chat(), CAN).path, BACKEND.reply_wire(chat())) == ("/v1/chat/completions", "openai")
    embed = Embed(model="m", inputs=("a",))
    assert (BACKEND.write(embed, CAN).path, BACKEND.reply_wire(embed)) == ("/v1/embeddings", "openai")


def test_everything() -> None:
    sampling = Sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        frequency_penalty=0.5,
        presence_penalty=0.25,
        repetition_penalty=1.1,
        min_tokens=0,
        no_repeat_ngram=1,
        logit_bias={5: -1.5},
        bad_tokens=((9,),),
        ignore_eos=True,
    )
    op = complete(
        (1, 2),
        "hi",
        stream=True,
        max_output=9,
        sampling=sampling,
        stop=("a",),
        n=2,
        seeds=(3, 4),
        want_tokens=True,
        logprobs=Logprobs(2),
        extra={"mirostat": Raw(b"2")},
    )
    assert sent(op) == {
        "prompt": [[1, 2], "hi"],
        "n_predict": 9,
        "n": 2,
        "stream": True,
        "return_tokens": True,
        "n_probs": 2,
        "stop": ["a"],
        "top_k": 7,
        "min_p": 0.1,
        "temperature": 0.5,
        "top_p": 0.9,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.25,
        "repeat_penalty": 1.1,
        "repeat_last_n": 512,
        "ignore_eos": True,
        "logit_bias": [[5, -1.5], [9, False]],
        "seed": 3,
        "cache_prompt": False,
        "mirostat": 2,
    }


@pytest.mark.parametrize(
    ("seed", "seen"), [(0, 0), (2**32 - 2, 2**32 - 2), (2**32 - 1, 0), (2**53 - 1, (2**53 - 1) % (2**32 - 1))]
)
def test_a_seed_is_never_the_one_that_means_random(seed: int, seen: int) -> None:
    assert sent(complete(seeds=(seed,)))["seed"] == seen
    assert sent(complete(sampling=Sampling(seed=seed)))["seed"] == seen
    assert sent(chat(sampling=Sampling(seed=seed)))["seed"] == seen


@pytest.mark.parametrize(
    ("output", "members"),
    [
        (Output("text"), {}),
        (Output("json"), {"json_schema": {"type": "object"}}),
        (Output("schema", Raw(b'{"type":"array"}')), {"json_schema": {"type": "array"}}),
        (Output("schema"), {"json_schema": {}}),
        (Output("grammar", pattern="root ::= x"), {"grammar": "root ::= x"}),
        (Output("choice", choices=('a"b', "c")), {"grammar": 'root ::= "a\\"b" | "c"'}),
        (Output("regex", pattern="a+/\n[/]\\/"), {"grammar": "%llguidance {}\nstart: /a+\\/\\n[\\/]\\//"}),
        (
            Output("regex", pattern=r"\p{L}\\b[[:alpha:]]"),
            {"grammar": "%llguidance {}\nstart: /\\p{L}\\\\b[[:alpha:]]/"},
        ),
    ],
)
def test_constraints(output: Output, members: dict[str, Any]) -> None:
    assert sent(complete(output=output)) == {"prompt": "hi", **members}


@pytest.mark.parametrize(
    ("pattern", "kind"),
    [
        ("(?=a)b", Kind.UNSUPPORTED),
        ("(?<!a)b", Kind.UNSUPPORTED),
        (r"(a)\1", Kind.UNSUPPORTED),
        (r"a\b", Kind.UNSUPPORTED),
        (r"\\\b", Kind.UNSUPPORTED),
        ("(a", Kind.BAD_REQUEST),
        ("a{2,1}", Kind.BAD_REQUEST),
        ("(" * 9999, Kind.BAD_REQUEST),
    ],
)
def test_expressions_that_would_be_passed_over_in_silence(pattern: str, kind: Kind) -> None:
    error = raised(BACKEND.write, complete(output=Output("regex", pattern=pattern)), CAN)
    assert (error.kind, error.param) == (kind, "response_format")


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"beams": Beams(2)}, "num_beams"),
        ({"max_total": 5}, "max_total_tokens"),
        ({"min_total": 5}, "min_total_tokens"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"max_output": 0}, "max_tokens"),
        ({"n": 2, "seeds": (1, 5)}, "seed"),
        ({"n": 2, "seeds": (2**32 - 2, 2**32 - 1)}, "seed"),
        ({"sampling": Sampling(min_tokens=1)}, "min_tokens"),
        ({"sampling": Sampling(stop_tokens=(1,))}, "stop_token_ids"),
        ({"sampling": Sampling(eos_tokens=(1,))}, "eos_token"),
        ({"sampling": Sampling(bad_words=("a",))}, "bad_words"),
        ({"sampling": Sampling(bad_tokens=((1, 2),))}, "bad_word_tokens"),
        ({"sampling": Sampling(no_repeat_ngram=2)}, "no_repeat_ngram"),
    ],
)
def test_what_it_cannot_do(members: dict[str, Any], param: str) -> None:
    error = raised(BACKEND.write, complete(**members), CAN)
    assert (error.kind, error.param) == (Kind.UNSUPPORTED, param)


def test_who_says_how_to_sample_gets_no_filters_beside() -> None:
    assert sent(complete(sampling=Sampling(temperature=0.5))) == {
        "prompt": "hi",
        **OFF,
        "temperature": 0.5,
    }
    assert sent(complete(sampling=Sampling(top_p=0.5)))["top_k"] == 0
    assert "top_k" not in sent(complete(sampling=Sampling(seed=1)))


def test_chats_without_tools_say_nothing_of_them() -> None:
    raw = {"messages": Raw(b'[{"role":"user","content":"hi"}]'), "tools": Raw(b"[]"), "tool_choice": Raw(b'"auto"')}
    plain = sent(chat(raw=raw, wire="openai"))
    assert plain == {"messages": json.loads(bytes(raw["messages"])), "model": "small"}
    warm = sent(chat(raw={**raw, "temperature": Raw(b"1.0")}, wire="openai"))
    assert {name: warm[name] for name in OFF} == OFF
    asked = {**raw, "top_k": Raw(b"40"), "min_p": Raw(b"0.2")}
    found = sent(chat(raw=asked, wire="openai", tools=(Tool("f"),), stream=True))
    assert (found["top_k"], found["min_p"], found["tool_choice"]) == (40, 0.2, "auto")
    assert found["stream_options"] == {"include_usage": True}
    composed = sent(chat(sampling=Sampling(temperature=1.0, repetition_penalty=1.2), max_output=4))
    assert composed == {
        "messages": [{"role": "user", "content": "hi"}],
        "model": "small",
        "max_tokens": 4,
        "temperature": 1.0,
        "repeat_penalty": 1.2,
        "repeat_last_n": 512,
        **OFF,
    }


@pytest.mark.parametrize(("own", "name"), [("n_predict", "max_tokens"), ("n_cmpl", "n")])
def test_a_second_word_for_what_was_counted_is_refused(own: str, name: str) -> None:
    """The worker would believe it, and not what the request was read to say."""
    raw = {"messages": Raw(b'[{"role":"user","content":"hi"}]'), "max_tokens": Raw(b"1"), own: Raw(b"100")}
    for op in (chat(raw=raw, wire="openai"), chat(extra={own: Raw(b"100")}), complete("hi", extra={own: Raw(b"100")})):
        with pytest.raises(GatewayError, match=f"use '{name}'") as caught:
            sent(op)
        assert (caught.value.kind, caught.value.param) == (Kind.UNSUPPORTED, own)


@pytest.mark.parametrize(
    ("given", "members"),
    [
        ({"choice": ["a", "b"]}, {"grammar": 'root ::= "a" | "b"'}),
        ({"regex": "a+"}, {"grammar": "%llguidance {}\nstart: /a+/"}),
        ({"grammar": "root ::= x"}, {"grammar": "root ::= x"}),
        ({"json": {"type": "integer"}}, {"json_schema": {"type": "integer"}}),
        ({"json": '{"type":"integer"}'}, {"json_schema": {"type": "integer"}}),
        ({"json_object": True}, {"json_schema": {"type": "object"}}),
    ],
)
def test_structured_outputs_are_constraints(given: Any, members: dict[str, Any]) -> None:
    extra = {"structured_outputs": Raw(json.dumps(given).encode())}
    for op in (chat(extra=extra), chat(raw={"messages": Raw(b"[]"), **extra}, wire="openai"), complete(extra=extra)):
        found = sent(op)
        assert "structured_outputs" not in found
        assert {name: found[name] for name in members} == members


@pytest.mark.parametrize("given", [{}, {"structural_tag": "x"}, {"regex": "a", "choice": ["b"]}, {"json": "{"}, 7])
def test_structured_outputs_that_it_cannot_follow_are_refused(given: Any) -> None:
    error = raised(sent, chat(extra={"structured_outputs": Raw(json.dumps(given).encode())}))
    assert (error.kind, error.param) == (Kind.UNSUPPORTED, "structured_outputs")


def test_members_of_vllm_that_change_nothing_are_no_reason_to_refuse() -> None:
    neutral = {"skip_special_tokens": Raw(b"true"), "length_penalty": Raw(b"1.0"), "bad_words": Raw(b"[]")}
    assert sent(chat(raw={"messages": Raw(b"[]"), **neutral}, wire="openai"))["messages"] == []
    with pytest.raises(GatewayError, match="prompt_logprobs"):
        sent(chat(raw={"messages": Raw(b"[]"), "prompt_logprobs": Raw(b"1")}, wire="openai"))


@pytest.mark.parametrize("can", [CAN, Capabilities("small")])
@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty", "repetition_penalty"])
def test_penalties_look_back_on_the_whole_context(name: str, can: Capabilities) -> None:
    """A window that its server takes, and that costs no memory to speak of."""
    sampling = msgspec.structs.replace(Sampling(), **{name: 1.5})
    raw = {"messages": Raw(b"[]"), name: Raw(b"1.5")}
    for op in (complete(sampling=sampling), chat(sampling=sampling), chat(sampling=sampling, raw=raw, wire="openai")):
        found = json.loads(BACKEND.write(op, can).body)
        assert found["repeat_last_n"] == (512 if can is CAN else 65_536)
        assert "repetition_penalty" not in found
    own = {**raw, "repeat_last_n": Raw(b"7")}
    assert sent(chat(sampling=sampling, raw=own, wire="openai"))["repeat_last_n"] == 7


def test_a_named_tool_is_the_only_one() -> None:
    tools, choice = (Tool("f"), Tool("g")), NamedTool("g")
    for op in (
        chat(tools=tools, tool_choice=choice),
        chat(tools=tools, tool_choice=choice, raw={"messages": Raw(b"[]"), "tools": Raw(b"[1]")}, wire="openai"),
    ):
        found = sent(op)
        assert [tool["function"]["name"] for tool in found["tools"]] == ["g"]
        assert found["tool_choice"] == "required"
    with pytest.raises(GatewayError, match="'h'"):
        sent(chat(tools=tools, tool_choice=NamedTool("h")))


@pytest.mark.parametrize("pattern", ["a" * 1001, "(a)" * 101, "(" * 21 + ")" * 21, "(a" * 100_000])
def test_patterns_are_bounded_before_they_are_compiled(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.backends.llamacpp.patterns.re", None)
    with pytest.raises(GatewayError, match="regular expression has") as caught:
        BACKEND.write(complete(output=Output("regex", pattern=pattern)), CAN)
    assert (caught.value.kind, caught.value.param) == (Kind.BAD_REQUEST, "response_format")


def test_every_choice_of_a_chat_is_counted() -> None:
    """Each has a usage chunk of its own, which counts the prompt again; a whole reply counts the first only."""
    op = chat(n=2)
    request = BACKEND.write(op, CAN)
    assert json.loads(request.body)["stream"] is True
    assert (BACKEND.reply_wire(op), BACKEND.reply_wire(chat())) == ("llamacpp chat", "openai")

    def chunk(*choices: dict[str, Any], **more: Any) -> bytes:
        return (
            b"data: "
            + json.dumps({"id": "x", "created": 1, "model": "m", "choices": choices, **more}).encode()
            + b"\n\n"
        )

    def usage(output: int) -> dict[str, Any]:
        return {"usage": {"prompt_tokens": 9, "completion_tokens": output}}

    said = [chunk({"index": index, "delta": {"content": str(index)}}) for index in (1, 0)]
    ended = [
        chunk({"index": 1, "delta": {}, "finish_reason": "stop"}) + chunk(**usage(3)),
        chunk({"index": 0, "delta": {}, "finish_reason": "length"}) + chunk(**usage(4)),
    ]
    body = b"".join([*said, *ended, b"data: [DONE]\n\n"])
    reader = BACKEND.reader(op)
    for found in (list(BACKEND.read(Response(200, [], body), op)), [*reader.feed(body), *reader.eof()]):
        reply = fold(found)
        assert [choice.text() for choice in reply.choices] == ["0", "1"]
        assert reply.usage == Usage(9, 7)
        assert sum(isinstance(event, UsageReport) for event in found) == 1


def test_what_it_says_of_itself() -> None:
    """Recorded, shortened."""
    props = {
        "default_generation_settings": {"params": {"temperature": 0.8}, "n_ctx": 2048},
        "modalities": {"vision": False, "audio": False},
        "chat_template_caps": {"supports_tools": False, "supports_reasoning_effort": True},
    }
    facts = BACKEND.facts(json.dumps(props).encode(), "m")
    assert facts == Facts(None, 2048, {"tools": False, "reasoning": True, "vision": False, "audio": False})
    assert BACKEND.facts(b"{}", "m") == Facts()
    for body in (b"", b"<html>", b'{"modalities":7}', b'{"default_generation_settings":{"n_ctx":1e400}}'):
        with pytest.raises(GatewayError):
            BACKEND.facts(body, "m")


# -- replies --------------------------------------------------------------------------------------------------------


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


# -- the real thing -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gateway() -> Iterator[httpx.Client]:
    """A gateway in front of a real llama.cpp; two slots of 512 tokens."""
    flags = ("--port", "0", "--context", "512", "--parallel", "2")
    with subprocess.Popen(
        (sys.executable, "-m", "workers.embedded", *flags), stdout=subprocess.PIPE, text=True
    ) as worker:
        try:
            assert worker.stdout is not None
            address = worker.stdout.readline().split()[-1]
            models = {"smollm2": {"backend": "llamacpp", "workers": [address], "max_context": 512}}
            named = {name: {"default_model": "smollm2"} for name in ("friendli", "openai")}
            with (
                Stack((), {"models": models, "dialects": named}) as stack,
                httpx.Client(base_url=stack.url, timeout=120) as client,
            ):
                yield client
        finally:
            worker.terminate()


def ask(gateway: httpx.Client, **members: Any) -> Any:
    response = gateway.post("/friendli/v1/completions", json=members)
    assert response.status_code == 200, response.text
    return response.json()


def stream(gateway: httpx.Client, **members: Any) -> list[Any]:
    response = gateway.post("/friendli/v1/completions", json={**members, "stream": True})
    assert response.status_code == 200, response.text
    return [json.loads(data) for data in sse_data(response.content)]


FRANCE = "The capital of France is"


def test_real_token_ids_stream_and_add_up(gateway: httpx.Client) -> None:
    whole = ask(gateway, prompt=FRANCE, max_tokens=8, temperature=0, seed=1)
    (*sampled, complete_) = stream(gateway, prompt=FRANCE, max_tokens=8, temperature=0, seed=1)
    (choice,) = complete_["choices"]
    assert "Paris" in choice["text"]
    assert complete_["choices"] == whole["choices"]
    assert complete_["usage"] == whole["usage"]
    assert "".join(event["text"] for event in sampled) == choice["text"]
    assert [event["token"] for event in sampled] == choice["tokens"]
    assert len(sampled) == whole["usage"]["completion_tokens"] == 8


ASKED = {
    "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
    "max_tokens": 30,
    "temperature": 0,
}
# Dialects whose replies name the phrase that was met: path, body, the member with the phrases.
PHRASES: list[tuple[str, dict[str, Any], str]] = [
    ("/anthropic/v1/messages", {"model": "smollm2", **ASKED}, "stop_sequences"),
    ("/sagemaker/endpoints/smollm2/invocations", ASKED, "stop"),
    (
        "/sagemaker/endpoints/smollm2/invocations",
        {"prompt": "The capital of Japan is", "max_tokens": 30, "temperature": 0},
        "stop",
    ),
]


def told(body: Any) -> set[tuple[str, Any]]:
    """What a reply, or an event of one, says of its end."""
    places = [body, body.get("delta") or {}, *body.get("choices", ())]
    names = ("stop_reason", "stop_sequence")
    return {(name, place[name]) for place in places if isinstance(place, dict) for name in names if place.get(name)}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("path", "body", "member"), PHRASES)
def test_a_real_stop_phrase_is_told(
    path: str, body: dict[str, Any], member: str, streamed: bool, gateway: httpx.Client
) -> None:
    for phrases, met in ((["zzz", "Tokyo"], "Tokyo"), (["zzz"], None)):
        response = gateway.post(path, json={**body, member: phrases, "stream": streamed})
        assert response.status_code == 200, response.text
        texts = [line.removeprefix(b"data: ") for line in response.content.splitlines()]
        found = set[tuple[str, Any]]().union(*(told(json.loads(text)) for text in texts if text.startswith(b"{")))
        if path.startswith("/anthropic"):
            ended = {("stop_reason", "stop_sequence"), ("stop_sequence", met)}
            assert found == (ended if met else {("stop_reason", "end_turn")})
        else:
            assert found == ({("stop_reason", met)} if met else set())
        assert b"__verbose" not in response.content


@pytest.mark.parametrize("streamed", [False, True])
def test_a_real_stop_phrase_is_no_news_to_a_client_of_openai(streamed: bool, gateway: httpx.Client) -> None:
    response = gateway.post(
        "/v1/chat/completions", json={"model": "smollm2", **ASKED, "stop": "Tokyo", "n": 2, "stream": streamed}
    )
    assert response.status_code == 200
    assert b"__verbose" not in response.content
    assert b"stopping_word" not in response.content


# Every dialect that takes a text: path, body, the member of a choice with its text.
EMPTY: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"model": "smollm2", "prompt": "", "max_tokens": 4}),
    ("/v1/completions", {"model": "smollm2", "prompt": ["", "1, 2,"], "max_tokens": 4}),
    ("/openai/deployments/smollm2/completions?api-version=2024-10-21", {"prompt": "", "max_tokens": 4}),
    ("/sagemaker/endpoints/smollm2/invocations", {"prompt": "", "max_tokens": 4}),
    ("/friendli/v1/completions", {"prompt": "", "max_tokens": 4}),
    ("/api/generate", {"model": "smollm2", "prompt": "", "raw": True}),
    ("/v1/chat/completions", {"model": "smollm2", "messages": [{"role": "user", "content": ""}], "max_tokens": 4}),
    ("/anthropic/v1/messages", {"model": "smollm2", "messages": [{"role": "user", "content": ""}], "max_tokens": 4}),
]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("path", "body"), EMPTY)
def test_an_empty_text_is_answered(path: str, body: dict[str, Any], streamed: bool, gateway: httpx.Client) -> None:
    response = gateway.post(path, json={**body, "stream": streamed})
    # Friendli's specification has no empty prompt; an error is the caller's, and is not the worker's.
    assert response.status_code == 200 or (response.status_code in (400, 422) and "friendli" in path), response.text
    assert b"upstream" not in response.content


def test_operators_advice_is_not_for_callers(gateway: httpx.Client) -> None:
    response = gateway.post("/v1/embeddings", json={"model": "smollm2", "input": "hi"})
    assert 400 <= response.status_code < 500
    assert "--" not in response.json()["error"]["message"]


def test_real_token_prompts(gateway: httpx.Client) -> None:
    first = ask(gateway, prompt=FRANCE, max_tokens=4, temperature=0)["choices"][0]
    # What it generated, fed back as ids, is a prompt of that many tokens.
    reply = ask(gateway, tokens=first["tokens"], max_total_tokens=10, temperature=0)
    assert reply["usage"]["prompt_tokens"] == len(first["tokens"])
    assert reply["usage"]["total_tokens"] == 10


@pytest.mark.parametrize("said", [FRANCE, "<|im_start|>user\nHi<|im_end|>\n"])
def test_real_totals_of_a_text(gateway: httpx.Client, said: str) -> None:
    for reply in (
        ask(gateway, prompt=said, max_total_tokens=16, seed=1),
        stream(gateway, prompt=said, max_total_tokens=16, seed=1)[-1],
    ):
        (choice,) = reply["choices"]
        assert choice["finish_reason"] == "length"
        assert reply["usage"]["total_tokens"] == 16


def test_real_seeds_reproduce_what_they_drew(gateway: httpx.Client) -> None:
    drawn = ask(gateway, prompt="Once upon a time", max_tokens=12, n=2)["choices"]
    assert drawn[0]["seed"] + 1 == drawn[1]["seed"]
    assert drawn[0]["tokens"] != drawn[1]["tokens"]
    for choice in drawn:
        (again,) = ask(gateway, prompt="Once upon a time", max_tokens=12, seed=choice["seed"])["choices"]
        assert (again["seed"], again["tokens"]) == (choice["seed"], choice["tokens"])
    listed = stream(gateway, prompt="Once upon a time", max_tokens=12, n=2, seed=[choice["seed"] for choice in drawn])
    assert [choice["tokens"] for choice in listed[-1]["choices"]] == [choice["tokens"] for choice in drawn]


def test_real_ends_are_no_tokens(gateway: httpx.Client) -> None:
    said = "<|im_start|>user\nSay yes or no.<|im_end|>\n<|im_start|>assistant\n"
    regex = {"type": "regex", "schema": "(yes|no)"}
    whole = ask(gateway, prompt=said, response_format=regex, seed=5)["choices"][0]
    streamed = stream(gateway, prompt=said, response_format=regex, seed=5)
    assert whole["text"] in ("yes", "no")
    assert whole["finish_reason"] == "stop"
    assert streamed[-1]["choices"] == [whole]
    assert streamed[-1]["usage"]["completion_tokens"] == len(whole["tokens"]) + 1, "the engine counts the end too"


def test_real_schemas(gateway: httpx.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    reply = ask(
        gateway,
        prompt="A JSON object:",
        max_tokens=40,
        temperature=0,
        response_format={"type": "json_object", "schema": json.dumps(schema)},
    )
    assert list(json.loads(reply["choices"][0]["text"])) == ["ok"]


def test_real_bans_stops_and_logprobs(gateway: httpx.Client) -> None:
    paris = ask(gateway, prompt=FRANCE, max_tokens=1, temperature=0)["choices"][0]["tokens"]
    other = ask(gateway, prompt=FRANCE, max_tokens=1, temperature=0, bad_word_tokens=[{"tokens": paris}])
    assert other["choices"][0]["tokens"] != paris
    counted = ask(
        gateway, prompt="1, 2, 3, 4,", max_tokens=20, temperature=0, stop=["7"], include_output_logprobs=True
    )["choices"][0]
    assert counted["text"].endswith("6, ")
    assert counted["finish_reason"] == "stop"
    # Of the tokens of a stop phrase, which no text shows, it tells the ids only.
    assert "".join(counted["logprobs"]["tokens"]) == counted["text"]


def test_real_limits_are_told(gateway: httpx.Client) -> None:
    def status(**members: Any) -> tuple[int, str | None]:
        response = gateway.post("/friendli/v1/completions", json=members)
        return response.status_code, response.json()["error"]["param"]

    assert status(prompt="hi", n=3) == (422, "n")
    assert status(prompt="hi", num_beams=2) == (422, "num_beams")
    assert status(prompt="hi", stop_tokens=[{"tokens": [1]}]) == (422, "stop_tokens")
    assert status(prompt="word " * 600) == (400, None)
    assert status(tokens=[999_999]) == (400, None)
    assert status(prompt="Tell me a story.", timeout_microseconds=1000) == (429, "timeout_microseconds")


def test_real_generation_goes_to_the_end_of_the_context(gateway: httpx.Client) -> None:
    reply = ask(gateway, prompt="word " * 500, temperature=0)
    assert reply["usage"]["total_tokens"] == 512
    assert reply["choices"][0]["finish_reason"] == "length"


def test_real_text_completions_of_openais_wire_are_counted_whole(gateway: httpx.Client) -> None:
    body = {"prompt": [FRANCE, "x"], "n": 2, "max_tokens": 3, "temperature": 0, "logprobs": 1}
    reply = gateway.post("/v1/completions", json=body).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert reply["usage"]["completion_tokens"] == 12
    assert reply["usage"]["prompt_tokens"] == 6
    assert reply["choices"][0]["logprobs"]["tokens"][0] == " Paris"
    refused = gateway.post("/v1/completions", json={"prompt": "x", "echo": True}).json()
    assert refused["error"]["param"] == "echo"


def test_real_chats_share_openais_wire(gateway: httpx.Client) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    said = []
    for path in ("/v1/chat/completions", "/friendli/v1/chat/completions"):
        reply = gateway.post(path, json={"messages": messages, "max_tokens": 12, "temperature": 0}).json()
        assert reply["usage"]["completion_tokens"] == 12
        said.append(reply["choices"][0]["message"]["content"])
    assert said[0] == said[1] != ""


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/friendli/v1/chat/completions"])
def test_real_chats_have_all_their_choices(gateway: httpx.Client, path: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "n": 2}
    assert [choice["index"] for choice in gateway.post(path, json=body).json()["choices"]] == [0, 1]
    *_, mark = sse_data(gateway.post(path, json={**body, "stream": True}).content)
    assert mark == b"[DONE]"


def test_real_tools_are_refused_where_the_template_has_no_words_for_them(gateway: httpx.Client) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    for choice in ("auto", "required", {"type": "function", "function": {"name": "f"}}):
        body = {"messages": [{"role": "user", "content": "hi"}], "tools": tools, "tool_choice": choice}
        answer = gateway.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")


@pytest.mark.parametrize("stream", [False, True])
def test_real_chats_of_several_choices_have_one_usage(gateway: httpx.Client, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "n": 2, "stream": stream}
    if stream:
        answer = gateway.post("/v1/chat/completions", json={**body, "stream_options": {"include_usage": True}})
        chunks = [json.loads(data) for data in sse_data(answer.content) if data != b"[DONE]"]
        assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
        (usage,) = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    else:
        usage = gateway.post("/v1/chat/completions", json=body).json()["usage"]
    assert usage["completion_tokens"] == 8


def test_how_long_a_chat_is_is_asked_of_its_own_endpoint() -> None:
    counting = BACKEND.count(Chat(model="m", messages=(Message("user", (Text("hi"),)),)), CAN)
    assert counting.request.path == "/v1/chat/completions/input_tokens"
    assert json.loads(counting.request.body)["messages"] == [{"role": "user", "content": "hi"}]
    assert counting.read(Response(200, [], b'{"object":"response.input_tokens","input_tokens":7}')).tokens == 7
