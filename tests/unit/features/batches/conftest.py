"""A Redis server, and gateways with batches on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.support.harness import Stack
from tests.support.redis_server import Server
from tests.unit.app.asking import key
from tests.unit.features.batches.s3 import S3

ALICE, _ALICE = key("alice", team="blue")
BOB, _BOB = key("bob")
MATE, _MATE = key("mate", team="blue")
KEYS = {**_ALICE, **_BOB, **_MATE}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with S3(tmp_path_factory.mktemp("s3")) as s3:
        yield s3


def sections(server: Server, directory: Path, s3: S3 | None = None, **options: Any) -> dict[str, Any]:
    """Those of a gateway with batches, whose files lie in the folder, or in a bucket that this folder is."""
    return {
        "keys": KEYS,
        "redis": {"addresses": [server.address], "timeout_s": 10},
        "batches": {"directory": str(directory), **options} if s3 is None else s3.section(directory, **options),
    }


@pytest.fixture
def stored(request: pytest.FixtureRequest) -> S3 | None:
    """The server of buckets, or None for a folder."""
    found: S3 | None = request.getfixturevalue("s3") if request.param == "bucket" else None
    return found


IN_A_FOLDER = pytest.mark.parametrize("stored", ["folder"], indirect=True)
"""For a test that looks at what only a folder has."""


@pytest.fixture
def stack(server: Server, tmp_path: Path, stored: S3 | None) -> Iterator[Stack]:
    server.command("FLUSHALL")
    with Stack(({},), sections(server, tmp_path / "files", stored)) as stack:
        yield stack


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Whatever uses `stack` holds over a folder and over a bucket."""
    marked = [one for one in metafunc.definition.iter_markers("parametrize") if one.args[0] == "stored"]
    if "stored" in metafunc.fixturenames and not marked:
        metafunc.parametrize("stored", ["folder", "bucket"], indirect=True)


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


def batching(stack: Stack) -> Any:
    """The service that the gateway's configuration uses; None where there are no batches."""
    return stack.gateway.deployment.features.services.get("batches")
