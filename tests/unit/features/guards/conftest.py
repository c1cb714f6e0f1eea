"""A guard, and a gateway whose requests and replies it sees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.harness import Stack
from tests.support.standins.guard import ALLOW, Guard, guard
from tests.unit.features.guards.asking import AFTERS
from tests.unit.kernel.asking import plain_asgi


@pytest.fixture
def service() -> Iterator[Guard]:
    with guard() as running:
        yield running


@pytest.fixture(scope="module", params=["direct", "asgi"])
def guarded(request: pytest.FixtureRequest) -> Iterator[tuple[Stack, Guard]]:
    """Model `m` is guarded on the way to its workers, `whole` and `windows` on the way back, `free` not at all."""
    wrap = plain_asgi if request.param == "asgi" else lambda app: app
    with guard() as running, Stack(({"itl_ms": 3},), wrap=wrap) as stack:
        model = {"backend": "vllm", "upstream_model": "sim", "workers": [stack.sim.url]}
        guards: dict[str, Any] = {"in": {"url": running.url, "models": ["m"]}}
        for after in AFTERS:
            guards[after] = {"url": running.url, "models": [after], "after": after, "before": False}
        guards["windows"] |= {"window_chars": 20, "overlap_chars": 6}
        models = dict.fromkeys(("m", "free", *AFTERS), model)
        stack.run(stack.gateway.reload(stack.config({"guards": guards, "models": models})))
        yield stack, running


@pytest.fixture
def fresh(guarded: tuple[Stack, Guard]) -> tuple[Stack, Guard]:
    stack, running = guarded
    running.asked.clear()
    running.decide = lambda question: ALLOW
    return stack, running
