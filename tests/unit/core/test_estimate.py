"""Tokens before they are counted: exact where ids are given, above the real count elsewhere."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.core.estimate import Cost, Estimator
from gateway.core.messages import (
    Audio,
    Beams,
    Chat,
    Complete,
    Embed,
    Image,
    Message,
    Op,
    Opaque,
    Output,
    Text,
    Tool,
    ToolCall,
)

EXACT = Estimator(bytes_per_token=1)


@given(st.text(max_size=200))
def test_one_byte_a_token_bounds_any_byte_level_tokenizer(text: str) -> None:
    assert EXACT.cost(Complete(model="m", prompts=(text,), max_output=0)).tokens == len(text.encode())


# With surrogates, which JSON may hold alone.
_ANY = st.text(st.characters(blacklist_categories=()), max_size=40)


@given(st.lists(st.lists(_ANY, max_size=4), max_size=4), st.sampled_from([1.0, 2.5, 3.0]))
def test_the_text_of_all_parts_counts_as_one(parts: list[list[str]], each: float) -> None:
    messages = tuple(Message("user", tuple(Text(one) for one in several)) for several in parts)
    text = "".join("".join(several) for several in parts)
    frames = 8 * len(messages)
    expected = frames + ceil(len(text.encode("utf-8", "surrogatepass")) / each)
    assert Estimator(bytes_per_token=each).cost(Chat(model="m", messages=messages, max_output=0)).prompt == expected


@pytest.mark.parametrize(
    ("op", "tokens", "least"),
    [
        (Embed(model="m", inputs=("abcd", (1, 2, 3))), 2 + 3, 3),
        (Complete(model="m", prompts=((1, 2, 3),), max_output=10), 13, 3),
        (Complete(model="m", prompts=((1, 2, 3),), max_output=10, n=4), 43, 3),
        (Complete(model="m", prompts=((1, 2), (3, 4)), max_output=10, n=2), 4 + 40, 4),
        (Complete(model="m", prompts=((1,) * 8,), max_total=20), 20, 8),
        (Complete(model="m", prompts=((1,) * 8,), max_total=5), 9, 8),
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
    assert Estimator().cost(op, 128) == Cost(128, 100, 100, each=28)
    assert Estimator().cost(Complete(model="m", prompts=((1,) * 100,)), 128) == Cost(128, 100, 100, each=28)
    assert Estimator().cost(Complete(model="m", prompts=((1,) * 200,)), 128) == Cost(201, 200, 200, each=1)


@pytest.mark.parametrize(
    ("members", "choices", "field"),
    [
        ({}, 1, ""),
        ({"n": 3}, 3, "n"),
        ({"beams": Beams(4)}, 4, "n"),
        ({"prompts": ("a",) * 5, "n": 2}, 10, "prompt"),
        ({"prompts": ("a",) * 2, "n": 5}, 10, "n"),
        ({"extra": {"best_of": Raw(b"7")}}, 7, "best_of"),
        ({"raw": {"n_cmpl": Raw(b"7"), "num_beams": Raw(b"8")}, "n": 2}, 8, "num_beams"),
        ({"extra": {"beam_width": Raw(b"6")}, "n": 2}, 6, "beam_width"),
    ],
)
def test_what_asks_for_several_outputs_is_named(members: dict[str, Any], choices: int, field: str) -> None:
    cost = Estimator().cost(Complete(**{"model": "m", "prompts": ("a",), "max_output": 9, **members}), 100)
    assert (cost.choices, cost.each, cost.field) == (choices, 9, field)
    assert Estimator(output=50).cost(Complete(model="m", prompts=("a",), n=2)).each == 50


def used(prompt: int, n: int, cap: int | None, context: int | None) -> int:
    """What an engine uses at most of a prompt of that many tokens."""
    room = max(context - prompt, 0) if context is not None else 10**9
    return prompt + n * (room if cap is None else min(cap, room))


@given(
    st.text(max_size=300),
    st.integers(1, 40),
    st.none() | st.integers(1, 5000),
    st.integers(1, 4000),
    st.floats(0, 1),
    st.sampled_from(["chat", "complete", "beams", "best_of"]),
)
def test_a_reservation_is_never_below_what_may_be_used(
    text: str, n: int, cap: int | None, context: int, share: float, form: str
) -> None:
    """However short the prompt turns out to be, and however many choices share the context."""
    if form == "chat":
        op: Op = Chat(model="m", messages=(Message("user", (Text(text),)),), n=n, max_output=cap)
    elif form == "complete":
        op = Complete(model="m", prompts=(text,), n=n, max_output=cap)
    elif form == "beams":
        op = Complete(model="m", prompts=(text,), beams=Beams(n), max_output=cap)
    else:
        op = Complete(model="m", prompts=(text,), max_output=cap, extra={"best_of": Raw(b"%d" % n)})
    cost = EXACT.cost(op, context)
    prompt = min(int(cost.prompt * share), context)
    assert cost.tokens >= used(prompt, n, cap, context)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=5), st.integers(1, 9), st.none() | st.integers(1, 90))
def test_nor_for_several_prompts(lengths: list[int], n: int, cap: int | None) -> None:
    ids = Complete(model="m", prompts=tuple((1,) * one for one in lengths), n=n, max_output=cap)
    texts = Complete(model="m", prompts=tuple("x" * one for one in lengths), n=n, max_output=cap)
    for op in (ids, texts):
        assert EXACT.cost(op, 64).tokens >= sum(used(one, n, cap, 64) for one in lengths)


LONG = "x" * 3000


@pytest.mark.parametrize(
    ("op", "more"),
    [
        (Chat(model="m", messages=(Message("user", (Text("a"),), name=LONG),)), 3000),
        (Chat(model="m", messages=(Message("tool", (Text("a"),), call_id=LONG),)), 3000),
        (Chat(model="m", messages=(Message("assistant", (ToolCall(LONG, "f", "{}"),)),)), 3000),
        (Chat(model="m", messages=(), extra={"documents": Raw(f'[{{"text":"{LONG}"}}]'.encode())}), 3000),
        (Chat(model="m", messages=(), raw={"documents": Raw(f'[{{"text":"{LONG}"}}]'.encode())}), 3000),
        (Chat(model="m", messages=(), raw={"never_heard_of": Raw(f'"{LONG}"'.encode())}), 3000),
        (Chat(model="m", messages=(), extra={"chat_template_kwargs": Raw(f'{{"a":"{LONG}"}}'.encode())}), 3000),
        (Chat(model="m", messages=(), raw={"chat_template": Raw(b'"{% for i in range(9999) %}x{% endfor %}"')}), 8192),
        (Complete(model="m", prompts=("a",), extra={"prompt_embeds": Raw(f'"{LONG}"'.encode())}), 3000),
        (Complete(model="m", prompts=("a",), suffix=LONG), 3000),
        (Embed(model="m", inputs=("a",), raw={"messages2": Raw(f'"{LONG}"'.encode())}), 3000),
        (Chat(model="m", messages=(Message("user", (Opaque("video_url", Raw(b"{}")),)),)), 16 * 1024),
        (Chat(model="m", messages=(Message("user", (Opaque("audio_url", Raw(b"{}")),)),)), 1500),
        (Chat(model="m", messages=(Message("user", (Opaque("new", Raw(f'"{LONG}"'.encode())),)),)), 3000),
        (
            Chat(
                model="m",
                messages=(Message("user", (Text("a", {"note": Raw(f'"{LONG}"'.encode())}),)),),
                unnamed=("messages[].content[].note",),
            ),
            3000,
        ),
        (
            Chat(
                model="m",
                messages=(Message("user", (Text("a"),), extra={"in": {"deep": Raw(f'"{LONG}"'.encode())}}),),
                unnamed=("messages[].in.deep",),
            ),
            3000,
        ),
        (Chat(model="m", messages=(), output=Output("schema", Raw(f'{{"d":"{LONG}"}}'.encode()))), 3000),
    ],
)
def test_whatever_may_become_part_of_the_prompt_counts(op: Op, more: int) -> None:
    cost = EXACT.cost(op, 8192)
    assert cost.prompt >= more
    assert cost.tokens >= min(more, 8192), "no more than the context"


def test_what_steers_does_not_count() -> None:
    raw = {"model": Raw(b'"m"'), "stream": Raw(b"true"), "logit_bias": Raw(b'{"1": 2}'), "messages": Raw(b"[]")}
    assert EXACT.cost(Chat(model="m", messages=(), raw=raw, max_output=1)).tokens == 1


def test_an_engine_s_own_cap_counts_if_it_is_larger() -> None:
    op = Chat(model="m", messages=(), max_output=5, extra={"n_predict": Raw(b"900"), "best_of": Raw(b'"many"')})
    assert EXACT.cost(op).tokens >= 900


def test_a_lone_surrogate_has_a_size_too() -> None:
    assert EXACT.cost(Complete(model="m", prompts=("\ud800",), max_output=0)).tokens == 3
