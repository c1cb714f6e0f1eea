"""A gateway by each path to its clients: the direct one with and without the native relay, and plain ASGI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.native import BUILT
from tests.support.harness import Stack
from tests.unit.kernel.asking import plain_asgi


@pytest.fixture(
    params=["direct", "asgi", pytest.param("python", marks=pytest.mark.skipif(not BUILT, reason="as direct"))]
)
def wrap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    monkeypatch.setattr(Stack, "native", request.param != "python")
    return plain_asgi if request.param == "asgi" else lambda app: app


@pytest.fixture
def stack(wrap: Callable[[Any], Any]) -> Iterator[Stack]:
    with Stack(wrap=wrap) as running:
        yield running
