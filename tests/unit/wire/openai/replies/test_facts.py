"""The context that a server's list of models tells, and lists that tell nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import backends
from gateway.core.errors import Kind
from gateway.core.ports import UNKNOWN, Facts
from gateway.wire.openai.replies.facts import facts_of
from tests.support.raised import raised


def said(*entries: Any) -> bytes:
    return json.dumps({"object": "list", "data": entries}).encode()


@pytest.mark.parametrize("name", ["vllm", "openai"])
def test_the_context_of_the_served_model(name: str) -> None:
    card: dict[str, Any] = {
        "id": "m",
        "object": "model",
        "root": "/models/m",
        "parent": None,
        "max_model_len": 8192,
        "permission": [],
    }
    backend = backends.create(name)
    assert backend.facts_path == "/v1/models"
    assert backend.facts(said({**card, "id": "lora", "max_model_len": 1}, card), "m").max_model_len == 8192


@pytest.mark.parametrize(
    "body",
    [
        said(),
        said({"id": "m"}),
        said({"id": "m", "max_model_len": None}),
        said({"max_model_len": 5}, {"id": 7, "max_model_len": 5}, 7, None, ["m"], "m"),
    ],
)
def test_a_list_that_tells_nothing_of_the_model(body: bytes) -> None:
    assert facts_of(body, "m") == UNKNOWN


def test_a_list_of_other_models_tells_their_names() -> None:
    assert facts_of(said({"id": "M", "max_model_len": 5}), "m") == Facts(others=("M",))


@pytest.mark.parametrize("context", [0, -1, 2**31, 1e400, 8192.5, "8192", True, [8192]])
def test_a_context_that_makes_no_sense(context: Any) -> None:
    assert raised(facts_of, said({"id": "m", "max_model_len": context}), "m").kind is Kind.UPSTREAM


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"data":{}}', b"\xff", b"[" * 100_000])
def test_what_is_no_list_of_models(body: bytes) -> None:
    assert raised(facts_of, body, "m").kind is Kind.UPSTREAM


def test_adapters_are_the_models_whose_parent_it_is() -> None:
    """vLLM names the parent as it serves it, or as `--lora-modules` does: by the path of its weights."""
    listed = said(
        {"id": "a", "root": "/adapters/a", "parent": "m"},
        {"id": "m", "root": "org/m", "parent": None, "max_model_len": 5},
        {"id": "b", "parent": "org/m"},
        {"id": "c", "parent": "another"},
        {"id": "d", "parent": ["m"]},
        {"id": "", "parent": "m"},
        {"id": "x" * 257, "parent": "m"},
        {"id": "line\nbreak", "parent": "m"},
        {"id": "alone"},
    )
    assert facts_of(listed, "m") == Facts(max_model_len=5, adapters=("a", "b"))
    many = said(*({"id": f"a{number}", "parent": "m"} for number in range(2_000)))
    assert len(facts_of(many, "m").adapters) == 1_000
