"""A log, and its output."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.observe.log import Log
from tests.unit.observe.logs import Output


@pytest.fixture
def output() -> Output:
    return Output()


@pytest.fixture
def log(output: Output) -> Iterator[Log]:
    log = Log("debug", True, output)
    yield log
    log.close()
