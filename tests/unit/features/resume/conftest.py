"""Gateways with three workers, by each path to their clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.harness import Stack
from tests.unit.features.resume.broken import ROUND
from tests.unit.kernel.asking import plain_asgi


@pytest.fixture(scope="module", params=["direct", "asgi"])
def three(request: pytest.FixtureRequest) -> Iterator[Stack]:
    wrap = plain_asgi if request.param == "asgi" else lambda app: app
    with Stack(({"itl_ms": 2}, {"itl_ms": 2}, {"itl_ms": 2}), config=ROUND, wrap=wrap) as stack:
        yield stack
