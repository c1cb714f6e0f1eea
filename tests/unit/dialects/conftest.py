"""Fixtures that the tests of dialects share."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.harness import Stack


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A gateway whose worker is never left out, whatever its answers. Modules may have one of their own."""
    with Stack(config={"breaker": {"failures": 10_000}}) as found:
        yield found


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[httpx.Client]:
    """A client of the module's own `stack`."""
    with httpx.Client(base_url=stack.url) as found:
        yield found
