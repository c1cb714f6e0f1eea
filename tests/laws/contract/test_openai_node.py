"""The unmodified `openai` client for Node: what it returns and raises (contract.mjs runs the cases)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.laws.contract.running_node import node
from tests.support.harness import Stack

CASES: dict[str, dict[str, Any]] = {
    "plain": {"returned": ["alias", "Grüezi 👋🏽", "stop", True]},
    "streamed": {"returned": ["a b c", "stop"]},
    "usage": {"returned": [[0, True]]},
    "tools": {"returned": ["weather", '{"city": "Bern"}']},
    "response": {"returned": ["Grüezi 👋🏽", "completed", True]},
    "response_stream": {"returned": ["a b c", ["reasoning", "message", "function_call"], '{"city": "Bern"}']},
    "response_unknown_model": {"raised": "NotFoundError", "status": 404, "code": "model_not_found", "param": "model"},
    "response_reset_mid_stream": {"raised": "APIError", "code": "upstream_truncated", "param": None},
    "completions": {"returned": [1, "string"]},
    "embeddings": {"returned": [2, "number"]},
    "models": {"returned": ["alias", "m"]},
    "unknown_model": {"raised": "NotFoundError", "status": 404, "code": "model_not_found", "param": "model"},
    "bad_parameter": {"raised": "BadRequestError", "status": 400, "code": "invalid_value", "param": "temperature"},
    "worker_failed": {"raised": "InternalServerError", "status": 502, "code": "upstream_error", "param": None},
    "error_frame_mid_stream": {"raised": "APIError", "code": "upstream_error", "param": None},
    "reset_mid_stream": {"raised": "APIError", "code": "upstream_truncated", "param": None},
    "cancelled": {"returned": "left"},
}


@pytest.fixture(scope="module")
def seen() -> Iterator[dict[str, dict[str, Any]]]:
    with Stack(({"itl_ms": 30},)) as stack:
        said = node("contract.mjs", stack.url + "/v1")
        stack.run(stack.sim.ledger.wait(running=0))
        assert stack.sim.ledger.aborted == 1, "the client that left was noticed"
        yield {case.pop("name"): case for case in map(json.loads, said.splitlines())}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, seen: dict[str, dict[str, Any]]) -> None:
    assert seen[name] == CASES[name]


def test_every_case_is_asserted(seen: dict[str, dict[str, Any]]) -> None:
    assert set(seen) == set(CASES)
