"""Private servers for the tests of the shared store, and limiters with either store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Limit
from gateway.ratelimit import SubjectLimiter
from gateway.ratelimit.memory import MemoryStore
from gateway.ratelimit.redis.store import RedisStore
from gateway.ratelimit.store import Store
from tests.support.harness import soon
from tests.support.redis_server import Server

Make = Callable[..., Awaitable[SubjectLimiter]]


async def reach(limiter: SubjectLimiter, state: str = "strict", within: float = 60.0) -> None:
    """Until the limiter is in `state`: "strict" at the latest after some probes, "degraded" after a call."""
    await soon(lambda: limiter.state == state, within)


@pytest.fixture
async def started() -> AsyncIterator[Make]:
    """Starts a limiter of the rules, the store and the options given. It is closed in the end."""
    made: list[SubjectLimiter] = []

    async def one(rules: Sequence[Limit], store: Store, **options: Any) -> SubjectLimiter:
        made.append(SubjectLimiter(rules, store, **options))
        await made[-1].start()
        return made[-1]

    yield one
    for limiter in made:
        await limiter.close()


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


@pytest.fixture(params=["memory", "redis"])
async def make(request: pytest.FixtureRequest, started: Make) -> Make:
    """A started limiter of the rules given."""
    server: Server | None = request.getfixturevalue("server") if request.param == "redis" else None

    async def one(*rules: Limit, **options: Any) -> SubjectLimiter:
        store: Store = MemoryStore() if server is None else RedisStore(server.settings)
        return await started(rules, store, **options)

    return one
