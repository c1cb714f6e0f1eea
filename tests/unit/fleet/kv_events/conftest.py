"""A gateway that listens to two engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.harness import Stack, until
from tests.unit.fleet.kv_events.publishing import WORKER, blocks, listen


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is, a worker's tokens come in time."""
    monkeypatch.setattr("gateway.features.kv_events._LONGEST_S", 60.0)


@pytest.fixture
def stack() -> Iterator[Stack]:
    with Stack((WORKER, WORKER)) as stack:
        listen(stack)
        until(lambda: blocks(stack, 0).live and blocks(stack, 1).live)
        yield stack
