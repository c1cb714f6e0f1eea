"""One gateway with its worker, for the tests of a file that ask for nothing special of either."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.harness import Stack


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(({"itl_ms": 5},), {"breaker": {"failures": 10_000}}) as running:
        yield running
