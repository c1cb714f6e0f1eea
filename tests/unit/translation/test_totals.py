"""Limits on prompt and output together, and what becomes of them."""

from __future__ import annotations

import pytest

from gateway.backends.openai import OpenAI
from gateway.backends.vllm import Vllm
from gateway.core.errors import GatewayError, Kind
from gateway.core.messages import Chat, Complete, Sampling
from gateway.core.ports import Capabilities
from gateway.translation import totals

CAN = Capabilities("w")


def op(
    most: int | None = None, least: int | None = None, output: int | None = None, tokens: int | None = None
) -> Complete:
    sampling = Sampling(top_k=3, min_tokens=tokens)
    return Complete(model="m", prompts=("hi",), max_total=most, min_total=least, max_output=output, sampling=sampling)


@pytest.mark.parametrize(
    ("asked", "prompt", "most", "least"),
    [
        (op(most=10), 4, 6, None),
        (op(most=5), 4, 1, None),
        (op(most=10, output=3), 4, 3, None),
        (op(least=10), 4, None, 6),
        (op(least=4), 4, None, None),
        (op(least=3), 4, None, None),
        (op(most=10, least=10), 4, 6, 6),
        (op(most=10, tokens=2), 4, 6, 2),
        (op(least=6, tokens=5), 4, None, 5),
        (op(output=5, tokens=5), 0, 5, 5),
    ],
)
def test_they_become_limits_on_the_output(asked: Complete, prompt: int, most: int | None, least: int | None) -> None:
    totals.apply_prompt_length(asked, prompt)
    assert (asked.max_output, asked.sampling.min_tokens, asked.sampling.top_k) == (most, least, 3)
    assert (asked.max_total, asked.min_total) == (None, None)


@pytest.mark.parametrize(
    ("asked", "prompt", "param"),
    [
        (op(most=4), 4, "max_total_tokens"),
        (op(most=4), 400, "max_total_tokens"),
        (op(most=10, least=11), 4, "min_total_tokens"),
        (op(least=10, output=5), 4, "min_total_tokens"),
        (op(most=10, tokens=7), 4, "min_tokens"),
        (op(output=4, tokens=5), 0, "min_tokens"),
    ],
)
def test_what_leaves_no_room_is_refused(asked: Complete, prompt: int, param: str) -> None:
    with pytest.raises(GatewayError, match=f"'{param}'") as caught:
        totals.apply_prompt_length(asked, prompt)
    assert (caught.value.kind, caught.value.param) == (Kind.BAD_REQUEST, param)


def test_a_worker_is_asked_only_for_them() -> None:
    for other in (op(output=3), Chat(model="m", messages=())):
        assert totals.length_request(other, Vllm(), CAN) is None
        assert totals.first_request(other) is other
    asked = op(most=4, least=2)
    assert totals.length_request(asked, Vllm(), CAN) is not None
    bare = totals.first_request(asked)
    assert (bare.max_total, bare.min_total, bare.prompts) == (None, None, asked.prompts)
    with pytest.raises(GatewayError, match="max_total_tokens"):
        totals.length_request(asked, OpenAI(), CAN)


# -- the room that a context has ------------------------------------------------------------------------------------


def chat(output: int | None, fit: bool = True) -> Chat:
    return Chat(model="m", messages=(), max_output=output, fit_output=fit)


ROOM = Capabilities("w", 100)


@pytest.mark.parametrize(
    ("op", "can", "estimate"),
    [
        (chat(None), ROOM, 90),
        (chat(50), ROOM, 50),
        (chat(1000, fit=False), ROOM, 50),
        (chat(1000), Capabilities("w"), 50),
    ],
)
def test_a_worker_is_not_asked_where_the_output_fits(op: Chat, can: Capabilities, estimate: int) -> None:
    assert totals.length_request(op, Vllm(), can, estimate) is None
    assert totals.apply_estimate(op, estimate, can) == ()


def test_a_worker_is_asked_where_the_output_may_not_fit() -> None:
    assert totals.length_request(chat(51), Vllm(), ROOM, 50) is not None
    assert totals.length_request(chat(51), OpenAI(), ROOM, 50) is None, "it cannot tell, and the chat can do without"


@pytest.mark.parametrize(("asked", "prompt", "granted"), [(51, 50, 50), (1000, 99, 1), (50, 50, 50)])
def test_the_output_is_cut_to_the_room_and_named(asked: int, prompt: int, granted: int) -> None:
    op = chat(asked)
    assert totals.apply_prompt_length(op, prompt, ROOM) == (() if asked == granted else ("max_tokens",))
    assert op.max_output == granted


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    with pytest.raises(GatewayError, match="the prompt has 100 tokens; this model's context is 100") as caught:
        totals.apply_prompt_length(chat(5), 100, ROOM)
    assert caught.value.kind is Kind.CONTEXT_LENGTH


@pytest.mark.parametrize(
    ("asked", "estimate", "granted"),
    [(100, 40, 60), (5000, 40, 60), (99, 40, 99), (100, 4000, 1)],
    ids=["all of it", "more", "less, which may fit", "an estimate refuses nothing"],
)
def test_where_nobody_can_tell_only_what_never_fits_is_cut(asked: int, estimate: int, granted: int) -> None:
    op = chat(asked)
    assert totals.apply_estimate(op, estimate, ROOM) == (() if asked == granted else ("max_tokens",))
    assert op.max_output == granted
