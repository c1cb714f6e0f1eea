"""Health probes against scripted answers, and what a failing request does to the next one."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.config import Breaker
from gateway.config import Health as HealthOptions
from gateway.core.errors import GatewayError, Kind
from gateway.core.failures import Cause
from gateway.fleet import health as health_module
from gateway.fleet.clients import Clients
from gateway.fleet.health import Health
from gateway.fleet.worker import Worker
from gateway.transport.pooled import Pooled


class Fleet:
    """Workers w0, w1, … whose probes `script` answers: by address a status, or what is raised."""

    def __init__(self, count: int) -> None:
        self.script: dict[str, int | Exception] = {}
        self.asked: list[str] = []
        self.changes: list[tuple[str, bool]] = []
        self.probed = asyncio.Event()
        self.workers = {
            ("m", f"http://w{number}"): Worker(f"http://w{number}", Breaker(), None) for number in range(count)
        }

    async def answer(self, model: str, address: str, path: str, limit_s: float) -> int:
        self.asked.append(address[7:])
        self.probed.set()
        said = self.script.get(address[7:], 200)
        if isinstance(said, Exception):
            raise said
        return said

    @asynccontextmanager
    async def watched(self, interval_s: float = 60.0) -> AsyncIterator[Health]:
        health = Health(
            self.workers,
            HealthOptions(interval_s=interval_s, timeout_s=0.1, path="/health"),
            self.answer,
            lambda model, worker: self.changes.append((worker.address, worker.ready)),
        )
        await health.start()
        try:
            yield health
        finally:
            await health.close()

    async def again(self, health: Health, worker: Worker) -> None:
        """One probe more, at once."""
        self.probed.clear()
        health.suspect(worker)
        async with asyncio.timeout(30):
            await self.probed.wait()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def settle(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        for _ in iter(condition, True):
            await asyncio.sleep(0)


def unreachable(cause: Exception, kind: Kind = Kind.UPSTREAM) -> GatewayError:
    error = GatewayError(kind, "the worker could not be reached")
    error.__cause__ = cause
    return error


SILENT = GatewayError(Kind.TIMEOUT, "silent")
RESET = GatewayError(Kind.UPSTREAM, "reset", broke=True)
REFUSED = unreachable(ConnectionRefusedError())
UNKNOWN = unreachable(socket.gaierror(socket.EAI_NONAME, "Name or service not known"))


@pytest.mark.parametrize(
    ("said", "ready"),
    [
        (200, True),
        (404, True),
        (401, True),
        (500, False),
        (503, False),
        (REFUSED, False),
        (GatewayError(Kind.UPSTREAM, "no HTTP"), False),
        (TimeoutError(), False),
        (SILENT, False),
        (RuntimeError("whatever"), False),
    ],
)
async def test_the_first_probe_decides(said: int | Exception, ready: bool) -> None:
    fleet = Fleet(1)
    fleet.script["w0"] = said
    async with fleet.watched():
        (worker,) = fleet.workers.values()
        assert worker.ready is ready
        assert fleet.changes == [("http://w0", ready)], "the first answer is always told"


@pytest.mark.parametrize("said", [500, 503, REFUSED, UNKNOWN, RuntimeError("whatever")])
async def test_a_clear_answer_takes_it_out_at_once(said: int | Exception) -> None:
    fleet = Fleet(1)
    async with fleet.watched() as health:
        (worker,) = fleet.workers.values()
        fleet.script["w0"] = said
        health.suspect(worker)
        await settle(lambda: not worker.ready)
        assert len(fleet.asked) == 2
        fleet.script["w0"] = 200
        health.suspect(worker)
        await settle(lambda: worker.ready)
        assert fleet.changes == [("http://w0", True), ("http://w0", False), ("http://w0", True)]


OURS = [
    OSError(errno.EMFILE, "too many open files"),
    OSError(errno.ENFILE, "too many open files"),
    socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
]


@pytest.mark.parametrize("cause", OURS, ids=["own files", "all files", "name server"])
@pytest.mark.parametrize("ready", [True, False])
async def test_no_worker_is_blamed_for_what_the_gateway_lacks(cause: OSError, ready: bool) -> None:
    fleet = Fleet(1)
    fleet.script["w0"] = 200 if ready else 503
    async with fleet.watched() as health:
        (worker,) = fleet.workers.values()
        fleet.script["w0"] = unreachable(cause, Kind.UPSTREAM if cause is OURS[2] else Kind.OVERLOADED)
        for _ in range(4):
            await fleet.again(health, worker)
            assert worker.ready is ready


@pytest.mark.parametrize("said", [SILENT, RESET, GatewayError(Kind.TRUNCATED, "disconnected"), TimeoutError()])
async def test_silence_takes_it_out_after_three_probes(said: Exception) -> None:
    fleet = Fleet(1)
    async with fleet.watched() as health:
        (worker,) = fleet.workers.values()
        for answers in ([said, said, 200], [said, said]):
            for answer in answers:
                fleet.script["w0"] = answer  # type: ignore[assignment]
                await fleet.again(health, worker)
                assert worker.ready
        await fleet.again(health, worker)
        await settle(lambda: not worker.ready)


async def test_a_suspect_is_probed_at_once_and_others_are_not() -> None:
    fleet = Fleet(3)
    async with fleet.watched(interval_s=60) as health:
        assert sorted(fleet.asked) == ["w0", "w1", "w2"]
        suspect = fleet.workers["m", "http://w1"]
        await fleet.again(health, suspect)
        assert fleet.asked[3:] == ["w1"]
        health.suspect(Worker("http://stranger", Breaker(), None))  # of a configuration that is gone


async def test_a_suspect_is_one_until_it_answers_a_probe_or_is_down() -> None:
    fleet = Fleet(2)
    (first, second) = fleet.workers.values()
    async with fleet.watched() as health:
        for worker, last, ready in ((first, 200, True), (second, REFUSED, False)):
            fleet.script[worker.address[7:]] = SILENT
            await fleet.again(health, worker)
            await settle(lambda worker=worker: worker.missed_probes == 1)  # type: ignore[misc]
            assert (worker.ready, worker.suspected) == (True, True)
            fleet.script[worker.address[7:]] = last
            await fleet.again(health, worker)
            await settle(lambda worker=worker: not worker.suspected)  # type: ignore[misc]
            assert worker.ready is ready
    health.suspect(first)
    assert not first.suspected, "nothing would end that"


async def test_probing_goes_on_by_itself() -> None:
    fleet = Fleet(1)
    async with fleet.watched(interval_s=0.01):
        await settle(lambda: len(fleet.asked) >= 5)


async def test_all_are_probed_at_the_same_time() -> None:
    """A hundred silent workers delay the start by one timeout, not by a hundred."""
    fleet = Fleet(100)
    under_way = most = 0
    gate = asyncio.Event()

    async def slow(model: str, address: str, path: str, limit_s: float) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way == 100:
            gate.set()
        await gate.wait()
        return 200

    fleet.answer = slow  # type: ignore[method-assign]
    async with asyncio.timeout(30), fleet.watched():
        assert most == 100


@pytest.mark.parametrize("said", ["endless body", "endless head"])
async def test_a_probe_reads_no_more_than_the_status(said: str) -> None:
    """However much a worker says: megabytes as a body, or its head a byte at a time."""
    sent, over = 0, asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n" + (b"\r\n" if said == "endless body" else b""))
            while sent < 1 << 28:
                writer.write(b"x" * 65_536 if said == "endless body" else b"x")
                await writer.drain()
                sent += 65_536 if said == "endless body" else 0
                await asyncio.sleep(0 if said == "endless body" else 0.02)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        over.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    worker = Worker(url, Breaker(), None)
    policy = HealthOptions(interval_s=60.0, timeout_s=0.5, path="/health")
    clients = Clients(lambda model: Pooled(max_idle=0), 1.0)
    health = Health({("m", url): worker}, policy, clients.probe, lambda model, worker: None)
    async with asyncio.timeout(30):
        await health.start()
        assert worker.ready is (said == "endless body")
        await health.close()
        await over.wait()
    assert sent < 1 << 25
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("proxy", [None, "http://***@proxy:3128"])
@pytest.mark.parametrize(
    ("address", "error", "seen"),
    [
        ("https://w0", GatewayError(Kind.UPSTREAM, "", cause=Cause.HOST_NOT_IN_CERTIFICATE), "(none)"),
        ("http://w0", GatewayError(Kind.UPSTREAM, "", cause=Cause.BROKE_OFF, broke=True), "TLS"),
    ],
)
async def test_no_look_at_a_certificate_goes_past_a_proxy(
    monkeypatch: pytest.MonkeyPatch, address: str, error: GatewayError, seen: str, proxy: str | None
) -> None:
    looks: list[str] = []

    async def look(address: str, limit_s: float) -> bytes:
        looks.append(address)
        return b"a certificate"

    async def get(model: str, address: str, path: str, limit_s: float) -> int:
        raise error

    monkeypatch.setattr(health_module, "certificate_of", look)
    worker = Worker(address, Breaker(), None)
    worker.ready, worker.proxy = False, proxy
    error.cause = Cause.BROKE_OFF if error.broke else error.cause
    health = Health({("m", address): worker}, HealthOptions(interval_s=60, timeout_s=30), get, lambda *_: None)
    await health.start()
    await health.close()
    assert looks == ([] if proxy else [address])
    assert worker.meaning is not None
    assert (seen in worker.meaning) == (proxy is None)
    assert ("not read through a proxy" in worker.meaning) == (address == "https://w0" and proxy is not None)


@pytest.mark.parametrize("cause", [ConnectionRefusedError(), OURS[2]], ids=["refused", "name server"])
async def test_a_probe_of_a_worker_that_has_left_finds_its_death_and_changes_nothing(cause: OSError) -> None:
    fleet = Fleet(1)
    async with fleet.watched() as health:
        (worker,) = fleet.workers.values()
        changes = list(fleet.changes)
        health.remove(worker)
        fleet.script["w0"] = unreachable(cause)
        assert await health.is_gone("m", worker)
        assert fleet.changes == changes
        assert not health.unresolved


async def test_a_worker_that_leaves_during_the_first_probe_is_not_probed_again() -> None:
    fleet = Fleet(1)
    gate = asyncio.Event()

    async def slow(*_: object) -> int:
        await gate.wait()
        return 200

    (worker,) = fleet.workers.values()
    options = HealthOptions(interval_s=0.01, timeout_s=30, path="/health")
    changes: list[Worker] = []
    health = Health(fleet.workers, options, slow, lambda model, worker: changes.append(worker))
    starting = asyncio.create_task(health.start())
    await asyncio.sleep(0)
    health.remove(worker)
    gate.set()
    await starting
    assert not health._tasks  # nothing else shows that it is not watched
    assert not changes
    await health.close()
