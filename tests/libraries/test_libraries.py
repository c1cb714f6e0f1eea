"""Client libraries against a gateway with a simulated worker: what they return and raise (`make test-clients`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Stack
from tests.libraries.drive import TEXT
from tests.libraries.environment import drive, ready
from tests.libraries.table import LIBRARIES, Library

pytestmark = pytest.mark.libraries


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(({"itl_ms": 2},)) as running:
        yield running


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: f"{one.environment}-{one.driver}")
def test_a_library(library: Library, stack: Stack, tmp_path: Path) -> None:
    assert ready(library), "make test-clients"
    told = drive(library, stack.url, tmp_path)
    assert told["whole"] == TEXT
    assert (told["streamed"] is not None) == bool(library.cut)
    if library.cut:
        assert "".join(told["streamed"]) == TEXT
        assert len([piece for piece in told["streamed"] if piece]) > 1, "it came in pieces"
        assert told["cut"]["raised"][0].rpartition(".")[2] == library.cut, told["cut"]
    assert told["unknown"]["raised"][0].rpartition(".")[2] == library.unknown, told["unknown"]
    assert library.says in told["unknown"]["said"]
    assert told["strayed"] == [], "it left this machine"
