"""The unmodified `@azure-rest/ai-inference` 1.0.0-beta.6 with `@azure/core-sse`: what they return (azure.mjs runs the
cases). This client raises nothing: a caller asks `isUnexpected`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.laws.contract.running_node import node
from tests.support.harness import Stack

AZURE = {"dialects": {"azure_inference": {"default_model": "m"}}}

CASES: dict[str, dict[str, Any]] = {
    "plain": {"returned": ["m", "Grüezi 👋🏽", "stop", True]},
    "streamed": {"returned": ["a\u2028b", "stop"]},
    "tools": {"returned": ["tool_calls", "weather", '{"city": "Bern"}']},
    "embeddings": {"returned": [2, 4, True]},
    "info": {"returned": ["m", "chat_completion"]},
    "unknown_model": {"raised": [404, "model_not_found", "Not Found", None]},
    "bad_parameter": {"raised": [422, "parameter_not_supported", "Unprocessable Content", ["body", "temperature"]]},
    "no_messages": {"raised": [400, "invalid_value", "Bad Request", None]},
    "worker_failed": {"raised": [502, "upstream_error", "Bad Gateway", None]},
    "limited": {"raised": [429, "rate_limit_exceeded", "Too Many Requests", None]},
    "error_frame_first": {"returned": ["502", "upstream_error"]},
    # An error in a stream is one more chunk to this client.
    "error_frame_mid_stream": {"returned": ["ab", "upstream_error"]},
    "reset_mid_stream": {"returned": ["ab", "Error"]},
    "keepalives": {"returned": ["ab", "stop"]},
}


@pytest.fixture(scope="module")
def seen() -> Iterator[dict[str, dict[str, Any]]]:
    limits = [{"name": "requests", "kind": "requests", "limit": 1}]
    with (
        Stack(({"itl_ms": 20},), AZURE) as stack,
        Stack(config={**AZURE, "limits": limits}) as limited,
        # One of its own: where a keep-alive goes out first, a reply that fails has begun.
        Stack(config={**AZURE, "relay": {"keepalive_s": 0.05}}) as keeping,
    ):
        said = node("azure.mjs", *(one.url + "/azure" for one in (stack, limited, keeping)))
        yield {case.pop("name"): case for case in map(json.loads, said.rstrip("\n").split("\n"))}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, seen: dict[str, dict[str, Any]]) -> None:
    assert seen[name] == CASES[name]


def test_every_case_is_asserted(seen: dict[str, dict[str, Any]]) -> None:
    assert set(seen) == set(CASES)
