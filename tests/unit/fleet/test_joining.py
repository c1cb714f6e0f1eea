"""Workers as processes that join a gateway through a real Redis server, leave it, and are killed."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic

import httpx
import pytest

from gateway.fleet.discovery import FoundWorker
from gateway.fleet.registry import _SCRIPT, Registry
from gateway.redis import connect
from gateway.transport.pooled import Pooled
from tests.support.harness import Stack, sse_data
from tests.support.harness import until as soon
from tests.support.ports import free_port
from tests.support.redis_server import Server
from workers import registry as writer
from workers.simulated import main as simulated

ROOT = Path(__file__).resolve().parents[3]
READS = ("+eval", "+sscan", "+scard", "+strlen", "+get")
MODELS = {"m": {"discover": {"redis": True}}}


class Process:
    """`dragoman worker simulated`, registered."""

    def __init__(self, server: Server, *options: str) -> None:
        words = ["--port", "0", "--register", f"redis://{server.address}", *options]
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "workers.simulated", *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        if not line:
            self.__exit__()
            raise AssertionError(f"it ended with {self.popen.returncode} before it listened")
        self.url = line.split()[-1]

    def told_to_stop(self) -> None:
        self.popen.send_signal(signal.SIGTERM)

    def ended(self) -> int:
        return self.popen.wait(60)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.popen.kill()
        self.popen.communicate()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as server:
        yield server


def stack(redis: Server, **options: str) -> Stack:
    there = {"addresses": [redis.address], "timeout_s": 10, **options}
    return Stack(workers=(), config={"redis": there, "models": MODELS})


ENTRY = writer.WorkerEntry("http://h:1", ("m",), "simulated")


async def idle() -> tuple[int, int]:
    return 0, 0


def fleet(gateway: Stack) -> dict[str, bool]:
    """Address -> whether it takes requests, of the workers that the gateway knows."""
    return {worker.address: worker.serving for worker in list(gateway.gateway.deployment.pools["m"].workers)}


def until(gateway: Stack, wanted: dict[str, bool]) -> None:
    soon(lambda: fleet(gateway) == wanted)


def ask(gateway: Stack) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "ignore_eos": True}
    return httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=60)


def whole(answer: bytes) -> bool:
    return list(sse_data(answer))[-1] == b"[DONE]" and b'"finish_reason":"length"' in answer


class Plain:
    """Requests one after the other until they are over; their statuses."""

    def __init__(self, gateway: Stack, pool: ThreadPoolExecutor) -> None:
        self._over = threading.Event()
        self.statuses: list[int] = []
        self._asking = pool.submit(self._ask, gateway)

    def _ask(self, gateway: Stack) -> None:
        while not self._over.is_set():
            self.statuses.append(ask(gateway).status_code)

    def over(self) -> None:
        self._over.set()
        self._asking.result()


@contextmanager
def crowd(gateway: Stack) -> Iterator[tuple[list[Future[bytes]], Plain]]:
    """20 streams that have their first output, which cannot be tried again from then on, and plain requests beside
    them. A stream that breaks off ends in `<cut>`."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 250}
    body |= {"stream": True, "ignore_eos": True}
    speaking: list[None] = []

    def stream() -> bytes:
        got = b""
        with httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json=body, timeout=60) as answer:
            try:
                for block in answer.iter_bytes():
                    if not got:
                        speaking.append(None)
                    got += block
            except httpx.RemoteProtocolError:
                got += b"<cut>"
        return got

    with ThreadPoolExecutor(24) as pool:
        streams = [pool.submit(stream) for _ in range(20)]
        plain = Plain(gateway, pool)
        try:
            soon(lambda: len(speaking) == 20)
            yield streams, plain
        finally:
            plain.over()


def test_a_worker_joins_and_leaves_by_itself(redis: Server) -> None:
    with stack(redis) as gateway:
        assert ask(gateway).status_code == 503
        # Its entry would not end by itself while we look.
        with Process(redis, "--lease", "600") as one:
            until(gateway, {one.url: True})
            assert ask(gateway).status_code == 200
            record = json.loads(redis.command("GET", "{dragoman-workers}:" + _only(redis)))
            assert record["engine"] == "simulated"
            assert record["address"] == one.url
            body = {
                "messages": [{"role": "user", "content": 'sim:{"text": "a b", "fault": "stall@1"}'}],
                "stream": True,
            }
            with httpx.stream("POST", f"{one.url}/v1/chat/completions", json=body, timeout=60):
                one.told_to_stop()
                until(gateway, {one.url: False})  # it leaves when its last request has ended, and not before
            assert one.ended() == 0
        until(gateway, {})
        assert redis.command("KEYS", "*") == []


