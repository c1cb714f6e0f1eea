"""Text completions of the dialect `friendli`: what is read, sent on and refused. No socket."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.backends.vllm import Vllm
from gateway.core.http import Response
from gateway.core.lifecycle import fold
from gateway.core.ports import Capabilities
from tests.unit.dialects.friendli.exchange import CLIENT_BODY, DIALECT, read, read_chat, refused, to_worker


def test_the_clients_body_is_read_and_every_default_is_said_aloud() -> None:
    sent = to_worker(read(CLIENT_BODY))
    seed = sent.pop("seed")
    assert 0 <= seed < 2**31
    own = {"prompt": "Say this is a test!", "model": "w", "max_tokens": 2048, "return_token_ids": True}
    assert sent == {**own, "temperature": 1.0, "top_k": 0, "top_p": 1.0}


def test_members_whose_form_differs_from_the_workers() -> None:
    """Each of the others is measured by tests/laws/fidelity."""
    op = read(
        prompt=None,
        tokens=[1, 2],
        timeout_microseconds=5_000_000,
        max_tokens=5,
        no_repeat_ngram=1,
        encoder_no_repeat_ngram=1,
        encoder_repetition_penalty=1.0,
        stop_tokens=[{"tokens": [1, 2]}, {"tokens": [3]}],
        seed=1,
        bad_word_tokens=[{"tokens": [5]}],
        include_output_logprobs=True,
        token_index_to_replace=[],
        model="m",
    )
    sent = to_worker(op)
    assert (sent["prompt"], sent["stop_token_ids"], sent["logit_bias"]) == ([1, 2], [1, 2, 3], {"5": -100.0})
    assert (sent["seed"], sent["logprobs"], sent["return_token_ids"]) == (1, 0, True)
    assert not sent.keys() & {"n", "no_repeat_ngram", "stop", "bad_words"}
    assert (op.timeout, op.seeds, op.model, op.dropped) == (5.0, (1,), "m", ())


@pytest.mark.parametrize(
    ("members", "context", "limit"),
    [
        ({"prompt": "hi"}, 2048, 2048),
        ({"prompt": None, "tokens": [1, 2, 3]}, 2048, 2045),
        ({"prompt": "hi"}, None, 2**31 - 1),
        ({"prompt": None, "tokens": [1, 2, 3], "max_total_tokens": 8}, 2048, 5),
    ],
)
def test_no_limit_is_the_rest_of_the_context(members: dict[str, Any], context: int | None, limit: int) -> None:
    assert to_worker(read(members), can=Capabilities("w", context))["max_tokens"] == limit


def test_totals_count_from_the_prompts_end() -> None:
    op = read(prompt=None, tokens=[1, 2, 3], max_total_tokens=10, min_total_tokens=5)
    assert (op.max_output, op.sampling.min_tokens) == (7, 2)
    assert read(prompt=None, tokens=[1, 2, 3], min_total_tokens=2).sampling.min_tokens is None
    text = read(max_total_tokens=10, min_total_tokens=5)
    assert (text.max_total, text.min_total, text.max_output) == (10, 5, None)
    assert read(min_total_tokens=0).min_total is None


def test_seeds() -> None:
    assert read(n=3, seed=7).seeds == (7, 8, 9)
    assert read(n=2, seed=[5, 6]).seeds == (5, 6)
    assert read(seed=[5]).seeds == (5,)
    drawn = read(n=2).seeds
    assert drawn[1] == drawn[0] + 1
    assert to_worker(read(n=2, seed=[5, 6]))["seed"] == 5
    assert len({read().seeds for _ in range(20)}) > 15


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"type": "text"}, {}),
        ({"type": "json_object"}, {"response_format": {"type": "json_object"}}),
        (
            {"type": "json_object", "schema": '{"type": "object"}'},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "output", "schema": {"type": "object"}},
                }
            },
        ),
        ({"type": "regex", "schema": "[a-z]+"}, {"structured_outputs": {"regex": "[a-z]+"}}),
    ],
)
def test_response_formats(given: dict[str, Any], sent: dict[str, Any]) -> None:
    for op in (read(response_format=given), read_chat(response_format=given)):
        found = to_worker(op)
        assert {name: found[name] for name in ("response_format", "structured_outputs") if name in found} == sent


def test_beam_search() -> None:
    op = read(num_beams=4, length_penalty=1.5, early_stopping=False, beam_search_type="DETERMINISTIC", max_tokens=8)
    sent = to_worker(op)
    assert (sent["use_beam_search"], sent["n"], sent["length_penalty"], sent["max_tokens"]) == (True, 4, 1.5, 8)
    assert "seed" not in sent
    assert op.seeds


def test_a_beam_search_has_one_choice_the_best_beam() -> None:
    op = read(num_beams=2, seed=3)
    beams = [{"index": i, "text": f" {i}", "finish_reason": "length", "token_ids": [i, 9]} for i in range(2)]
    body = {"choices": beams, "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}
    reply = fold(Vllm().read(Response(200, [], json.dumps(body).encode()), op))
    said = json.loads(DIALECT.write(reply, op).body)
    assert said["choices"] == [{"index": 0, "seed": 3, "text": " 0", "tokens": [0, 9], "finish_reason": "length"}]
    assert said["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def test_what_is_ignored_is_named() -> None:
    assert read({}, (b"x-friendli-team", b"TEAM")).dropped == ("X-Friendli-Team",)
    assert read(beam_search_type="STOCHASTIC").dropped == ("beam_search_type",)
    assert read().dropped == ()


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"tokens": [1]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": None, "tokens": []}, "tokens"),
        ({"max_tokens": 5, "max_total_tokens": 5}, "max_total_tokens"),
        ({"min_tokens": 5, "min_total_tokens": 5}, "min_total_tokens"),
        ({"prompt": None, "tokens": [1, 2], "max_total_tokens": 2}, "max_total_tokens"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens"),
        ({"n": 2, "seed": [1]}, "seed"),
        ({"seed": [1, 2]}, "seed"),
        ({"num_beams": 2, "stream": True}, "stream"),
        ({"num_beams": 2, "n": 2}, "n"),
        ({"num_beams": 2, "stop": ["a"]}, "stop"),
        ({"num_beams": 2, "top_k": 3}, "top_k"),
        ({"num_beams": 2, "top_p": 0.5}, "top_p"),
        ({"num_beams": 2, "temperature": 0.5}, "temperature"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"encoder_repetition_penalty": 0.9}, "encoder_repetition_penalty"),
        ({"stop_tokens": [{"tokens": []}]}, "stop_tokens.0.tokens"),
        ({"beam_search_type": "GREEDY"}, "beam_search_type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "regex"}}, "response_format.schema"),
        ({"response_format": {"type": "regex", "schema": "a" * 20_000}}, "response_format.schema"),
        ({"response_format": {"type": "text", "schema": "a"}}, "response_format.schema"),
        ({"response_format": {"type": "json_object", "schema": "{"}}, "response_format.schema"),
        ({"response_format": {"type": "json_object", "schema": "1"}}, "response_format.schema"),
    ],
)
def test_what_makes_no_sense_is_a_400(members: dict[str, Any], param: str) -> None:
    status, error = refused({"prompt": "hi", **members})
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"no_repeat_ngram": 2}, "no_repeat_ngram"),
        ({"encoder_no_repeat_ngram": 2}, "encoder_no_repeat_ngram"),
        ({"encoder_repetition_penalty": 1.5}, "encoder_repetition_penalty"),
        ({"token_index_to_replace": [0]}, "token_index_to_replace"),
        ({"embedding_to_replace": [0.1]}, "embedding_to_replace"),
        ({"include_output_logits": True}, "include_output_logits"),
        ({"bad_word_tokens": [{"tokens": [1, 2]}]}, "bad_word_tokens"),
        ({"num_beams": 2, "early_stopping": True}, "early_stopping"),
        ({"num_beams": 2, "beam_search_type": "STOCHASTIC"}, "beam_search_type"),
        ({"num_beams": 2, "stop_tokens": [{"tokens": [1]}]}, "stop_tokens"),
        ({"num_beams": 2, "eos_token": [1]}, "eos_token"),
        ({"num_beams": 2, "bad_word_tokens": [{"tokens": [1]}]}, "bad_word_tokens"),
        ({"num_beams": 2, "include_output_logprobs": True}, "include_output_logprobs"),
        ({"beam_compat_pre_normalization": True}, "beam_compat_pre_normalization"),
        ({"forced_output_tokens": [1]}, "forced_output_tokens"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_what_cannot_be_executed_is_a_422_that_names_it(members: dict[str, Any], param: str) -> None:
    status, error = refused({"prompt": "hi", **members})
    assert (status, error["param"], error["type"]) == (422, param, "unprocessable_request_error")
    assert f"'{param}'" in error["message"]


@pytest.mark.parametrize(
    ("name", "entry", "most"),
    [
        ("stop", "x", 64),
        ("stop_tokens", {"tokens": [1]}, 1024),
        ("bad_words", "x", 1024),
        ("bad_word_tokens", {"tokens": [1]}, 1024),
        ("eos_token", 1, 1024),
    ],
)
def test_lists_are_bounded(name: str, entry: Any, most: int) -> None:
    assert read({name: [entry] * most})
    status, error = refused({"prompt": "hi", name: [entry] * (most + 1)})
    assert (status, error["param"].split(".")[0]) == (400, name)
