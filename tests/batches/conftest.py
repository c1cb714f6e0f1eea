"""A Redis server, and gateways with batches on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.app.asking import key
from tests.harness import Stack
from tests.redis.server import Server

ALICE, _ALICE = key("alice", team="blue")
BOB, _BOB = key("bob")
MATE, _MATE = key("mate", team="blue")
KEYS = {**_ALICE, **_BOB, **_MATE}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redis")) as server:
        yield server


def sections(server: Server, directory: Path, **options: Any) -> dict[str, Any]:
    """Those of a gateway with batches."""
    return {
        "keys": KEYS,
        "redis": {"addresses": [server.address], "timeout_s": 10},
        "batches": {"directory": str(directory), **options},
    }


@pytest.fixture
def stack(server: Server, tmp_path: Path) -> Iterator[Stack]:
    server.command("FLUSHALL")
    with Stack(({},), sections(server, tmp_path / "files")) as stack:
        yield stack


_OPEN: list[Any] = []


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    """Closes the clients of a test."""
    yield
    while _OPEN:
        _OPEN.pop().close()


def openai_client(stack: Stack, key: str = ALICE, prefix: str = "/v1") -> openai.OpenAI:
    _OPEN.append(openai.OpenAI(base_url=stack.url + prefix, api_key=key, max_retries=0))
    found: openai.OpenAI = _OPEN[-1]
    return found


def anthropic_client(stack: Stack, key: str = ALICE, prefix: str = "/anthropic") -> anthropic.Anthropic:
    _OPEN.append(anthropic.Anthropic(base_url=stack.url + prefix, api_key=key, max_retries=0))
    found: anthropic.Anthropic = _OPEN[-1]
    return found
