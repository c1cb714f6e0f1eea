"""What declared features rule out, and by which name it is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from gateway import backends
from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.messages import (
    Audio,
    Beams,
    Chat,
    Complete,
    Detokenize,
    Embed,
    Image,
    Logprobs,
    Message,
    Op,
    Opaque,
    Output,
    Part,
    Refusal,
    Sampling,
    Score,
    Text,
    Thinking,
    Tokenize,
    Tool,
    ToolCall,
)
from gateway.core.ports import Backend, Capabilities
from gateway.translation.ability import refuse_beyond, write_possible
from tests.support.raised import raised

ALL = frozenset(
    {"tools", "vision", "audio", "reasoning", "json", "json_schema", "regex", "beams", "embeddings", "scores"}
)
ALL |= {"completions", "logprobs", "token_ids", "prompt_tokens"}


def chat(*parts: Part, **members: object) -> Chat:
    messages = (Message("system", (Text("s"),)), Message("user", parts or (Text("hi"),)))
    return Chat(model="m", messages=messages, **members)  # type: ignore[arg-type]


ROWS: list[tuple[Op, str, str | None]] = [
    (chat(tools=(Tool("f"),)), "tools", "tools"),
    (chat(Text("look"), Image("http://x/y")), "vision", "messages.1.content.1"),
    (chat(Thinking("hm"), ToolCall("1", "f", "{}"), Image("http://x/y")), "vision", "messages.1.content.0"),
    (chat(Audio("AAAA", "wav")), "audio", "messages.1.content.0"),
    (chat(Opaque("audio_url", Raw(b"{}"))), "audio", "messages.1.content.0"),
    (chat(Opaque("video_url", Raw(b"{}"))), "vision", "messages.1.content.0"),
    (chat(reasoning="low"), "reasoning", "reasoning_effort"),
    (chat(output=Output("schema", Raw(b"{}"))), "json_schema", "response_format"),
    (chat(output=Output("regex", pattern="a")), "regex", "response_format"),
    (chat(output=Output("grammar", pattern="a")), "regex", "response_format"),
    (chat(output=Output("choice", choices=("a",))), "regex", "response_format"),
    (chat(logprobs=Logprobs()), "logprobs", "logprobs"),
    (chat(want_tokens=True), "token_ids", "tokens"),
    (Complete(model="m", prompts=("hi",)), "completions", "prompt"),
    (Complete(model="m", prompts=("hi",), beams=Beams(2)), "beams", "num_beams"),
    (Complete(model="m", prompts=((1, 2),)), "prompt_tokens", "prompt"),
    (Embed(model="m", inputs=("hi",)), "embeddings", None),
    (Score(model="m", queries=("q",), documents=("d",)), "scores", None),
]


@pytest.mark.parametrize(("op", "feature", "param"), ROWS)
def test_each_need_is_refused_only_where_its_feature_is_missing(op: Op, feature: str, param: str | None) -> None:
    refuse_beyond(op, Capabilities("m", features=ALL))
    error = raised(refuse_beyond, op, Capabilities("m", features=ALL - {feature}))
    assert (error.kind, error.param, error.blame) == (Kind.UNSUPPORTED, param, Blame.CLIENT)


@pytest.mark.parametrize(("op", "feature", "param"), ROWS)
def test_nothing_declared_refuses_nothing(op: Op, feature: str, param: str | None) -> None:
    refuse_beyond(op, Capabilities("m"))


def test_json_needs_either_of_two_features() -> None:
    op = chat(output=Output("json"))
    refuse_beyond(op, Capabilities("m", features=frozenset({"json"})))
    refuse_beyond(op, Capabilities("m", features=frozenset({"json_schema"})))
    assert raised(refuse_beyond, op, Capabilities("m", features=frozenset())).value == "json_object"


def test_plain_chats_and_text_need_nothing() -> None:
    none = Capabilities("m", features=frozenset())
    refuse_beyond(chat(output=Output("text"), n=2, stop=("a",)), none)
    refuse_beyond(chat(Text("a"), Refusal("no"), Opaque("file", Raw(b"{}"))), none)


def test_a_prompt_of_token_ids_must_fit_the_context() -> None:
    op = Complete(model="m", prompts=((1,), (1, 2, 3), "a text"))
    refuse_beyond(op, Capabilities("m", max_context=3))
    error = raised(refuse_beyond, op, Capabilities("m", max_context=2))
    assert (error.kind, error.param) == (Kind.CONTEXT_LENGTH, "prompt")
    assert error.message == "the prompt has 3 tokens; this model's context is 2"


# -- what is optional -------------------------------------------------------------------------------------------------


def test_what_is_optional_is_left_out_and_named_instead_of_refused() -> None:
    op = Chat(model="m", messages=(), reasoning="high", optional={"reasoning_effort": "effort"})
    assert refuse_beyond(op, Capabilities("w")) == ()
    assert op.reasoning == "high"
    assert refuse_beyond(op, Capabilities("w", features=frozenset({"tools"}))) == ("effort",)
    assert op.reasoning is None


@pytest.mark.parametrize(
    ("backend", "op", "name", "absent"),
    [
        (backends.create("tgi"), {"reasoning": "high"}, "reasoning_effort", "reasoning_effort"),
        (backends.create("openai"), {"sampling": Sampling(top_k=4, temperature=0.5)}, "top_k", "top_k"),
    ],
)
def test_what_a_backend_refuses_to_write_is_left_out_where_it_is_optional(
    backend: Backend, op: dict[str, Any], name: str, absent: str
) -> None:
    messages = (Message("user", (Text("hi"),)),)
    with pytest.raises(GatewayError):
        write_possible(backend, Chat(model="m", messages=messages, **op), Capabilities("w"))
    request = write_possible(
        backend, Chat(model="m", messages=messages, optional={name: "theirs"}, **op), Capabilities("w")
    )
    assert request.dropped == ("theirs",)
    assert absent not in json.loads(request.body)


@pytest.mark.parametrize("features", [{"embeddings"}, {"scores"}, {"embeddings", "scores"}])
def test_a_model_that_only_pools_takes_no_chat(features: set[str]) -> None:
    error = raised(refuse_beyond, chat(), Capabilities("m", features=frozenset(features)))
    assert (error.kind, error.code) == (Kind.UNSUPPORTED, "beyond_model")
    assert ("makes embeddings only" in error.message) == (features == {"embeddings"})
    assert refuse_beyond(chat(), Capabilities("m", features=frozenset())) == (), "a plain chat needs no feature"
    for question in (Tokenize(model="m", prompt="hi", special=True), Detokenize(model="m", tokens=(1,))):
        assert refuse_beyond(question, Capabilities("m", features=frozenset(features))) == ()
