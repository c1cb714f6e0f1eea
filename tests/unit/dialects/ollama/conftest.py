"""A gateway for the laws of this dialect."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.harness import Stack


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(workers=({"itl_ms": 2},), config={"breaker": {"failures": 10_000}}) as found:
        yield found
