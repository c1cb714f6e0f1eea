"""What the workers of the backend `tgi` are sent, and what they cannot do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from gateway.backends.tgi.requests import MAX_STOPS
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Response
from gateway.core.messages import (
    Audio,
    Beams,
    Chat,
    Complete,
    Embed,
    Image,
    Logprobs,
    Message,
    Output,
    Sampling,
    Text,
    Tool,
    ToolCall,
)
from gateway.core.ports import Capabilities
from gateway.translation import totals
from tests.support.raised import raised
from tests.unit.backends.tgi.exchange import TGI, chat, text

CAN = Capabilities("ignored")
SCHEMA = Raw(b'{"properties":{"a":{"type":"string"}}}')


def sent(op: Chat | Complete) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(TGI.write(op, CAN).body)
    return found


def parameters(**fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = sent(text(**fields))["parameters"]
    return found


def test_the_least_text() -> None:
    request = TGI.write(text(), CAN)
    assert (request.method, request.path) == ("POST", "/generate")
    assert json.loads(request.body) == {"inputs": "hi", "parameters": {"details": True, "do_sample": True}}
    assert TGI.write(text(stream=True), CAN).path == "/generate_stream"


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(temperature=0.5, top_k=5, top_p=0.9), {"temperature": 0.5, "top_k": 5, "top_p": 0.9}),
        (Sampling(temperature=1.0, top_k=0, top_p=1.0), {"temperature": 1.0}),
        (Sampling(top_k=-1), {}),
        (
            Sampling(frequency_penalty=0.5, repetition_penalty=1.1),
            {"frequency_penalty": 0.5, "repetition_penalty": 1.1},
        ),
        (Sampling(frequency_penalty=0.0, presence_penalty=0.0, repetition_penalty=1.0), {}),
        (Sampling(seed=0), {"seed": 0}),
        (Sampling(min_p=0.0, min_tokens=0, no_repeat_ngram=1, ignore_eos=False), {}),
    ],
)
def test_sampling_of_a_text(sampling: Sampling, expected: dict[str, Any]) -> None:
    assert parameters(sampling=sampling) == {"details": True, "do_sample": True, **expected}


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0, top_p=0.5, top_k=4), Sampling(top_p=0.0)])
def test_greedy_is_no_sampling_at_all(sampling: Sampling) -> None:
    """Any of temperature, top_k and top_p would turn sampling on, and TGI takes no 0."""
    assert parameters(sampling=sampling) == {"details": True, "do_sample": False}
    assert sent(chat(sampling=sampling)) == {
        "messages": [{"role": "user", "content": "hi"}],
        "model": "tgi",
        "temperature": 0.0,
    }


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_output": 7}, {"max_new_tokens": 7}),
        ({"stop": ("a", "b")}, {"stop": ["a", "b"]}),
        ({"seeds": (9,)}, {"seed": 9}),
        ({"logprobs": Logprobs(3)}, {"top_n_tokens": 3}),
        ({"logprobs": Logprobs()}, {}),
        ({"want_tokens": True}, {}),
        ({"output": Output("schema", SCHEMA)}, {"grammar": {"type": "json", "value": json.loads(bytes(SCHEMA))}}),
        ({"output": Output("regex", pattern="a+")}, {"grammar": {"type": "regex", "value": "a+"}}),
        ({"output": Output("choice", choices=("a.b", "c"))}, {"grammar": {"type": "regex", "value": r"(a\.b|c)"}}),
        ({"output": Output("text")}, {}),
        ({"extra": {"typical_p": Raw(b"0.9"), "truncate": Raw(b"5")}}, {"typical_p": 0.9, "truncate": 5}),
    ],
)
def test_further_parameters_of_a_text(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parameters(**fields) == {"details": True, "do_sample": True, **expected}


def test_members_of_another_wire() -> None:
    """Those that TGI would not read do not go on; ours are never replaced."""
    extra = {"store": Raw(b"true"), "inputs": Raw(b'"other"'), "skip_special_tokens": Raw(b"true")}
    written = TGI.write(text(extra=extra), CAN)
    assert written.dropped == ("store",)
    assert sent(text(extra=extra))["inputs"] == "hi"
    assert not {"store", "skip_special_tokens"} & set(sent(text(extra=extra)))
    raw = {"messages": Raw(b"[]"), "top_k": Raw(b"0"), "metadata": Raw(b"{}"), "own": Raw(b"1")}
    assert TGI.write(chat(raw=raw, wire="openai"), CAN).dropped == ("metadata",)
    assert sent(chat(raw=raw, wire="openai"))["own"] == 1


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("n", {"n": 2}),
    ("stop", {"stop": ("a",) * (MAX_STOPS + 1)}),
    ("seed", {"sampling": Sampling(seed=-1)}),
    ("presence_penalty", {"sampling": Sampling(presence_penalty=0.1)}),
    ("min_p", {"sampling": Sampling(min_p=0.1)}),
    ("min_tokens", {"sampling": Sampling(min_tokens=1)}),
    ("no_repeat_ngram", {"sampling": Sampling(no_repeat_ngram=2)}),
    ("logit_bias", {"sampling": Sampling(logit_bias={1: 1.0})}),
    ("stop_token_ids", {"sampling": Sampling(stop_tokens=(1,))}),
    ("eos_token", {"sampling": Sampling(eos_tokens=(1,))}),
    ("bad_words", {"sampling": Sampling(bad_words=("a",))}),
    ("bad_word_tokens", {"sampling": Sampling(bad_tokens=((1,),))}),
    ("ignore_eos", {"sampling": Sampling(ignore_eos=True)}),
    ("response_format", {"output": Output("json")}),
    ("response_format", {"output": Output("grammar", pattern="root ::= x")}),
    ("structured_outputs", {"extra": {"structured_outputs": Raw(b'{"regex":"a"}')}}),
    ("bad_words", {"extra": {"bad_words": Raw(b'["a"]')}}),
    ("skip_special_tokens", {"extra": {"skip_special_tokens": Raw(b"false")}}),
]
REFUSED_TEXTS: list[tuple[str, dict[str, Any]]] = [
    ("prompt", {"prompt": (1, 2)}),
    ("num_beams", {"beams": Beams(2)}),
    ("max_total_tokens", {"max_total": 9}),
    ("min_total_tokens", {"min_total": 9}),
    ("suffix", {"suffix": "x"}),
    ("echo", {"echo": True}),
    ("seed", {"seeds": (-5,)}),
]
REFUSED_CHATS: list[tuple[str, dict[str, Any]]] = [
    ("top_k", {"sampling": Sampling(top_k=5)}),
    ("repetition_penalty", {"sampling": Sampling(repetition_penalty=1.1)}),
    ("reasoning_effort", {"reasoning": "low"}),
    ("tokens", {"want_tokens": True}),
    ("messages.0.content.0", {"messages": (Message("user", (Audio("aGk=", "wav"),)),)}),
]


def test_the_length_of_a_prompt_is_asked_with_the_same_body() -> None:
    asked = text(max_total=9, extra={"truncate": Raw(b"3")})
    counting = TGI.count(asked, CAN)
    assert counting.request.path == "/tokenize"
    assert counting.request.body == TGI.write(totals.first_request(asked), CAN).body
    said = b'[{"id":5,"text":"a","start":0,"stop":1},{"id":6,"text":"b","start":1,"stop":2}]'
    assert counting.read(Response(200, [], said)).tokens == 2
    with pytest.raises(GatewayError, match="min_total_tokens"):
        TGI.count(text(min_total=9), CAN)


@pytest.mark.parametrize(("param", "fields"), REFUSED + REFUSED_TEXTS)
def test_what_a_text_cannot_have(param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(GatewayError, match=param.replace(".", r"\.")) as caught:
        sent(text(**fields))
    assert (caught.value.kind, caught.value.param) == (Kind.UNSUPPORTED, param)


@pytest.mark.parametrize(("param", "fields"), REFUSED + REFUSED_CHATS)
def test_what_a_chat_cannot_have(param: str, fields: dict[str, Any]) -> None:
    error = raised(sent, chat(**fields))
    assert (error.kind, error.param) == (Kind.UNSUPPORTED, param)


def test_several_prompts_and_embeddings() -> None:
    error = raised(TGI.write, Complete(model="m", prompts=("a", "b")), CAN)
    assert (error.kind, error.param) == (Kind.UNSUPPORTED, "prompt")
    error = raised(TGI.write, Embed(model="m", inputs=("a",)), CAN)
    assert (error.kind, error.param) == (Kind.UNSUPPORTED, None)


def test_messages_and_tools() -> None:
    call = ToolCall("0", "f", '{"a":1}')
    messages = (
        Message("user", (Text("look"), Image("data:image/png;base64,AA=="))),
        Message("assistant", (Text("wait"), call)),
        Message("assistant", (call,)),
        Message("tool", (Text("42"),), call_id="0"),
    )
    body = sent(chat(messages, tools=(Tool("f"),), tool_choice="required", parallel_tools=False, stream=True))
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "assistant", "assistant", "tool"]
    assert body["messages"][1] == {"role": "assistant", "content": "wait"}
    assert body["messages"][2] == body["messages"][3]
    assert "content" not in body["messages"][2], "TGI would read the content, and no call"
    assert body["tools"][0]["function"]["parameters"] == {"type": "object", "properties": {}}
    assert "parallel_tool_calls" not in body
    assert body["stream_options"] == {"include_usage": True}


def test_what_is_left_out_is_named() -> None:
    schema = Output("schema", Raw(b"{}"), description="d", strict=True, extra={"x": Raw(b"1")})
    unnamed = ("max_tokens", "messages[].x", "response_format.x", "stream_options.x")
    named = ("response_format.json_schema.strict", "response_format.json_schema.description")
    op = chat(output=schema, unnamed=unnamed, user="u", parallel_tools=True, tools=(Tool("f"),))
    assert TGI.write(op, CAN).dropped == (
        *named,
        "user",
        "max_tokens",
        "response_format.x",
        "parallel_tool_calls",
    )
    assert TGI.write(text(output=schema, unnamed=unnamed, user="u"), CAN).dropped == (*named, "user", *unnamed)
    lax = Output("schema", Raw(b"{}"), name="n", strict=False)
    assert TGI.write(chat(output=lax), CAN).dropped == TGI.write(text(output=lax), CAN).dropped == ()
    assert TGI.write(chat(parallel_tools=False), CAN).dropped == ()
    assert TGI.write(text(), CAN).dropped == ()


def test_what_has_no_canonical_name_is_written_once() -> None:
    x = {"x": Raw(b"1")}
    both = Message("assistant", (Text("wait"), ToolCall("0", "f", "{}", x)), extra=x)
    body = sent(chat((both,), stream=True, extra={"stream_options": Raw(b'{"x":1}')}))
    assert [message.get("x") for message in body["messages"]] == [1, None]
    assert body["messages"][1]["tool_calls"][0]["x"] == 1
    assert body["stream_options"] == {"x": 1, "include_usage": True}
