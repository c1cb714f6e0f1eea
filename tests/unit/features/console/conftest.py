"""Gateways with a console, for tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.harness import Stack
from tests.unit.features.console.opened import OPEN


@pytest.fixture(scope="module")
def local() -> Iterator[Stack]:
    with Stack(config=OPEN) as stack:
        yield stack
