"""Gateways for all tests of a module: one that is patient, and one with short deadlines for what waits for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.harness import Stack
from tests.unit.server.raw import LIMITED, PATIENT, QUICK


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(listen=PATIENT, config=LIMITED) as running:
        yield running


@pytest.fixture(scope="module")
def quick() -> Iterator[Stack]:
    with Stack(listen=QUICK, config=LIMITED) as running:
        yield running
