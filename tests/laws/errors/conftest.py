"""A gateway, and a client that measures how soon it is answered."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.laws.errors.asking import CHAT, MEASURED, body
from tests.support.harness import Stack


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    config = {
        "models": {"gone": {"backend": "vllm", "workers": ["http://127.0.0.1:9"]}},
        "breaker": {"failures": 10_000},
        "retry": {"min_per_second": 1000},
    }
    with Stack(config=config) as running:
        # One request beforehand: what is done only once is not what is measured.
        httpx.post(running.url + CHAT, json=body())
        yield running


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.url, timeout=30, event_hooks=MEASURED) as client:
        yield client
