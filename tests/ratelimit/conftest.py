"""Private servers for the tests of the shared store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.redis.server import Server


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One private server for the tests that leave it alive; emptied by `server`."""
    with Server(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Server:
    shared_server.command("FLUSHALL")
    return shared_server


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Server]:
    """A private server that the test may stop and kill."""
    with Server(tmp_path) as server:
        yield server
