"""The shared store against a real server: what it leaves behind, how it connects, and where its keys lie."""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic
from typing import Any, cast

import pytest

from gateway.config import Limit
from gateway.core.estimate import Cost
from gateway.ratelimit import Subject, SubjectLimiter
from gateway.ratelimit.model import Limited, Plan, Verdict
from gateway.ratelimit.plan import Layout, Plans
from gateway.ratelimit.redis.codec import ADMIT, BEAT, Operation, pack, unpack
from gateway.ratelimit.redis.link import Link
from gateway.ratelimit.redis.store import SCRIPT, RedisStore
from gateway.redis import Refused
from gateway.redis.connection import frame
from tests.support.harness import soon
from tests.support.redis_server import Server
from tests.unit.ratelimit.conftest import Make
from tests.unit.ratelimit.redis.traffic import RULES, traffic


async def test_every_key_expires_and_none_is_negative(server: Server, started: Make) -> None:
    limiter = await started(RULES, RedisStore(server.settings))
    await traffic(limiter, 30, 1)
    keys = server.command("KEYS", "*")
    assert len(keys) > 20
    for key in keys:
        # A window of 60 s, and one more in which a debt is paid.
        assert 0 < server.command("PTTL", key) <= 400_000, key  # one that owes is kept for the windows that pay
        if server.command("TYPE", key) == b"hash" and not key.endswith(b":probe"):
            fields = server.command("HGETALL", key)
            amounts = {name: int(value) for name, value in fields.items() if name.isdigit()}
            assert all(amount >= 0 for amount in amounts.values()), (key, fields)
            assert int(fields[b"u"]) == sum(amounts.values()) + int(fields.get(b"d", 0)), (key, fields)


async def test_a_flushed_script_is_sent_again(server: Server, started: Make) -> None:
    limiter = await started(RULES, RedisStore(server.settings))
    subject = Subject("k", "t", "m", "10.0.0.1")
    await limiter.reserve(subject, Cost(1))
    server.command("SCRIPT", "FLUSH")
    lease = await limiter.reserve(subject, Cost(1))
    assert lease.strict
    assert lease.states[0].remaining == 18


async def test_one_loop_turn_shares_one_call(server: Server, started: Make) -> None:
    limiter = await started(RULES[:1], RedisStore(server.settings), heartbeat=1000)
    await limiter.flush()
    await asyncio.sleep(0.05)

    def calls() -> int:
        stats = server.command("INFO", "commandstats")
        return int(stats["cmdstat_evalsha"]["calls"]) if "cmdstat_evalsha" in stats else 0

    before = calls()
    results = await asyncio.gather(*(limiter.reserve(Subject(f"k{n % 3}")) for n in range(200)), return_exceptions=True)
    assert calls() - before == 1
    assert sum(not isinstance(one, Exception) for one in results) == 60


async def test_a_freed_slot_is_free_at_once_however_crowded_it_is(server: Server, started: Make) -> None:
    limiter = await started([Limit(name="slots", kind="concurrency", limit=1)], RedisStore(server.settings))

    async def client(key: str) -> None:
        for _ in range(50):
            lease = await limiter.reserve(Subject(key))
            await asyncio.sleep(0)
            limiter.settle(lease, None)

    await asyncio.gather(*(client(f"k{number}") for number in range(20)))
    assert not limiter.decisions.of("refused")


async def test_a_connection_that_the_server_closed_is_not_used_again(server: Server, started: Make) -> None:
    store = RedisStore(server.settings)
    limiter = await started(RULES[:1], store, heartbeat=1000)
    await limiter.reserve(Subject("k"))
    link = store._links[0]  # its only connection
    assert isinstance(link, Link)
    for _ in range(3):
        server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await soon(lambda: link._connection is None)  # it knows that it was closed
        assert (await limiter.reserve(Subject("k"))).strict
    assert limiter.state == "strict"


class Wire:
    """A connection that is written to, and ended, by hand."""

    def __init__(self, answered: Any, lost: Any) -> None:
        self.answered, self.lost = answered, lost
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed = True


