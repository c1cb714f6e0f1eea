"""One gateway with its worker, for the tests of a file that change nothing in it for good."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness import Stack


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as running:
        yield running
