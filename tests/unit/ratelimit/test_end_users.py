"""A million end users: what a gateway remembers of them is bounded, and so is what a report keeps.

The suite asks for 24,000 with bounds that are as much smaller, all by FULL=1.
`python -m tests.unit.ratelimit.test_end_users [COUNT]` prints the figures.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import time

import pytest

from gateway.config import Limit
from gateway.config.money import Budget, Spend
from gateway.core.estimate import Cost
from gateway.core.ports import RequestRecord
from gateway.core.written import Moment
from gateway.observe import ledger as module
from gateway.observe.ledger import Ledger
from gateway.ratelimit import Subject, SubjectLimiter, decisions, plan
from gateway.ratelimit import limiter as limiter_module
from gateway.ratelimit.memory import MemoryStore
from gateway.ratelimit.redis.store import RedisStore
from gateway.ratelimit.rules import rule_of
from gateway.ratelimit.store import Store
from gateway.redis import connect
from tests.chaos.row import FULL
from tests.support.redis_server import Server

SOME, MANY = (120_000, 1_000_000) if FULL else (4_000, 24_000)  # SOME are more than is remembered of anything
SMALL = 1_000
RULES = [
    rule_of(Budget(name="each", amount=9, scope=("end_user",)), Spend(currency="EUR")),
    Limit(name="calls", kind="requests", limit=5, scope=("key", "end_user")),
]
AT_ONCE = 500
MOST_MIB = 12
"""The most that a process may grow meanwhile. Caches are emptied by halves, so its size goes up and down."""


def resident_mib() -> float:
    """The memory of this process, in MiB."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / (1 << 20)


async def ask(numbers: range, one: Callable[[str], Awaitable[None]]) -> None:
    for begin in range(numbers.start, numbers.stop, AT_ONCE):
        await asyncio.gather(*(one(f"user-{number}") for number in range(begin, begin + AT_ONCE)))


async def limited(store: Store, many: int = MANY) -> tuple[float, float]:
    """The memory in MiB after SOME and after so many end users have asked once each."""
    limiter = SubjectLimiter(RULES, store)
    await limiter.start()

    async def one(name: str) -> None:
        made = await limiter.reserve(Subject("k", "t", "m", None, name), Cost(money=1000))
        limiter.settle(made, None, money=700)

    await ask(range(SOME), one)
    await limiter.flush()
    before = resident_mib()
    await ask(range(SOME, many), one)
    await limiter.flush()
    after = resident_mib()
    await limiter.close()
    return before, after


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that some thousand end users reach."""
    monkeypatch.setattr(module, "_EVERY_S", 0.01)
    for where, name in (
        (plan, "REMEMBERED"),
        (limiter_module, "_BUDGETS"),
        (decisions, "_CROWDS"),
        (module, "MOST"),
    ):
        if not FULL:
            monkeypatch.setattr(where, name, SMALL)


@pytest.fixture(scope="module")
def emptied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.mark.long
async def test_limits_in_memory_do_not_grow() -> None:
    before, after = await limited(MemoryStore() if FULL else MemoryStore(SMALL))
    assert after - before < MOST_MIB


@pytest.mark.long
async def test_limits_in_redis_do_not_grow_a_gateway(emptied: Server) -> None:
    before, after = await limited(RedisStore(emptied.settings))
    assert after - before < MOST_MIB


@pytest.mark.long
async def test_sums_keep_so_many_and_add_up(emptied: Server) -> None:
    ledger = Ledger("users", UTC, connect(emptied.settings), end_users=True)
    now = time()

    async def one(name: str) -> None:
        ledger.add(
            RequestRecord(
                id="id", dialect="openai", model="m", key="k", attempts=1, cost=7, end_user=name, time=Moment(now)
            )
        )

    await ask(range(SOME), one)
    before = resident_mib()
    await ask(range(SOME, MANY), one)
    await ledger.close()
    assert resident_mib() - before < MOST_MIB
    days = [datetime.fromtimestamp(now, UTC).date()]
    users = await (again := Ledger("users", UTC, connect(emptied.settings))).report(days, ["end_user"])
    assert len(users) <= module.MOST + 1
    assert sum(sums.cost for sums in users.values()) == 7 * MANY
    ((_, all_),) = (await again.report(days, ["key"])).items()
    assert all_.figures == (MANY, 0, 0, 0, 7 * MANY)
    await again.close()


async def main(many: int) -> None:
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        for name, store in (("memory", MemoryStore()), ("redis", RedisStore(server.settings))):
            before, after = await limited(store, many)
            print(f"{name}: {before:.0f} MiB after {SOME:,} end users, {after:.0f} MiB after {many:,}", flush=True)
        used = int(server.command("INFO", "memory")["used_memory"])
        print(f"redis itself: {used / many:.0f} bytes an end user, for a budget and a limit")


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else MANY)))
