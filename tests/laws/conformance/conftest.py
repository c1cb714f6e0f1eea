"""Replies are compared byte by byte: no time passes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.laws.conformance.cases import stopped_clock


@pytest.fixture(scope="module", autouse=True)
def unchanged() -> Iterator[None]:
    with stopped_clock():
        yield