def _only(redis: Server) -> str:
    (worker,) = redis.command("SMEMBERS", "{dragoman-workers}")
    return str(worker.decode())


async def test_the_documented_users_need_no_more(redis: Server, tmp_path: Path) -> None:
    """Nor do they try to: what is denied would fill the server's ACL LOG at every connect."""
    text = (ROOT / "docs" / "workers.md").read_text()
    (granted,) = re.findall(r"`ACL SETUSER (worker on >SECRET [^`]*)`", text)
    redis.command("ACL", "SETUSER", *granted.split())
    redis.command("ACL", "SETUSER", "gateway", "on", ">SECRET", "~{dragoman-workers}*", *READS)
    (tmp_path / "password").write_text("SECRET")

    place = writer.Registry(f"redis://worker@{redis.address}", str(tmp_path / "password"))
    lease = writer.Lease(place, ENTRY, idle)
    assert await lease.write()
    login = {"username": "gateway", "password_file": str(tmp_path / "password")}
    client = connect(redis.settings.model_copy(update=login))
    fleet = await Registry(client, {"m": "m"}, monotonic).read()
    assert [member.address for member in fleet["m"]] == ["http://h:1"]
    await lease.leave()
    await client.aclose()
    assert redis.command("ACL", "LOG") == []


async def test_what_is_too_large_or_too_much_never_leaves_redis(redis: Server) -> None:
    """A real worker is found beside it, and what counts for nothing is counted."""
    index = "{dragoman-workers}"
    ignored: list[int] = []
    lease = writer.Lease(writer.Registry(f"redis://{redis.address}"), ENTRY, idle)
    assert await lease.write()
    client = connect(redis.settings)
    registry = Registry(client, {"m": "m"}, monotonic, report=ignored.append)

    async def found() -> list[str]:
        return [member.address for member in (await registry.read())["m"]]

    assert await found() == [ENTRY.address]
    assert ignored == []
    for number in range(60):
        redis.command("SET", f"{index}:large-{number}", b" " * 2_000_000)
        redis.command("SADD", index, f"large-{number}")
    redis.command("LPUSH", f"{index}:list", "a")
    redis.command("SADD", index, "list", "x" * 1_000_000)
    tracemalloc.start()
    assert await found() == [ENTRY.address]
    assert tracemalloc.get_traced_memory()[1] < 4_000_000
    tracemalloc.stop()
    assert ignored == [62]
    fill = "for n = 1, 20000 do redis.call('SADD', KEYS[1], n); redis.call('SET', KEYS[1] .. ':' .. n, ARGV[1]) end"
    redis.command("EVAL", fill, 1, index, "{}")
    bounds = await client.eval(_SCRIPT, 1, index, 1000, 64, 65536, 1 << 22, 10_000)
    assert len(bounds) <= 1 + 2 * 1000
    await registry.read()
    assert ignored[-1] > 19_000
    await lease.leave()
    await client.aclose()


@pytest.mark.long
def test_two_deployments_on_one_redis_do_not_know_each_other(redis: Server) -> None:
    with (
        stack(redis, namespace="blue") as blue,
        stack(redis) as plain,
        Process(redis, "--namespace", "blue") as its,
        Process(redis) as other,
    ):
        until(blue, {its.url: True})
        until(plain, {other.url: True})
        assert (ask(blue).status_code, ask(plain).status_code) == (200, 200)
        assert {key.split(b"}")[0] for key in redis.command("KEYS", "*")} == {b"{blue-workers", b"{dragoman-workers"}


