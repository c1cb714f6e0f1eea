"""Backend llamacpp: what it asks of llama.cpp."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from gateway.core.errors import GatewayError, Kind
from gateway.core.events import UsageReport
from gateway.core.http import Response
from gateway.core.lifecycle import fold
from gateway.core.messages import (
    Beams,
    Chat,
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
from tests.support.raised import raised
from tests.unit.backends.llamacpp.exchange import BACKEND, CAN, OFF, chat, complete, sent


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


def test_how_long_a_chat_is_is_asked_of_its_own_endpoint() -> None:
    counting = BACKEND.count(Chat(model="m", messages=(Message("user", (Text("hi"),)),)), CAN)
    assert counting.request.path == "/v1/chat/completions/input_tokens"
    assert json.loads(counting.request.body)["messages"] == [{"role": "user", "content": "hi"}]
    assert counting.read(Response(200, [], b'{"object":"response.input_tokens","input_tokens":7}')).tokens == 7
