"""A healthy server that is far away is exact: calls overlap, and the wait is as long as the way."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.config import Limit, Redis
from gateway.ratelimit import Subject, SubjectLimiter, too_late
from gateway.ratelimit.model import Limited
from gateway.ratelimit.redis.store import RedisStore
from tests.support.far import Far
from tests.support.redis_server import Server

LIMIT = 60


@pytest.fixture
def far(server: Server, tmp_path: Path) -> Iterator[Far]:
    with Far(tmp_path, server.port, 0.3) as far:
        yield far


@pytest.mark.long
async def test_a_flood_is_held_to_the_limit_and_nobody_is_decided_alone(far: Far) -> None:
    rules = [Limit(name="rpm", kind="requests", limit=LIMIT)]
    settings = Redis(addresses=(far.address,), timeout_s=10)
    stores = [RedisStore(settings) for _ in range(2)]
    limiters = [SubjectLimiter(rules, store) for store in stores]
    for limiter in limiters:
        await limiter.start()
        assert limiter.state == "strict"

    async def client(limiter: SubjectLimiter) -> int:
        admitted = 0
        for _ in range(4):
            try:
                await limiter.reserve(Subject("ann"))
                admitted += 1
            except Limited:
                pass
        return admitted

    clients, most = [], 0
    for number in range(40):
        clients.append(asyncio.create_task(client(limiters[number % 2])))
        await asyncio.sleep(0.014)  # so that most ask while a call is under way
        most = max(most, *(len(store._batchers[0]._calls) for store in stores))  # calls under way
    assert sum(await asyncio.gather(*clients)) == LIMIT
    assert most > 1, "a call waited for the one before"
    assert [limiter.decisions.alone for limiter in limiters] == [0, 0]
    for limiter in limiters:
        await limiter.close()


def test_the_command_asks_a_server_that_is_far_away(
    far: Far, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gateway.yaml"
    models = {"m": {"backend": "vllm", "workers": ["http://127.0.0.1:1"]}}
    limits = [{"name": "rpm", "kind": "requests", "limit": 6, "scope": ["model"]}]
    path.write_text(json.dumps({"models": models, "limits": limits, "redis": {"addresses": [far.address]}}))
    assert main(["limits", "show", "--config", str(path)]) == 0, "the default of 50 ms is for requests"
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1].split() == ["rpm", "model", "m", "0", "6", "0s"]
    assert re.fullmatch(
        r"dragoman: Redis took \d+ ms to answer: gateways wait 50 ms, and up to 500 ms .*", printed.err.strip()
    )
    assert "dragoman_limits_alone_total" in printed.err
    near = Redis(addresses=("localhost:1",), timeout_s=0.2)
    assert (too_late(near, 0.2), too_late(near, 0.0), len(too_late(near, 0.21))) == ([], [], 1)
