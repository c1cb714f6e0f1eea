"""Replies are compared byte by byte: no time passes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def stopped_clock() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.wire.clock.nanoseconds", lambda: 1)
        patch.setattr("gateway.wire.clock.seconds", lambda: 1)
        yield