@pytest.mark.long
def test_a_worker_told_to_stop_under_20_streams_cuts_none_of_them(redis: Server) -> None:
    with Process(redis, "--itl-ms", "20") as one, Process(redis, "--itl-ms", "20") as two, stack(redis) as gateway:
        until(gateway, {one.url: True, two.url: True})
        with crowd(gateway) as (streams, plain):
            one.told_to_stop()
            assert one.ended() == 0
            until(gateway, {two.url: True})
            plain.over()
            answers = [stream.result() for stream in streams]
        assert [whole(answer) for answer in answers] == [True] * 20
        assert set(plain.statuses) == {200}


@pytest.mark.long
def test_a_worker_that_leaves_hands_over_what_runs_and_need_not_wait_for_it(redis: Server) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3000, "ignore_eos": True}
    with (
        Process(redis, "--itl-ms", "20", "--hand-over", "1", "--grace", "100") as one,
        stack(redis) as gateway,
        ThreadPoolExecutor(1) as pool,
    ):
        until(gateway, {one.url: True})
        asked = pool.submit(httpx.post, f"{gateway.url}/v1/chat/completions", json=body, timeout=60)
        soon(lambda: any(worker.in_flight for worker in gateway.gateway.deployment.pools["m"].workers))
        one.told_to_stop()
        until_logged(gateway, "worker leaving")
        assert one.popen.poll() is None, "nobody else could answer"
        with Process(redis) as two:
            assert one.ended() == 0
            assert asked.result().status_code == 200
            record = gateway.record()
            assert (record["worker"], record["attempts"]) == (two.url, 2)


@pytest.mark.parametrize("hand_over_s", [0.1, 10.0])
async def test_a_worker_waits_out_its_grace_for_what_cannot_be_handed_over(hand_over_s: float) -> None:
    """A hand-over that is asked for after the grace comes in time, too."""
    written: list[tuple[bool, bool]] = []

    class Noting(writer.Lease):
        async def write(self) -> bool:
            written.append((self.record.draining, self.record.leaving))
            return True

    lease = Noting(writer.Registry("redis://h:1"), dataclasses.replace(ENTRY), idle)
    never = asyncio.Event()
    drained = partial(writer.wind_down, lease, grace_s=0.5, hand_over_s=hand_over_s, notice_s=0.01, hurry=never)

    async def busy() -> tuple[int, int]:
        return 1, 0

    assert not await drained(busy)
    assert written == [(True, False), (True, True)]
    assert lease.record.until is not None
    lease.record.draining = lease.record.leaving = False
    written.clear()
    assert await drained(idle)
    assert written == [(True, False)], "nothing runs"


async def test_a_load_that_cannot_be_read_ends_no_drain() -> None:
    """A busy engine reports late, or once not at all: nothing is known of its requests then."""
    reports: list[tuple[int, int] | Exception] = [OSError(), OverflowError(), ValueError(), (1, 0), (0, 0)]

    async def load() -> tuple[int, int]:
        report = reports.pop(0)
        if isinstance(report, Exception):
            raise report
        return report

    assert await writer.wind_down(None, load, grace_s=60, hand_over_s=60, hurry=asyncio.Event())
    assert reports == []


async def test_a_load_that_never_comes_does_not_outlast_the_grace() -> None:
    async def load() -> tuple[int, int]:
        await asyncio.Event().wait()
        raise AssertionError

    async with asyncio.timeout(30):
        assert not await writer.wind_down(None, load, grace_s=0.1, hand_over_s=60, hurry=asyncio.Event())


@pytest.mark.long
def test_a_killed_worker_takes_no_stream_along(redis: Server) -> None:
    with Process(redis, "--itl-ms", "20") as one, Process(redis, "--itl-ms", "20") as two, stack(redis) as gateway:
        until(gateway, {one.url: True, two.url: True})
        with crowd(gateway) as (streams, plain):
            mine = next(w.in_flight for w in gateway.gateway.deployment.pools["m"].workers if w.address == one.url)
            one.popen.kill()
            answers = [stream.result() for stream in streams]
            plain.over()
        assert all(answer.rstrip().endswith(b"data: [DONE]") for answer in answers)
        # A plain request may have been among those in flight.
        assert mine - 1 <= sum(bool(record.get("continued")) for record in gateway.records()) <= mine
        assert set(plain.statuses) == {200}


