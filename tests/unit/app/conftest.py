"""Gateways with their workers, for the tests of a file that change nothing in them for good."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.harness import Stack
from tests.unit.app.hearing import gateway
from tests.unit.app.media import Worker, scripted, text


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as running:
        yield running


@pytest.fixture(scope="module")
def hearing() -> Iterator[tuple[Stack, Worker]]:
    """A gateway before a worker that transcribes."""
    with scripted(text) as worker, gateway(worker, more={"listen": {"max_body_bytes": 3 << 20}}) as stack:
        yield stack, worker
