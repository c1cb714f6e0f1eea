"""A gateway with short deadlines, for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness import Stack
from tests.server.raw import LIMITED, QUICK


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(edge=QUICK, config=LIMITED) as running:
        yield running
