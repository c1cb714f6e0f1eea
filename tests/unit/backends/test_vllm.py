"""Backend `vllm`: what differs from `openai`."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from msgspec import Raw

from gateway.backends.vllm import Vllm
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Response
from gateway.core.messages import (
    Beams,
    Chat,
    Complete,
    Detokenize,
    Embed,
    Message,
    Op,
    Output,
    Sampling,
    Text,
    Thinking,
    Tokenize,
    Tool,
)
from gateway.core.ports import Capabilities
from tests.support.raised import raised

BACKEND = Vllm()
HI = (Message("user", (Text("hi"),)),)


def body(op: Op) -> Any:
    return json.loads(BACKEND.write(op, Capabilities("sim")).body)


def chat(**members: Any) -> Chat:
    return Chat(model="m", messages=HI, **members)


def text(**members: Any) -> Complete:
    return Complete(model="m", prompts=("hi",), **members)


@pytest.mark.parametrize("tools", [b"[]", b"[ ]", b" [\n] "])
def test_no_tools_are_not_sent_nor_what_goes_with_them(tools: bytes) -> None:
    raw = {
        "messages": Raw(b"[]"),
        "tools": Raw(tools),
        "tool_choice": Raw(b'"auto"'),
        "parallel_tool_calls": Raw(b"true"),
    }
    assert body(chat(raw=raw, wire="openai")) == {"messages": [], "model": "sim"}
    assert body(chat(tool_choice="auto", parallel_tools=True)) == body(chat())


def test_tools_are_sent_with_what_goes_with_them() -> None:
    found = body(chat(tools=(Tool("f"),), tool_choice="auto", parallel_tools=False))
    assert (len(found["tools"]), found["tool_choice"], found["parallel_tool_calls"]) == (1, "auto", False)
    raw = {"messages": Raw(b"[]"), "tools": Raw(b'[{"x":1}]'), "tool_choice": Raw(b'"auto"')}
    assert body(chat(raw=raw, wire="openai"))["tool_choice"] == "auto"


@pytest.mark.parametrize("own", [None, Raw(b'"mine"')])
def test_a_salt_is_sent_whatever_the_operation_and_holds_the_clients_own(own: Raw | None) -> None:
    extra = {} if own is None else {"cache_salt": own}
    made: list[Chat | Complete | Embed] = [
        chat(extra=extra),
        text(extra=extra),
        Embed(model="m", inputs=("hi",), extra=extra),
    ]
    made.append(chat(raw={"messages": Raw(b"[]"), **extra}, wire="openai"))
    for op in made:
        assert body(op).get("cache_salt") == (None if own is None else "mine")
        op.salt = "team"
        salt = body(op)["cache_salt"]
        assert (salt == "team") == (own is None)
        assert re.fullmatch(r"team|[A-Za-z0-9_-]{43}", salt), "vLLM takes no / and no @"
        op.salt = "other"
        assert body(op)["cache_salt"] != salt


def test_stream_options_go_with_a_stream_only() -> None:
    raw = {"messages": Raw(b"[]"), "stream_options": Raw(b'{"include_usage":true}')}
    assert "stream_options" not in body(chat(raw=raw, wire="openai"))
    assert body(chat(stream=True))["stream_options"] == {"include_usage": True}


def test_its_own_sampling() -> None:
    sampling = Sampling(
        temperature=0.0,
        top_k=0,
        min_p=0.1,
        repetition_penalty=1.1,
        min_tokens=2,
        ignore_eos=True,
        stop_tokens=(1, 2),
        eos_tokens=(2, 3),
        bad_words=("x",),
        logit_bias={7: 1.0},
        bad_tokens=((9,),),
    )
    found = body(chat(sampling=sampling))
    del found["messages"], found["model"]
    assert found == {
        "temperature": 0.0,
        "top_k": 0,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "min_tokens": 2,
        "ignore_eos": True,
        "stop_token_ids": [1, 2, 3],
        "bad_words": ["x"],
        "logit_bias": {"7": 1.0, "9": -100.0},
    }


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (Output("regex", pattern="a+"), {"structured_outputs": {"regex": "a+"}}),
        (Output("grammar", pattern="root ::= x"), {"structured_outputs": {"grammar": "root ::= x"}}),
        (Output("choice", choices=("a", "b")), {"structured_outputs": {"choice": ["a", "b"]}}),
        (Output("json"), {"response_format": {"type": "json_object"}}),
        (Output("text"), {}),
    ],
)
def test_its_own_constraints(output: Output, expected: dict[str, Any]) -> None:
    assert body(text(output=output)) == {**body(text()), **expected}


def test_beam_search() -> None:
    found = body(text(beams=Beams(3, 1.5, False)))
    assert (found["use_beam_search"], found["n"], found["length_penalty"]) == (True, 3, 1.5)
    error = raised(body, text(beams=Beams(3, None, True)))
    assert (error.kind, error.param) == (Kind.UNSUPPORTED, "early_stopping")


def test_ids_of_tokens() -> None:
    assert body(text(want_tokens=True))["return_token_ids"] is True


def test_embeddings_are_those_of_openai() -> None:
    assert body(Embed(model="m", inputs=("a",))) == {"input": "a", "model": "sim"}


def test_how_long_a_prompt_is_is_asked_first() -> None:
    counting = BACKEND.count(text(max_total=9), Capabilities("sim"))
    assert (counting.request.method, counting.request.path) == ("POST", "/tokenize")
    assert json.loads(counting.request.body) == {"model": "sim", "prompt": "hi"}
    assert counting.read(Response(200, [], b'{"count":3,"max_model_len":8,"tokens":[1,2,3]}')).tokens == 3
    bare = text(max_total=9, extra={"add_special_tokens": Raw(b"false")})
    assert json.loads(BACKEND.count(bare, Capabilities("sim")).request.body)["add_special_tokens"] is False


@pytest.mark.parametrize(
    ("status", "said", "kind", "param"),
    [
        (404, b'{"detail":"Not Found"}', Kind.UNSUPPORTED, "min_total_tokens"),
        (405, b"", Kind.UNSUPPORTED, "min_total_tokens"),
        (500, b"{}", Kind.UPSTREAM, None),
        (503, b"{}", Kind.OVERLOADED, None),
        (200, b'{"tokens":[1]}', Kind.UPSTREAM, None),
        (200, b"<html>", Kind.UPSTREAM, None),
        (200, b"", Kind.UPSTREAM, None),
    ],
)
def test_a_worker_that_does_not_tell(status: int, said: bytes, kind: Kind, param: str | None) -> None:
    counting = BACKEND.count(text(min_total=9), Capabilities("sim"))
    error = raised(counting.read, Response(status, [], said))
    assert (error.kind, error.param) == (kind, param)


def test_how_long_a_chat_is_is_asked_with_all_that_its_template_reads() -> None:
    turn = Message("assistant", (Thinking("hm"), Text("Once")))
    asked = Chat(
        model="m",
        messages=(*HI, turn),
        tools=(Tool("f"),),
        continue_last=True,
        sampling=Sampling(temperature=0.5),
        extra={"chat_template_kwargs": Raw(b'{"a":1}'), "other": Raw(b"1")},
    )
    counting = BACKEND.count(asked, Capabilities("sim"))
    assert counting.request.path == "/tokenize"
    assert json.loads(counting.request.body) == {
        "model": "sim",
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Once", "reasoning_content": "hm", "reasoning": "hm"},
        ],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "continue_final_message": True,
        "add_generation_prompt": False,
        "chat_template_kwargs": {"a": 1},
    }
    with pytest.raises(GatewayError, match="cannot count the tokens") as caught:
        counting.read(Response(404, [], b"{}"))
    assert caught.value.kind is Kind.UNSUPPORTED


def test_the_last_message_is_gone_on_with() -> None:
    told = body(Chat(model="m", messages=(*HI, Message("assistant", (Text("Once"),))), continue_last=True))
    assert (told["continue_final_message"], told["add_generation_prompt"]) == (True, False)


@pytest.mark.parametrize(
    ("version", "old", "new"), [((0, 11, 2), True, False), ((0, 12), False, True), ((), True, True)]
)
def test_an_older_name_of_a_constraint_is_told_to_each_version(version: tuple[int, ...], old: bool, new: bool) -> None:
    """vLLM 0.12 and later ignore `guided_choice`: without its new name an answer would not be constrained."""
    op = Chat(model="m", messages=HI, extra={"guided_choice": Raw(b'["a","b"]')})
    sent = json.loads(BACKEND.write(op, Capabilities("w", version=version)).body)
    assert ("guided_choice" in sent, "structured_outputs" in sent) == (old, new)
    assert sent.get("structured_outputs", {"choice": ["a", "b"]}) == {"choice": ["a", "b"]}


def test_one_constraint_under_an_older_name_is_all_that_a_request_may_have() -> None:
    op = Chat(model="m", messages=HI, extra={"guided_regex": Raw(b'"a"'), "structured_outputs": Raw(b'{"regex":"b"}')})
    with pytest.raises(GatewayError) as refused:
        BACKEND.write(op, Capabilities("w"))
    assert (refused.value.kind, refused.value.param) == (Kind.UNSUPPORTED, "guided_regex")


@pytest.mark.parametrize("extra", [{}, {"request_id": Raw(b'"mine"')}])
def test_a_request_id_in_the_body_is_named(extra: dict[str, Raw]) -> None:
    """The header X-Request-Id, which every request to a worker has, goes before it."""
    sent = BACKEND.write(chat(extra=extra), Capabilities("w"))
    assert sent.dropped == tuple(extra)
    assert b"mine" not in sent.body


def test_a_worker_without_embeddings_has_not_failed() -> None:
    op = Embed(model="m", inputs=("hi",))
    fault = BACKEND.fault(Response(404, [], b'{"detail":"Not Found"}'), op)
    assert (fault.kind, fault.message) == (Kind.UNSUPPORTED, "the vllm worker of this model makes no embeddings")
    assert (
        BACKEND.fault(Response(404, [], b'{"error":{"message":"The model `m` does not exist."}}'), op).kind
        is not fault.kind
    )


@pytest.mark.parametrize(("said", "param"), [("body.stop", "stop"), ("stop", "stop"), ("", None), (None, None)])
def test_a_field_is_named_without_its_body(said: str | None, param: str | None) -> None:
    error = {"error": {"message": "no", "type": "Bad Request", "param": said, "code": 400}}
    assert BACKEND.fault(Response(400, [], json.dumps(error).encode())).param == param


def test_texts_become_tokens_and_tokens_texts() -> None:
    there = BACKEND.tokenize(Tokenize(model="m", prompt="hi", special=True), Capabilities("sim")).request
    back = BACKEND.tokenize(Detokenize(model="m", tokens=(1, 2)), Capabilities("sim")).request
    assert (there.path, json.loads(there.body)["prompt"]) == ("/tokenize", "hi")
    assert (back.path, json.loads(back.body)["tokens"]) == ("/detokenize", [1, 2])
