"""Plain values of the core: usage, messages, HTTP."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from gateway.core.events import Event
from gateway.core.http import Request, Response
from gateway.core.messages import (
    QUESTIONS,
    AnsweredFromStore,
    Chat,
    Complete,
    Embed,
    ListModels,
    Message,
    Op,
    Question,
    Sampling,
    Text,
    Tool,
)
from gateway.core.usage import Usage


@pytest.mark.parametrize(
    ("usage", "total"),
    [
        (Usage(), None),
        (Usage(input=3), None),
        (Usage(output=3), None),
        (Usage(0, 0), 0),
        (Usage(3, 4, 2, 1), 7),
    ],
)
def test_an_unknown_count_makes_an_unknown_total(usage: Usage, total: int | None) -> None:
    assert usage.total == total


def test_usage_is_the_engines_unless_said_otherwise() -> None:
    assert Usage().source == "engine"


@pytest.mark.parametrize("one", [*get_args(Event), *get_args(Op), ListModels, AnsweredFromStore])
def test_what_is_told_apart_by_its_class_has_no_subclass(one: type) -> None:
    assert getattr(one, "__final__", False)


def test_the_classes_of_questions_are_those_of_the_union() -> None:
    assert set(get_args(Question)) == QUESTIONS


@pytest.mark.parametrize("op", [Chat(model=None, messages=()), Complete(model=None, prompts=("a",))])
def test_what_the_client_did_not_say_is_unknown(op: Any) -> None:
    assert op.sampling == Sampling()
    assert all(getattr(op.sampling, name) in (None, ()) for name in Sampling.__struct_fields__)
    assert (op.max_output, op.output, op.logprobs, op.user, op.timeout, op.raw, op.wire) == (None,) * 7
    assert (op.n, op.stream, op.include_usage, op.want_tokens) == (1, False, False, False)
    assert (op.extra, op.dropped, op.model_hints, op.stop) == ({}, (), (), ())


def test_every_request_says_what_was_dropped() -> None:
    for op in (Chat(model=None, messages=()), Complete(model=None, prompts=()), Embed(model=None, inputs=())):
        assert (op.dropped, op.model, op.stream) == ((), None, False)
    assert ListModels(write=lambda cards: Response(200)).dropped == ()


def test_defaults_are_not_shared() -> None:
    one, other = Chat(model=None, messages=()), Chat(model=None, messages=())
    assert one.extra is not other.extra
    assert Request("GET", "/").headers is not Request("GET", "/").headers


def test_what_a_client_sent_is_a_value() -> None:
    assert Message("user", (Text("a"),)) == Message("user", (Text("a"),))
    assert hash(Tool("f")) == hash(Tool("f"))
    with pytest.raises(AttributeError):
        Text("a").text = "b"  # type: ignore[misc]


@pytest.mark.parametrize("message", [Request("GET", "/", [(b"a", b"1"), (b"a", b"2")]), Response(200, [(b"a", b"1")])])
def test_headers_are_found_by_their_first_value(message: Request | Response) -> None:
    assert message.header(b"a") == b"1"
    assert message.header(b"b") is None
