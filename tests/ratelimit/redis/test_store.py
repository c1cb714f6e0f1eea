"""The shared store against a real server: what it leaves behind, how it connects, and where its keys lie."""

from __future__ import annotations

import asyncio
import random
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, cast

import pytest
from redis.crc import key_slot

from gateway.config import Limit, Redis
from gateway.core.estimate import Cost
from gateway.core.usage import Usage
from gateway.ratelimit import Subject, SubjectLimiter
from gateway.ratelimit.model import Limited, Plan, Verdict
from gateway.ratelimit.plan import Layout, Plans
from gateway.ratelimit.redis.codec import ADMIT, BEAT, Operation, pack, unpack
from gateway.ratelimit.redis.link import Link
from gateway.ratelimit.redis.store import SCRIPT, RedisStore
from gateway.redis import Refused
from gateway.redis.connection import frame
from tests.ports import free_port
from tests.ratelimit.conftest import Make, reach
from tests.redis.server import Server

RULES = (
    Limit(name="rpm", kind="requests", limit=20, per_s=5, scope=("key",)),
    Limit(name="paced", kind="requests", limit=20, burst=10, scope=("team", "model")),
    Limit(name="tpm", kind="tokens", limit=3000, scope=("team",)),
    Limit(name="slots", kind="concurrency", limit=9, scope=("key", "address")),
    Limit(name="shadow", kind="tokens", limit=500, scope=(), shadow=True),
)


async def traffic(limiter: SubjectLimiter, turns: int, seed: int) -> None:
    chance = random.Random(seed)

    async def client() -> None:
        for _ in range(turns):
            subject = Subject(
                key=f"k{chance.randrange(9)}",
                team=f"t{chance.randrange(4)}",
                model=f"m{chance.randrange(3)}",
                address=f"10.0.0.{chance.randrange(9)}",
            )
            try:
                async with asyncio.timeout(chance.choice([0.001, 1])):
                    lease = await limiter.reserve(subject, Cost(chance.randrange(500)))
            except (Limited, TimeoutError):
                continue
            if chance.random() < 0.1:
                await limiter.reset(subject)
            if chance.random() < 0.9:
                limiter.settle(
                    lease,
                    chance.choice([None, Usage(0, 0), Usage(0, 100), Usage(0, 900)]),
                    chance.choice(["finished", "unserved"]),
                )

    await asyncio.gather(*(client() for _ in range(20)))
    await limiter.flush()


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
    assert not limiter.refused


async def test_a_connection_that_the_server_closed_is_not_used_again(server: Server, started: Make) -> None:
    store = RedisStore(server.settings)
    limiter = await started(RULES[:1], store, heartbeat=1000)
    await limiter.reserve(Subject("k"))
    link = store._links[0]
    assert isinstance(link, Link)
    for _ in range(3):
        server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        async with asyncio.timeout(30):
            while link._connection is not None:  # noqa: ASYNC110 - nobody is told before it is needed again
                await asyncio.sleep(0.001)
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
    assert not limiter.refused.keys() - {rule.name for rule in rules}
    assert all(cluster.command("PTTL", key) > 0 for key in cluster.command("KEYS", "*"))


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
            found[0].command("CLUSTER", "MEET", "127.0.0.1", other.port, other._options[-1])
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
    assert (limiter.state, limiter.alone) == ("strict", 0)
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
    assert limiter.alone > 1
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
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """(certificate, key) for 127.0.0.1, signed by itself."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-days", "1", "-keyout", str(key), "-out", str(cert), "-subj", "/CN=limits"]
    subprocess.run([*words, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return cert, key


async def test_tls(server: Server, certificate: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)

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
        ca_file = str(certificate[0]) if trusted else None
        settings = Redis(addresses=(address,), tls=True, ca_file=ca_file, timeout_s=10)
        limiter = SubjectLimiter(RULES, RedisStore(settings))
        await limiter.start()
        assert limiter.state == ("strict" if trusted else "degraded")
        await limiter.close()
    front.close()
    await front.wait_closed()
