"""Errors of the dialect `friendli`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.backends.llamacpp import LlamaCpp
from gateway.backends.openai import OpenAI
from gateway.core.errors import GatewayError, Kind
from gateway.dialects.friendli.replies import ERRORS
from tests.unit.dialects.friendli.exchange import CAN, DIALECT, events, lane, read, read_chat


@pytest.mark.parametrize("kind", list(Kind))
def test_errors(kind: Kind) -> None:
    error = GatewayError(kind, "why", param="prompt", retry_after=3)
    response = DIALECT.refuse(error, None, None)[0]
    status, type_, code = ERRORS[kind]
    assert response.status == status
    assert json.loads(response.body) == {"error": {"message": "why", "type": type_, "param": "prompt", "code": code}}
    assert (response.header(b"retry-after") is not None) == (status in (429, 503) or kind is Kind.UPSTREAM)


def test_the_clients_own_deadline_is_a_429() -> None:
    def late() -> GatewayError:
        message = "the request took longer than 1 s"
        return GatewayError(Kind.TIMEOUT, message, param="timeout", code="deadline_exceeded")

    own = read(timeout_microseconds=1_000_000)
    response = DIALECT.refuse(late(), None, own)[0]
    assert response.status == 429
    assert json.loads(response.body)["error"]["param"] == "timeout_microseconds"
    assert response.header(b"retry-after") is None
    for op in (own, read_chat(timeout_microseconds=1_000_000)):
        (told,) = events(lane(op).fail(late()))
        assert told["error"]["param"] == "timeout_microseconds"
    ours = GatewayError(Kind.TIMEOUT, "the request took longer than 1 s", code="deadline_exceeded")
    assert DIALECT.refuse(ours, None, own)[0].status == 504
    assert b"timeout_microseconds" not in DIALECT.refuse(ours, None, own)[0].body
    worker = GatewayError(Kind.TIMEOUT, "the worker is silent")
    assert DIALECT.refuse(worker, None, read(timeout_microseconds=1_000_000))[0].status == 504


@pytest.mark.parametrize(
    ("members", "said", "param"),
    [
        ({"stop": ["a"] * 5}, "stop", "stop"),
        ({"num_beams": 20}, "logprobs", "num_beams"),
        ({"include_output_logprobs": True}, "logprobs", "include_output_logprobs"),
        ({"stop_tokens": [{"tokens": [5]}]}, "stop_token_ids", "stop_tokens"),
        ({"bad_word_tokens": [{"tokens": [5]}]}, "logit_bias", "bad_word_tokens"),
        ({"prompt": None, "tokens": [1]}, "prompt", "tokens"),
    ],
)
def test_a_worker_that_refuses_a_field_by_name(members: dict[str, Any], said: str, param: str) -> None:
    error = GatewayError(Kind.BAD_REQUEST, f"'{said}' is too much", param=said, upstream=400)
    response = DIALECT.refuse(error, None, read(members))[0]
    assert response.status == 422
    told = json.loads(response.body)["error"]
    assert (told["param"], told["message"]) == (param, f"'{param}' is too much")


@pytest.mark.parametrize(
    ("members", "param"), [({}, "prompt"), ({"prompt": None, "tokens": [1]}, "tokens")], ids=["text", "ids"]
)
def test_a_worker_without_token_ids_is_told_in_terms_of_what_was_sent(members: dict[str, Any], param: str) -> None:
    op = read(members)
    with pytest.raises(GatewayError) as caught:
        OpenAI().write(op, CAN)
    response = DIALECT.refuse(caught.value, None, op)[0]
    told = json.loads(response.body)["error"]
    assert (response.status, told["param"]) == (422, param)
    assert "workers of the backends vllm (0.10.2 and later), tgi and llamacpp do" in told["message"]


def test_seeds_that_no_worker_takes_say_what_would_do() -> None:
    with pytest.raises(GatewayError, match=r"'seed'.*4294967294"):
        LlamaCpp().write(read(n=2, seed=2**32 - 2), CAN)


def test_a_worker_that_names_no_field_is_a_400() -> None:
    assert DIALECT.refuse(GatewayError(Kind.BAD_REQUEST, "no", upstream=400), None, read())[0].status == 400
    long = GatewayError(Kind.CONTEXT_LENGTH, "too long", param="input_tokens", upstream=400)
    assert DIALECT.refuse(long, None, read())[0].status == 400
