"""A batcher on a bench."""

from __future__ import annotations

import pytest

from tests.unit.ratelimit.redis.bench import Bench


@pytest.fixture
async def bench() -> Bench:
    return await Bench().start()