class Wires:
    """Servers that connect once they are open, and take their time over being cancelled."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.given: list[Wire] = []

    async def open(self, key: bytes, answered: Any, lost: Any) -> Wire:
        try:
            await self.ready.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            raise
        self.given.append(Wire(answered, lost))
        return self.given[-1]


@pytest.mark.parametrize("end", ["eof", "refusal"])
async def test_a_connection_that_ended_is_neither_used_nor_heard_again(end: str) -> None:
    servers, heard = Wires(), list[bytes | Exception]()
    servers.ready.set()
    link = Link(cast(Any, servers), b"key", b"", b"")
    link.call((), b"first", heard.append)
    link.call((), b"beside it", heard.append)
    await asyncio.sleep(0)
    old = servers.given[0]
    assert len(old.written) == 2
    if end == "eof":
        old.lost(ConnectionResetError())
    else:
        old.answered(Refused("READONLY nothing is written here"))
        assert old.closed
    assert len(heard) == 1, "one is told for all"
    link.call((), b"second", heard.append)
    await asyncio.sleep(0)
    assert (len(old.written), len(heard)) == (2, 1)
    servers.given[1].answered(b"ok")
    assert heard[1:] == [b"ok"]


async def test_calls_overlap_and_a_flushed_script_changes_their_order_only() -> None:
    servers, heard = Wires(), dict[str, bytes | Exception]()
    servers.ready.set()
    link = Link(cast(Any, servers), b"key", b"script", b"sha")
    for name in ("one", "two", "three"):
        link.call((), name.encode(), partial(heard.__setitem__, name))
    await asyncio.sleep(0)
    wire = servers.given[0]
    wire.answered(b"1")
    wire.answered(Refused("NOSCRIPT No matching script."))
    assert b"EVAL\r\n" in wire.written[3]
    assert b"two" in wire.written[3]
    wire.answered(b"3")
    wire.answered(b"2")
    assert heard == {"one": b"1", "two": b"2", "three": b"3"}


async def test_each_call_names_its_own_keys_and_payload() -> None:
    servers = Wires()
    servers.ready.set()
    link = Link(cast(Any, servers), b"key", b"script", b"sha")
    asked: list[tuple[list[bytes], bytes]] = [([b"a", b"b"], b"one"), ([b"a", b"b"], b""), ([b"a"], b"two"), ([], b"3")]
    asked += [*asked, *asked[::-1]]
    link.call(*asked[0], lambda _: None)
    await asyncio.sleep(0)
    for keys, payload in asked[1:]:
        link.call(keys, payload, lambda _: None)
    whole = [frame((b"EVALSHA", b"sha", b"%d" % len(keys), *keys, payload)) for keys, payload in asked]
    assert servers.given[0].written == whole


async def test_a_call_that_was_given_up_while_connecting_is_not_made() -> None:
    servers, heard = Wires(), list[bytes | Exception]()
    link = Link(cast(Any, servers), b"key", b"", b"")
    for payload, turns in ((b"first", 1), (b"second", 3)):  # the first is still ending when the second has begun
        link.call((), payload, heard.append)
        for _ in range(turns):
            await asyncio.sleep(0)
        link.drop()
    link.call((), b"third", heard.append)
    servers.ready.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert [b"third" in word for wire in servers.given for word in wire.written] == [True]
    assert heard == []


async def test_late_admissions_do_nothing(server: Server) -> None:
    plan = Plans(RULES, Layout()).of(Subject("k", "t", "m", "10.0.0.1"))
    seconds, micros = server.command("TIME")
    past = int(seconds) * 1_000_000 + int(micros) - 1

    def ask(deadline: int) -> list[int]:
        items = [
            Operation(ADMIT, "lease", plan, (1, 1, 5, 1, 5)),
            Operation(BEAT, "me", Plan(), (b"beats", 10**6)),
        ]
        keys, payload = pack(items, deadline, 10**6)
        results = unpack(server.command("EVAL", SCRIPT, len(keys), *keys, payload))[1]
        return [one.violated if isinstance(one, Verdict) else one for one in results]

    assert ask(past) == [-2, 0]
    assert server.command("DBSIZE") == 0
    assert ask(past + 10_000_000) == [-1, 1]


async def test_the_server_clock_decides(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = (
        SubjectLimiter([Limit(name="r", kind="requests", limit=10)], RedisStore(server.settings)) for _ in range(2)
    )
    await fast.start()
    await slow.start()
    total = 0
    for turn in range(30):
        monkeypatch.setattr(
            "gateway.ratelimit.redis.batcher.monotonic", lambda turn=turn: monotonic() + (5 if turn % 2 else -5)
        )
        try:
            await (fast if turn % 2 else slow).reserve(Subject("k"))
            total += 1
        except Limited:
            pass
        assert fast.state == slow.state == "strict"
    assert total == 10
    await fast.close()
    await slow.close()
