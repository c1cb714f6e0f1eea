"""What the workers of a vLLM say of themselves decides what they are asked: versions, flags, our logits processor."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from gateway.backends.vllm import Vllm
from gateway.core.errors import GatewayError, Kind
from gateway.core.messages import Beams, Chat, Complete, Image, Message, Output, Sampling, Text, Tool
from gateway.core.ports import BEYOND, Capabilities
from gateway.translation.ability import refuse_beyond
from tests.support.raised import raised

CHAT = Chat(model="m", messages=(Message("user", (Text("x"),)),))


def complete(**fields: Any) -> Complete:
    return Complete(model="m", prompts=("x",), max_output=4, **fields)


def sent(op: Chat | Complete, **can: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(Vllm().write(op, Capabilities("m", **can)).body)
    return body


def test_an_advertised_processor_gets_ngrams_and_sequences_in_its_words() -> None:
    sampling = Sampling(no_repeat_ngram=3, bad_tokens=((5,), (6, 7), (8, 9, 10)))
    body = sent(complete(sampling=sampling), beyond=BEYOND)
    assert body["vllm_xargs"] == {"no_repeat_ngram": 3, "bad_word_tokens": "6 7;8 9 10"}
    assert body["logit_bias"] == {"5": -100.0}


def test_what_a_client_passes_on_to_other_extensions_stays() -> None:
    op = complete(sampling=Sampling(no_repeat_ngram=3), extra={"vllm_xargs": Raw(b'{"mine":1}')})
    assert sent(op, beyond=BEYOND)["vllm_xargs"] == {"mine": 1, "no_repeat_ngram": 3}


@pytest.mark.parametrize("ngram", [None, 0, 1])
def test_what_is_off_needs_no_processor(ngram: int | None) -> None:
    assert "vllm_xargs" not in sent(complete(sampling=Sampling(no_repeat_ngram=ngram, bad_tokens=((5,),))))


@pytest.mark.parametrize(
    ("sampling", "beams", "beyond", "param"),
    [
        (Sampling(no_repeat_ngram=2), None, frozenset(), "no_repeat_ngram"),
        (Sampling(bad_tokens=((1, 2),)), None, frozenset(), "bad_word_tokens"),
        (Sampling(bad_tokens=((1, 2),)), None, frozenset({"no_repeat_ngram"}), "bad_word_tokens"),
        (Sampling(no_repeat_ngram=2), Beams(2), BEYOND, "no_repeat_ngram"),
    ],
)
def test_stock_vllm_and_its_beam_search_refuse_by_name(
    sampling: Sampling, beams: Beams | None, beyond: frozenset[str], param: str
) -> None:
    error = raised(sent, complete(sampling=sampling, beams=beams), beyond=beyond)
    assert (error.kind, error.param) == (Kind.UNSUPPORTED, param)


@pytest.mark.parametrize(
    ("fields", "version", "param"),
    [
        ({"want_tokens": True}, (0, 10, 1), "tokens"),
        ({"output": Output("regex", pattern="a")}, (0, 11, 2), "response_format"),
        ({"output": Output("choice", choices=("a",))}, (0, 11), "response_format"),
    ],
)
def test_an_older_engine_would_ignore_it_in_silence(
    fields: dict[str, Any], version: tuple[int, ...], param: str
) -> None:
    error = raised(sent, complete(**fields), version=version)
    assert (error.kind, error.param) == (Kind.UNSUPPORTED, param)
    assert ".".join(map(str, version)) in error.message
    for enough in ((), (0, 12), (0, 32, 0)):
        assert sent(complete(**fields), version=enough)


def test_what_a_worker_lacks_is_refused_though_nothing_was_declared() -> None:
    op = Chat(model="m", messages=CHAT.messages, tools=(Tool("f"),))
    refuse_beyond(op, Capabilities("m"))
    refuse_beyond(op, Capabilities("m", lacks=frozenset({"vision"})))
    assert raised(refuse_beyond, op, Capabilities("m", lacks=frozenset({"tools"}))).param == "tools"
    seen = Chat(model="m", messages=(Message("user", (Image("data:image/png;base64,AA"),)),))
    error = raised(refuse_beyond, seen, Capabilities("m", lacks=frozenset({"vision"})))
    assert error.param == "messages.0.content.0"


def test_what_a_worker_lacks_outweighs_what_was_declared() -> None:
    op = Chat(model="m", messages=CHAT.messages, tools=(Tool("f"),))
    with pytest.raises(GatewayError):
        refuse_beyond(op, Capabilities("m", features=frozenset({"tools"}), lacks=frozenset({"tools"})))
