"""Clusters, sentinels, servers that are full or whose machines died, passwords and TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from redis.crc import key_slot

from gateway.config import Limit, Redis
from gateway.ratelimit import Subject, SubjectLimiter
from gateway.ratelimit.model import Limited
from gateway.ratelimit.plan import Layout, Plans
from gateway.ratelimit.redis.store import RedisStore
from tests.support.ports import free_port
from tests.support.redis_server import Server
from tests.support.standins.serving import certificate
from tests.unit.ratelimit.conftest import Make, reach
from tests.unit.ratelimit.redis.traffic import RULES, traffic


def test_the_keys_of_a_request_lie_in_one_slot() -> None:
    subject = Subject("k}{x", "t", "m{9}", "2001:db8::1")
    plan = Plans(RULES, Layout("a.b-c")).of(subject)
    assert len({key_slot(key) for key in (*plan.keys, Layout("a.b-c").key(0, "replicas"))}) == 1
    per_team = [rule for rule in RULES if "team" in rule.scope]
    layout = Layout(partitions=8, partition_by="team")
    slots = set()
    for team in "abcdefghij":
        plan = Plans(per_team, layout).of(Subject("k", team, "m", "10.0.0.1"))
        assert len({key_slot(key) for key in (*plan.keys, layout.key(plan.tag, "replicas"))}) == 1
        slots.add(key_slot(plan.keys[0]))
    assert len(slots) > 1


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, "--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
        server.command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        yield server


@pytest.mark.parametrize("partitions", [1, 8])
async def test_a_cluster(cluster: Server, partitions: int, started: Make) -> None:
    settings = cluster.settings.model_copy(update={"mode": "cluster"})
    layout = Layout(partitions=partitions, partition_by="team" if partitions > 1 else None)
    rules = RULES if partitions == 1 else [rule for rule in RULES if "team" in rule.scope]
    limiter = await started(rules, RedisStore(settings, layout=layout))
    await reach(limiter)
    await traffic(limiter, 10, 2)
    cluster.command("SCRIPT", "FLUSH")
    await traffic(limiter, 10, 3)
    assert (limiter.state, limiter.store.reason) == ("strict", "")
    assert not limiter.decisions.of("refused").keys() - {rule.name for rule in rules}
    # -1 is for ever; one that has gone meanwhile has -2.
    assert all(cluster.command("PTTL", key) != -1 for key in cluster.command("KEYS", "*"))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Server]]:
    """A cluster of three primaries."""
    with ExitStack() as stack:
        found = []
        for number in range(3):
            (tmp_path / str(number)).mkdir()
            options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
            found.append(stack.enter_context(Server(tmp_path / str(number), *options)))
        for number, one in enumerate(found):
            one.command("CLUSTER", "ADDSLOTSRANGE", number * 5461, 16_383 if number == 2 else number * 5461 + 5460)
            one.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for other in found[1:]:
            found[0].command("CLUSTER", "MEET", "127.0.0.1", other.port, other.options[-1])
        deadline = monotonic() + 30
        while any(b"cluster_state:ok" not in info(one) or b"known_nodes:3" not in info(one) for one in found):
            assert monotonic() < deadline
            sleep(0.05)
        yield found


def info(node: Server) -> bytes:
    told = node.command("CLUSTER", "INFO")
    return told if isinstance(told, bytes) else str(told).replace("': '", ":").encode()


@pytest.mark.parametrize("partitions", [1, 16])
async def test_a_cluster_of_several_nodes(nodes: list[Server], partitions: int) -> None:
    """Partitions lie on all nodes, however many of them connect at the same time; a slot that moves is followed."""
    settings = Redis(addresses=(f"127.0.0.1:{free_port()}", nodes[0].address), mode="cluster", timeout_s=10)
    layout = Layout(partitions=partitions, partition_by="team" if partitions > 1 else None)
    rules = [Limit(name="rpm", kind="requests", limit=3, scope=("team",)), *([RULES[2]] if partitions == 1 else [])]
    for _ in range(3):  # as `dragoman limits` does: start, ask, end
        limiter = SubjectLimiter(rules, RedisStore(settings, layout=layout))
        await limiter.start(beats=False)
        await reach(limiter)
        await limiter.inspect(Subject("k", "t"))
        await limiter.close()
    limiter = SubjectLimiter(rules, RedisStore(settings, layout=layout))
    await limiter.start()
    await reach(limiter)
    for team in range(40):
        for _ in range(3):
            assert (await limiter.reserve(Subject("k", f"t{team}"))).strict
        with pytest.raises(Limited):
            await limiter.reserve(Subject("k", f"t{team}"))
    held = [one.command("DBSIZE") for one in nodes]
    assert all(held) if partitions > 1 else sum(map(bool, held)) == 1
    assert (limiter.state, limiter.decisions.alone) == ("strict", 0)
    await limiter.close()


async def test_a_node_that_stands_still_holds_no_request_up(nodes: list[Server], started: Make) -> None:
    """Requests are decided alone while it does, also those whose counters lie on other nodes once that is known."""
    settings = Redis(addresses=tuple(one.address for one in nodes), mode="cluster", timeout_s=0.3)
    rules = [Limit(name="rpm", kind="requests", limit=100, scope=("team",))]
    limiter = await started(rules, RedisStore(settings, layout=Layout(partitions=16, partition_by="team")))
    await reach(limiter)
    nodes[0].freeze()
    async with asyncio.timeout(60):
        for team in range(40):
            await limiter.reserve(Subject("k", f"t{team}"))
    assert limiter.state == "degraded"
    assert limiter.decisions.alone > 1
    nodes[0].thaw()
    await reach(limiter)


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a machine that died: nobody answers, and nobody refuses."""
    port, connect = free_port(), asyncio.open_connection

    async def attempt(*given: Any, **more: Any) -> Any:
        if more.get("port") == port:
            await asyncio.Event().wait()
        return await connect(*given, **more)

    monkeypatch.setattr(asyncio, "open_connection", attempt)
    return f"127.0.0.1:{port}"


