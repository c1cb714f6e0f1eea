"""A worker for all, and a site for each test. Without 0.1.0 the tests are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.upgrade.versions import HOME, Site
from tests.support.harness import Stack


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/acceptance/upgrade/"):
            item.add_marker("upgrade")
            if not (HOME / "installed").exists():
                item.add_marker(pytest.mark.skip(reason="0.1.0 is not here: git fetch --unshallow, make test-upgrade"))


@pytest.fixture(scope="session")
def worker() -> Iterator[Stack]:
    """Two simulated workers. The gateway before them is not used."""
    with Stack(({}, {"itl_ms": 20, "output_tokens": 4000})) as stack:
        yield stack


@pytest.fixture
def site(tmp_path: Path, worker: Stack) -> Iterator[Site]:
    with Site(tmp_path, worker) as site:
        yield site
