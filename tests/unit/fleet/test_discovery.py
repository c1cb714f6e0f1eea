"""Discovery: DNS, the registry's records, what is kept when a source is lost, what members are able to do."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from gateway.core.ports import Capabilities, Facts
from gateway.fleet.discovery import MOST_WORKERS, Discovery, Dns, Fleet, FoundWorker, able
from gateway.fleet.registry import LINGER_S, READ_S, EmptyRegistry, Registry, decode
from tests.support.steps import rounds
from workers import registry as writer


class Scripted:
    """A source that answers what it is told to, or fails."""

    interval_s = 3600.0

    def __init__(self, name: str = "scripted") -> None:
        self.name = name
        self.answer: Fleet | Exception = {}

    async def read(self) -> Fleet:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Heard:
    def __init__(self) -> None:
        self.fleets: list[tuple[str, list[str]]] = []
        self.reports: list[tuple[str, str | None]] = []
        self.said = asyncio.Event()

    async def apply(self, model: str, members: Sequence[FoundWorker]) -> None:
        self.fleets.append((model, [member.address for member in members]))

    def report(self, source: str, trouble: str | None) -> None:
        self.reports.append((source, trouble))
        self.said.set()


class Deaf:
    """A source (at its second reading), or a look at a worker's load, that once does not hear that it is cancelled.
    Before Python 3.12 so is asyncio.wait_for, which redis-py calls, when its answer comes in the same turn."""

    name = "deaf"
    interval_s = 0.0

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.begun = False

    async def read(self) -> Fleet:
        if self.begun:
            await self.look()
        self.begun = True
        return {}

    async def look(self) -> tuple[int, int]:
        again = self.asked.is_set()
        self.asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if again:
                raise
        return 0, 0


async def test_it_ends_although_a_source_swallows_the_cancellation() -> None:
    heard, source = Heard(), Deaf()
    discovery = Discovery([source], {}, heard.apply, heard.report)
    await discovery.start()
    await source.asked.wait()
    async with asyncio.timeout(30):
        await discovery.close()


async def test_a_worker_leaves_although_its_renewal_swallows_the_cancellation() -> None:
    deaf, record = Deaf(), writer.WorkerEntry("http://h:1", ("m",), "simulated")
    lease = writer.Lease(writer.Registry("redis://127.0.0.1:1"), record, deaf.look, renew_s=0.0, log=lambda text: None)
    await lease.join()
    await deaf.asked.wait()
    async with asyncio.timeout(30):
        await lease.leave()


class Counted(writer.Lease):
    """Counts its renewals."""

    def __init__(self, place: writer.Registry, look: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        record = writer.WorkerEntry("http://h:1", ("m",), "simulated")
        super().__init__(place, record, look, lease_s=0.04, renew_s=0.0, log=lambda text: None)
        self.written = asyncio.Semaphore(0)

    async def write(self) -> bool:
        self.written.release()
        return await super().write()


async def idle() -> tuple[int, int]:
    return 0, 0


async def silent() -> tuple[int, int]:
    await asyncio.Event().wait()
    raise AssertionError


async def broken() -> tuple[int, int]:
    raise OverflowError("cannot convert float infinity to integer")


class Nowhere(writer.Registry):
    def connect(self) -> Any:
        raise RuntimeError("of a kind that nobody expects")


@pytest.mark.parametrize(
    ("place", "look"),
    [(writer.Registry, silent), (writer.Registry, broken), (Nowhere, idle)],
    ids=lambda one: one.__name__,
)
async def test_a_worker_is_renewed_whatever_happens(place: type[writer.Registry], look: Any) -> None:
    lease = Counted(place("redis://127.0.0.1:1"), look)
    async with asyncio.timeout(30):
        await lease.join()
        for _ in range(4):
            await lease.written.acquire()
        await lease.leave()


async def test_a_name_with_many_addresses_is_many_workers() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        assert (host, port) == ("engines", 8000)
        return ["10.0.0.2", "10.0.0.1", "fd00::1", "10.0.0.1"]

    found = await Dns("m", "engines", 8000, 1.0, resolve).read()
    assert [member.address for member in found["m"]] == [
        "http://10.0.0.1:8000",
        "http://10.0.0.2:8000",
        "http://[fd00::1]:8000",
    ]


async def test_a_name_with_too_many_addresses_is_as_many_workers_as_a_model_may_have() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return [f"10.0.{number // 250}.{number % 250}" for number in range(5000)]

    assert len((await Dns("m", "engines", 8000, 5.0, resolve).read())["m"]) == MOST_WORKERS


async def test_a_name_without_addresses_is_a_failure_and_no_empty_fleet() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return []

    with pytest.raises(OSError, match="no address"):
        await Dns("m", "engines", 8000, 1.0, resolve).read()


async def test_changes_are_applied_and_losses_change_nothing() -> None:
    source, heard = Scripted(), Heard()
    discovery = Discovery([source], {"m": ["http://fixed"]}, heard.apply, heard.report)
    source.answer = {"m": [FoundWorker("http://a")]}
    await discovery.start()
    assert heard.fleets == [("m", ["http://a", "http://fixed"])]
    source.answer = OSError("gone")
    await discovery.look(source)
    await discovery.look(source)
    assert heard.reports == [("scripted", "OSError")]
    assert len(heard.fleets) == 1
    source.answer = {"m": [FoundWorker("http://b")]}
    await discovery.look(source)
    assert heard.fleets[-1] == ("m", ["http://b", "http://fixed"])
    source.answer = {}
    await discovery.look(source)
    assert heard.fleets[-1] == ("m", ["http://fixed"])
    assert heard.reports == [("scripted", "OSError"), ("scripted", None)]
    await discovery.close()


async def test_a_source_that_is_lost_from_the_start_leaves_what_a_former_configuration_knew() -> None:
    source, heard = Scripted(), Heard()
    source.answer = OSError("gone")
    discovery = Discovery(
        [source], {"m": []}, heard.apply, heard.report, {"scripted": {"m": [FoundWorker("http://a")]}}
    )
    await discovery.start()
    assert heard.fleets == [("m", ["http://a"])]
    await discovery.close()


ABSENT = OSError(), socket.gaierror(socket.EAI_NONAME, "unknown"), socket.gaierror(socket.EAI_NODATA, "no address")


@pytest.mark.parametrize(("error", "answers"), list(zip(ABSENT, (False, True, True), strict=True)))
async def test_a_name_that_nobody_has_for_a_while_is_an_answer(error: Exception, answers: bool) -> None:
    heard, source, now = Heard(), Scripted(), [0.0]
    source.answer = error
    discovery = Discovery([source], {}, heard.apply, heard.report, clock=lambda: now[0])
    await discovery.look(source)
    now[0] = 9.9
    await discovery.look(source)
    assert discovery.unread == {"scripted"}, "machines start together: it may be about to come"
    source.answer = socket.gaierror(socket.EAI_AGAIN, "the name server does not answer")
    await discovery.look(source)
    source.answer, now[0] = error, 11.0
    await discovery.look(source)
    assert discovery.unread == {"scripted"}, "an answer only if nothing came between"
    now[0] = 21.0
    await discovery.look(source)
    assert discovery.unread == (set() if answers else {"scripted"})


async def test_what_a_listed_worker_says_of_itself_counts() -> None:
    source, heard = Scripted(), Heard()
    members: list[FoundWorker] = []

    async def apply(model: str, found: Sequence[FoundWorker]) -> None:
        members[:] = found

    discovery = Discovery([source], {"m": ["http://a"]}, apply, heard.report)
    source.answer = {"m": [FoundWorker("http://a", True, Facts("0.32.0"))]}
    await discovery.start()
    assert members == [FoundWorker("http://a", True, Facts("0.32.0"))]
    await discovery.close()


class FakeRedis:
    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    async def eval(self, script: str, keys: int, index: str, *bounds: int) -> list[Any]:
        assert (keys, index) == (1, "{dragoman-workers}")
        return [0, *(word for pair in self.values.items() for word in pair)]

    def put(self, record: writer.WorkerEntry) -> None:
        self.values[record.id.encode()] = record.text().encode()


def record(address: str, **changes: Any) -> writer.WorkerEntry:
    return writer.WorkerEntry(address, ("served",), "vllm", "0.32.0", 2048, **changes)


async def test_records_as_workers_write_them_are_read() -> None:
    redis, now = FakeRedis(), [0.0]
    registry = Registry(redis, {"m": "served", "other": "else"}, lambda: now[0])
    one = record("http://10.0.0.1:8000", abilities={"tools": False})
    redis.put(one)
    fleet = await registry.read()
    assert fleet == {
        "m": [FoundWorker("http://10.0.0.1:8000", False, Facts("0.32.0", 2048, {"tools": False}))],
        "other": [],
    }
    one.draining = True
    redis.put(one)
    (drains,) = (await registry.read())["m"]
    assert (drains.draining, drains.leaving) == (True, False)
    one.leaving = True
    redis.put(one)
    assert (await registry.read())["m"][0].leaving


@pytest.mark.parametrize("end", ["/v1", "/v1/", "/"])
def test_an_address_as_clients_write_it_is_the_workers_base_address(end: str) -> None:
    found = decode(*written(record("http://10.0.0.1:8000" + end)))
    assert found is None if end.endswith("/") else found is not None and found.address == "http://10.0.0.1:8000"


def written(entry: writer.WorkerEntry) -> tuple[bytes, bytes]:
    return entry.id.encode(), entry.text().encode()


async def test_a_record_that_vanishes_lingers_unless_the_worker_said_goodbye() -> None:
    redis, now = FakeRedis(), [0.0]
    registry = Registry(redis, {"m": "served"}, lambda: now[0])
    killed, leaving, restarted = (record(f"http://10.0.0.{n}:8000") for n in (1, 2, 3))
    leaving.draining = True
    for one in (killed, leaving, restarted):
        redis.put(one)
    assert len((await registry.read())["m"]) == 3
    redis.values.clear()
    redis.put(record("http://10.0.0.3:8000"))
    now[0] = 1.0
    assert [member.address for member in (await registry.read())["m"]] == [
        "http://10.0.0.1:8000",
        "http://10.0.0.3:8000",
    ]
    while now[0] < LINGER_S + 0.5:
        now[0] += READ_S
        await registry.read()
    assert [member.address for member in (await registry.read())["m"]] == ["http://10.0.0.3:8000"]


async def test_known_workers_linger_while_a_registry_that_came_back_empty_fills() -> None:
    known = {"m": [FoundWorker("http://a:1"), FoundWorker("http://b:1", draining=True)]}
    redis, now = FakeRedis(), [100.0]
    registry = Registry(redis, {"m": "served"}, lambda: now[0], known=known)
    assert await registry.read() == {"m": known["m"][:1]}, "b had said goodbye"
    redis.put(record("http://c:1"))
    for _ in range(2 * int(LINGER_S)):
        now[0] += READ_S
        assert [one.address for one in (await registry.read())["m"]] == ["http://a:1", "http://c:1"]
    now[0] += READ_S
    assert [one.address for one in (await registry.read())["m"]] == ["http://c:1"]


async def test_a_redis_that_returns_empty_after_a_long_time_empties_no_fleet() -> None:
    redis, now = FakeRedis(), [0.0]
    registry = Registry(redis, {"m": "served"}, lambda: now[0])
    redis.put(record("http://10.0.0.1:8000"))
    assert len((await registry.read())["m"]) == 1
    redis.values.clear()
    now[0] = 3600.0  # between: nothing but failures
    assert len((await registry.read())["m"]) == 1
    while now[0] < 3600.0 + LINGER_S + 1:
        now[0] += READ_S
        found = await registry.read()
    assert found["m"] == []


async def test_a_redis_that_takes_no_writes_empties_no_fleet() -> None:
    """All leases end, and Redis answers: it is full, cannot save, or is a replica. Workers that answer stay, however
    long that takes, and then have the usual time for a new entry."""
    redis, now = FakeRedis(), [0.0]
    first, second = record("http://10.0.0.1:8000"), record("http://10.0.0.2:8000")
    ready = {first.address, second.address}
    registry = Registry(redis, {"m": "served"}, lambda: now[0], ready=lambda: ready)
    redis.put(first)
    redis.put(second)
    await registry.read()
    redis.values.clear()
    for _ in range(1000):
        now[0] += READ_S
        with pytest.raises(EmptyRegistry):
            await registry.read()
    redis.put(second)
    while now[0] < 500 + LINGER_S - READ_S:
        now[0] += READ_S
        assert len((await registry.read())["m"]) == 2
    now[0] += READ_S
    assert [one.address for one in (await registry.read())["m"]] == [second.address]


async def test_a_registry_without_an_entry_keeps_no_worker_that_is_gone() -> None:
    redis, now = FakeRedis(), [0.0]
    killed, left = record("http://10.0.0.1:8000"), record("http://10.0.0.2:8000", draining=True)
    registry = Registry(redis, {"m": "served"}, lambda: now[0], ready=lambda: {left.address})
    redis.put(killed)
    redis.put(left)
    await registry.read()
    redis.values.clear()
    found = await registry.read()
    assert [one.address for one in found["m"]] == [killed.address]
    while now[0] < LINGER_S + READ_S:
        now[0] += READ_S
        found = await registry.read()
    assert found["m"] == []


async def test_whatever_goes_wrong_looking_goes_on() -> None:
    source, heard, calls = Scripted(), Heard(), 0
    source.interval_s = 0.001
    looked = asyncio.Event()

    async def apply(model: str, members: Sequence[FoundWorker]) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyError("a bug")
        if calls == 3:
            looked.set()

    discovery = Discovery([source], {"m": []}, apply, heard.report)
    await discovery.start()
    source.answer = {"m": [FoundWorker("http://a")]}
    await asyncio.wait_for(heard.said.wait(), 30)
    source.answer = {"m": [FoundWorker("http://b")]}
    await asyncio.wait_for(looked.wait(), 30)
    assert heard.reports == [("scripted", "KeyError: 'a bug'")]
    await discovery.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"address": "http://a/../b"},
        {"address": "http://user@a"},
        {"address": "http://a\r\nx: y"},
        {"address": "file:///a"},
        {"address": "http://a?x"},
        {"address": 7},
        {"models": "served"},
        {"models": ["x" * 300]},
        {"models": ["x"] * 3000},
        {"address": "http://a:0"},
        {"address": "http://a:65536"},
        {"address": "http://a:99999"},
        {"address": "http://" + "a" * 2000},
        {"id": "another"},
        {"id": ""},
        {"id": "a b"},
        {"engine": "x" * 1000},
        {"version": "x" * 1000},
        {"max_model_len": 0},
        {"max_model_len": 1 << 40},
        {"abilities": {str(number): True for number in range(100)}},
        {"draining": "no"},
    ],
)
def test_what_is_no_record_is_passed_over(changes: dict[str, Any]) -> None:
    good = json.loads(record("http://a:1").text())
    worker = good["id"].encode()
    assert decode(worker, json.dumps(good).encode()) is not None
    assert decode(worker, json.dumps({**good, "address": "http://a:65535"}).encode()) is not None
    assert decode(worker, json.dumps({**good, **changes}).encode()) is None


def test_what_is_no_json_is_passed_over() -> None:
    assert decode(b"a", b"[" * 100_000) is None
    assert decode(b"a", b"") is None


async def test_no_entry_takes_another_worker_out() -> None:
    redis = FakeRedis()
    registry = Registry(redis, {"m": "served"}, lambda: 0.0)
    mine, theirs = record("http://10.0.0.1:8000"), record("http://10.0.0.1:8000")
    theirs.draining = True
    redis.put(mine)
    redis.put(theirs)
    assert [(one.address, one.draining) for one in (await registry.read())["m"]] == [(mine.address, False)]
    theirs.id = mine.id
    redis.values[b"other"] = theirs.text().encode()
    assert [(one.address, one.draining) for one in (await registry.read())["m"]] == [(mine.address, False)]


async def test_a_large_registry_is_read_in_slices() -> None:
    redis, now = FakeRedis(), [0.0]
    registry = Registry(redis, {"m": "served"}, lambda: now[0])
    for number in range(1000):
        redis.put(record(f"http://10.0.{number // 200}.{number % 200}:8000"))

    with rounds() as turned:
        assert len((await registry.read())["m"]) == 1000
    assert turned[0] >= 20


def test_abilities_are_those_that_all_have() -> None:
    declared = Capabilities("m", features=None)
    assert able(declared, ()) == declared
    modern = FoundWorker("http://a", facts=Facts("0.32.0", 4096, {"tools": True, "no_repeat_ngram": True}))
    older = FoundWorker("http://b", facts=Facts("0.11.1rc2", 2048, {"tools": False, "no_repeat_ngram": True}))
    stock = FoundWorker("http://c")
    can = able(declared, [modern, older])
    assert (can.max_context, can.lacks, can.beyond, can.version) == (
        2048,
        frozenset({"tools"}),
        frozenset({"no_repeat_ngram"}),
        (0, 11, 1),
    )
    assert able(declared, [modern, stock]).beyond == frozenset()
    assert able(Capabilities("m", 100, frozenset({"bad_word_tokens"})), [stock]).beyond == {"bad_word_tokens"}
    assert able(Capabilities("m", 100), [modern]).max_context == 100