async def test_a_node_whose_machine_died_keeps_no_other_from_being_asked(
    cluster: Server, gone: str, started: Make
) -> None:
    limiter = await started(RULES, RedisStore(Redis(addresses=(gone, cluster.address), mode="cluster", timeout_s=10)))
    await reach(limiter)  # a cluster that has just begun may still say that it is down


async def test_a_sentinel_whose_machine_died_keeps_no_other_from_being_asked(
    server: Server, gone: str, tmp_path: Path
) -> None:
    file = tmp_path / "sentinel.conf"
    file.write_text(f"sentinel monitor mymaster 127.0.0.1 {server.port} 1\n")
    with Server(tmp_path, "--sentinel", file=file) as sentinel:
        settings = Redis(addresses=(gone, sentinel.address), mode="sentinel", timeout_s=10)
        limiter = SubjectLimiter(RULES, RedisStore(settings))
        await limiter.start()
        assert (limiter.state, limiter.store.reason) == ("strict", "")
        await limiter.close()


async def test_a_full_server_is_down_until_there_is_room(mortal: Server, started: Make) -> None:
    """`noeviction`: a heartbeat passes where an admission does not, so a probe has to write as an admission does."""
    changes: list[tuple[str, str]] = []
    settings = mortal.settings
    limiter = await started(RULES[:2], RedisStore(settings), on_change=lambda *change: changes.append(change))
    await limiter.reserve(Subject("k", "t", "m"))
    mortal.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    mortal.command("CONFIG", "SET", "maxmemory", "1mb")
    for _ in range(3):
        await limiter.reserve(Subject("k", "t", "m"))
    await asyncio.sleep(1.5)  # two probes
    assert [state for state, _ in changes] == ["strict", "degraded"]
    assert changes[1][1].startswith("OOM")
    mortal.command("CONFIG", "SET", "maxmemory", "0")
    await reach(limiter)
    assert (await limiter.reserve(Subject("k", "t", "m"))).strict


async def test_a_primary_behind_sentinel(server: Server, tmp_path: Path) -> None:
    port = free_port()
    file = tmp_path / "sentinel.conf"
    file.write_text(f"sentinel monitor mymaster 127.0.0.1 {server.port} 1\n")
    dead = f"127.0.0.1:{free_port()}"
    with Server(tmp_path, "--sentinel", port=port, file=file):
        settings = Redis(addresses=(dead, f"127.0.0.1:{port}"), mode="sentinel", timeout_s=10)
        limiter = SubjectLimiter(RULES, RedisStore(settings))
        await limiter.start()
        assert (limiter.state, limiter.store.reason) == ("strict", "")
        await traffic(limiter, 5, 4)
        assert limiter.state == "strict"
        await limiter.close()


async def test_an_acl_user_with_a_password_file(
    mortal: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "password"
    file.write_text("wrong\n")
    grants = "~{dragoman:*}:* +eval +evalsha +time +hmget +hget +hgetall +hset +hdel +hincrby +del +pexpire"
    grants += " +zadd +zrem +zcard +zremrangebyscore"
    mortal.command("ACL", "SETUSER", "limits", "on", ">secret", *grants.split())
    settings = mortal.settings.model_copy(update={"username": "limits", "password_file": str(file)})
    limiter = SubjectLimiter(RULES, RedisStore(settings), heartbeat=0.1)
    await limiter.start()
    assert limiter.state == "degraded"
    file.write_text("secret\n")  # rotated: no restart
    await reach(limiter)
    await traffic(limiter, 10, 5)
    assert (limiter.state, limiter.store.reason) == ("strict", "")
    await limiter.close()
    assert [record.message for record in caplog.records if record.name == "redis.credentials"] == []
    denied = {entry[b"reason"] for entry in mortal.command("ACL", "LOG")}
    assert denied == {b"auth"}, "the wrong password, and no command"


@pytest.mark.parametrize("user", [None, "limits"])
async def test_a_password_that_is_known(mortal: Server, user: str | None, started: Make) -> None:
    if user is None:
        mortal.command("CONFIG", "SET", "requirepass", "canary")
    else:
        mortal.command("ACL", "SETUSER", user, "on", ">canary", "~*", "+@all")
        mortal.command("ACL", "SETUSER", "default", "off")
    settings = mortal.settings.model_copy(update={"username": user}).holding({"password": "canary"})
    assert "canary" not in repr(settings)
    limiter = await started(RULES, RedisStore(settings))
    assert (limiter.state, limiter.store.reason) == ("strict", "")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return certificate(tmp_path)


async def test_tls(server: Server, files: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*files)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while block := await reader.read(65_536):
            writer.write(block)
        writer.close()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(copy(reader, outer), copy(inner, writer))

    front = await asyncio.start_server(carry, "127.0.0.1", 0, ssl=context)
    address = f"127.0.0.1:{front.sockets[0].getsockname()[1]}"
    for trusted in (True, False):
        ca_file = str(files[0]) if trusted else None
        settings = Redis(addresses=(address,), tls=True, ca_file=ca_file, timeout_s=10)
        limiter = SubjectLimiter(RULES, RedisStore(settings))
        await limiter.start()
        assert limiter.state == ("strict" if trusted else "degraded")
        await limiter.close()
    front.close()
    await front.wait_closed()
