"""Two gateways with one Redis, and callers of their admin API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.config import has_feature
from tests.support.harness import Stack
from tests.support.redis_server import Server
from tests.unit.features.admin.calling import Caller, config


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redis"), "--appendonly", "yes") as server:
        yield server


@pytest.fixture(scope="module")
def gateways(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, Stack]]:
    batches = {"batches": {"directory": str(tmp_path_factory.mktemp("batches"))}} if has_feature("batches") else {}
    sections = config(server, **batches)
    with Stack(({},), sections) as one, Stack(({},), sections) as other:
        yield one, other


@pytest.fixture
def stack(gateways: tuple[Stack, Stack]) -> Stack:
    return gateways[0]


@pytest.fixture
def root(stack: Stack) -> Caller:
    return Caller(stack, "root-key")


@pytest.fixture
def lead(stack: Stack) -> Caller:
    return Caller(stack, "lead-key")