def test_a_full_redis_keeps_the_fleet_and_a_worker_killed_meanwhile_goes(redis: Server) -> None:
    """Workers cannot renew their leases, and reading goes on: no entry is left of workers that answer."""
    with Process(redis, "--lease", "1") as one, Process(redis, "--lease", "1") as two, stack(redis) as gateway:
        until(gateway, {one.url: True, two.url: True})
        redis.command("CONFIG", "SET", "maxmemory", 1)
        until_logged(gateway, "workers cannot be looked up; the known ones stay")
        assert gateway.events("workers cannot be looked up; the known ones stay")[0]["error"] == "EmptyRegistry"
        two.popen.kill()
        until(gateway, {one.url: True, two.url: False})
        assert ask(gateway).status_code == 200
        redis.command("CONFIG", "SET", "maxmemory", 0)
        until_logged(gateway, "workers can be looked up again")
        until(gateway, {one.url: True})


def test_losing_redis_keeps_the_fleet_and_so_does_its_return_without_data(redis: Server) -> None:
    with Process(redis) as one, stack(redis) as gateway:
        until(gateway, {one.url: True})
        redis.kill()
        until_logged(gateway, "workers cannot be looked up; the known ones stay")
        assert fleet(gateway) == {one.url: True}
        assert ask(gateway).status_code == 200
        redis.start()
        until_logged(gateway, "workers can be looked up again")
        assert fleet(gateway) == {one.url: True}
        assert ask(gateway).status_code == 200
        lines = [line["event"] for line in gateway.output.lines()]
        assert lines.count("workers cannot be looked up; the known ones stay") == 1


def until_logged(gateway: Stack, event: str) -> None:
    soon(lambda: bool(gateway.events(event)))


def test_a_reload_keeps_the_fleet_while_redis_is_lost(redis: Server) -> None:
    with Process(redis) as one, stack(redis) as gateway:
        until(gateway, {one.url: True})
        redis.kill()
        gateway.run(gateway.gateway.reload(gateway.config({"models": {"m": {"aliases": ["new"]}}})))
        assert fleet(gateway) == {one.url: True}
        assert ask(gateway).status_code == 200


def test_every_address_of_a_name_is_a_worker() -> None:
    port = free_port()
    config = {"models": {"m": {"workers": ["http://127.0.0.1:1"], "discover": {"dns": f"localhost:{port}"}}}}
    with Stack(workers=({"port": port},), config=config) as gateway:
        assert f"http://127.0.0.1:{port}" in fleet(gateway)
        assert fleet(gateway)["http://127.0.0.1:1"] is False
        assert ask(gateway).status_code == 200


def test_no_address_of_a_worker_that_left_is_kept() -> None:
    with Stack(({}, {}), {"models": {"m": {"policy": "round_robin"}}}) as gateway:
        first, second = (sim.url for sim in gateway.sims)
        deployment = gateway.gateway.deployment
        fleets, worker = deployment.fleets, deployment.workers["m", first]
        for _ in range(2):
            assert ask(gateway).status_code == 200
        asking = fleets.clients._transports["m"]  # probes go through it
        assert isinstance(asking, Pooled)
        assert set(deployment.transports["m"].origins) == set(asking.origins) == {first, second}
        gateway.run(fleets._join("m", [FoundWorker(second)]))  # as discovery calls it
        assert set(deployment.transports["m"].origins) == set(asking.origins) == {second}
        gateway.run(fleets.death_of("m", worker))
        assert set(asking.origins) == {second}


@pytest.mark.parametrize(
    "words",
    [
        ["--register", "http://h:1"],
        ["--register", "redis://:secret@h:1"],
        ["--register", "redis://h:1/x"],
        ["--register", "redis://h:1", "--redis-password-file", "absent"],
        ["--register", "redis://h:1", "--lease", "0.1"],
        ["--register", "redis://h:1", "--advertise", "ftp://x", "--port", "0"],
    ],
)
def test_a_worker_says_what_is_wrong_with_its_flags(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("dragoman worker simulated: ")
    assert "secret" not in said
    assert len(said.splitlines()) == 1


def test_a_worker_without_its_registry_serves(tmp_path: Path) -> None:
    server = Server(tmp_path)
    with Process(server) as one:
        assert httpx.get(f"{one.url}/health").status_code == 200
        with server:
            soon(lambda: bool(server.command("SMEMBERS", "{dragoman-workers}")))
            one.told_to_stop()
            assert one.ended() == 0
