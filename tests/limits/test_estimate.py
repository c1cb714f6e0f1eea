"""Tokens before they are counted: exact where ids are given, above the real count elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.core.messages import (
    Audio,
    Beams,
    Chat,
    Complete,
    Embed,
    Image,
    Message,
    Op,
    Text,
    Tool,
    ToolCall,
)
from gateway.limits import Cost, Estimator

EXACT = Estimator(bytes_per_token=1)


@given(st.text(max_size=200))
def test_one_byte_a_token_bounds_any_byte_level_tokenizer(text: str) -> None:
    assert EXACT.cost(Complete(model="m", prompts=(text,), max_output=0)).tokens == len(text.encode())


@pytest.mark.parametrize(
    ("op", "tokens", "least"),
    [
        (Embed(model="m", inputs=("abcd", (1, 2, 3))), 2 + 3, 3),
        (Complete(model="m", prompts=((1, 2, 3),), max_output=10), 13, 3),
        (Complete(model="m", prompts=((1, 2, 3),), max_output=10, n=4), 43, 3),
        (Complete(model="m", prompts=((1, 2), (3, 4)), max_output=10, n=2), 4 + 40, 4),
        (Complete(model="m", prompts=((1,) * 8,), max_total=20), 20, 8),
        (Complete(model="m", prompts=((1,) * 8,), max_total=5), 8, 8),
        (Complete(model="m", prompts=((1,),), max_output=10, beams=Beams(3)), 31, 1),
        (Complete(model="m", prompts=("",)), 1024, 0),
        (Chat(model="m", messages=(Message("user", (Text("abc"),)),), max_output=5), 8 + 1 + 5, 0),
        (Chat(model="m", messages=(Message("user", (Text("語語"),)),), max_output=5, n=2), 8 + 2 + 10, 0),
        (
            Chat(model="m", messages=(Message("user", (Image("x"), Audio("", "wav"))),), max_output=0),
            8 + 1024 + 1500,
            0,
        ),
        (Chat(model="m", messages=(Message("assistant", (ToolCall("i", "abc", "{}"),)),), max_output=0), 8 + 8 + 2, 0),
        (Chat(model="m", messages=(), tools=(Tool("abc", "abc", Raw(b"{}")),), max_output=0), 8 + 3, 0),
    ],
)
def test_costs(op: Op, tokens: int, least: int) -> None:
    cost = Estimator().cost(op)
    assert (cost.tokens, cost.least) == (tokens, least)
    assert cost.prompt <= tokens


def test_the_context_bounds_the_output() -> None:
    op = Complete(model="m", prompts=((1,) * 100,), max_output=10**6)
    assert Estimator().cost(op, 128) == Cost(128, 100, 100)
    assert Estimator().cost(Complete(model="m", prompts=((1,) * 100,)), 128) == Cost(128, 100, 100)
    assert Estimator().cost(Complete(model="m", prompts=((1,) * 200,)), 128) == Cost(201, 200, 200)


def test_a_lone_surrogate_has_a_size_too() -> None:
    assert EXACT.cost(Complete(model="m", prompts=("\ud800",), max_output=0)).tokens == 3
