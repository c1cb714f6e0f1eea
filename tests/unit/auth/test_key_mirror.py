"""Keys of the store in a process: what it knows, how soon, and what Redis may lose."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.auth import KeyTable, OldSecret, StoredKey
from gateway.auth.key_mirror import InForce
from gateway.auth.key_store import Change, encoded
from gateway.auth.stored import OwnLimits
from gateway.config import Config, StoredKeys, Team
from gateway.core.errors import GatewayError
from tests.support.harness import soon
from tests.support.redis_server import Server
from tests.support.steps import rounds
from tests.unit.auth.stored_keys import Followed, followed, hash_of, put, stored, stored_team

MANY, SLICE = 1050, 100


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redis"), "--appendonly", "yes") as server:
        yield server


@pytest.fixture
def server(shared: Server) -> Server:
    shared.command("FLUSHALL")
    return shared


def all_know(mirrors: list[Followed], revoked: str) -> bool:
    return all(revoked in one.mirror.revoked for one in mirrors)


def refusal(one: Followed, secret: str) -> tuple[str, str | None]:
    """How this secret is refused; ("", None) if it is not."""
    try:
        one.caller(secret)
    except GatewayError as error:
        return error.kind.name, error.code
    return "", None


async def test_a_change_is_in_force_everywhere_in_a_second(server: Server) -> None:
    async with followed(server, server) as (one, other):
        key = stored("app", team="blue", models=("m",), limits=OwnLimits(requests=5))
        version = await put(one.mirror.store, key)
        assert await soon(lambda: refusal(other, "secret-of-app") == ("", None)) < 1
        caller = other.caller("secret-of-app")
        assert (caller.key, caller.team, caller.models) == ("app", "blue", {"m"})
        assert other.limits["app"] == OwnLimits(requests=5)
        assert other.caller("configured").key == "own"

        await put(one.mirror.store, replace(key, revoked=time.time()), version, "revoke")
        assert await soon(lambda: refusal(other, "secret-of-app") == ("UNAUTHENTICATED", None)) < 1
        assert other.limits["app"] is None
        assert other.events == [("info", "keys of the store known")]


async def test_heads_that_were_known_are_looked_at_again(server: Server) -> None:
    async with followed(server) as one:
        changes: list[int] = []
        one.table.changed = lambda: changes.append(1)
        version = await put(one.mirror.store, stored("app"))
        await soon(lambda: len(changes) == 1)
        await put(one.mirror.store, stored("app", disabled=True), version, "update")
        await soon(lambda: len(changes) == 2)
        with pytest.raises(GatewayError, match="disabled"):
            one.caller("secret-of-app")


async def test_a_replaced_secret_is_valid_for_a_time(server: Server) -> None:
    async with followed(server) as one:
        old = (OldSecret(hash_of("before"), time.time() + 60), OldSecret(hash_of("long-ago"), time.time() - 1))
        await put(one.mirror.store, stored("app", "now", old=old))
        await soon(lambda: refusal(one, "now") == ("", None))
        assert one.caller("before") is one.caller("now")
        with pytest.raises(GatewayError, match="has expired"):
            one.caller("long-ago")
        lasting = [one.ring.identify([(b"api-key", secret)]).lasting for secret in (b"now", b"before")]
        assert lasting == [True, False], "a clock ends one of them"

        gone = datetime.now(UTC) - timedelta(seconds=1)
        await put(one.mirror.store, stored("late", "late-now", expires=gone, old=old[:0]))
        await soon(lambda: "late" in one.mirror.keys)
        with pytest.raises(GatewayError, match="has expired"):
            one.caller("late-now")


async def test_what_the_configuration_has_is_not_replaced(server: Server) -> None:
    async with followed(server) as one:
        limits = OwnLimits(requests=1)
        await put(one.mirror.store, stored("own", "another", limits=limits))
        await put(one.mirror.store, stored("thief", "configured", limits=limits))
        await soon(lambda: len(one.events) == 3)
        assert one.limits == {"own": None, "thief": None}
        assert {event for _, event in one.events[1:]} == {"key refused, the configuration has it"}
        assert refusal(one, "another") == ("UNAUTHENTICATED", None)
        assert one.caller("configured").key == "own"


async def test_away_known_keys_work_for_a_time_and_others_are_refused(server: Server, tmp_path: Path) -> None:
    with Server(tmp_path, "--appendonly", "yes") as away:
        async with followed(away) as one:
            await put(one.mirror.store, stored("app"))
            await put(one.mirror.store, stored("gone", revoked=1.0), what="revoke")
            await soon(lambda: len(one.mirror.keys) == 2)
            away.kill()
            await soon(lambda: one.mirror.up is False)
            assert refusal(one, "secret-of-app") == ("", None)
            assert refusal(one, "unknown") == ("OVERLOADED", "keys_unavailable")
            assert refusal(one, "secret-of-gone") == ("UNAUTHENTICATED", None)
            assert one.caller("configured").key == "own"
            one.skipped_s = one.mirror.options.hold_s
            await soon(lambda: refusal(one, "secret-of-app") == ("OVERLOADED", "keys_unavailable"))
            assert one.caller("configured").key == "own"
            away.start()
            await soon(lambda: refusal(one, "secret-of-app") == ("", None))
            await soon(lambda: refusal(one, "unknown") == ("UNAUTHENTICATED", None))


async def test_a_frozen_server_is_noticed(tmp_path: Path) -> None:
    """It takes ten seconds, the time that a call of the store has (`Redis.call_s`)."""
    with Server(tmp_path) as frozen:
        async with followed(frozen) as one:
            await put(one.mirror.store, stored("app"))
            await soon(lambda: "app" in one.mirror.keys)
            frozen.freeze()
            try:
                await soon(lambda: one.mirror.up is False)
            finally:
                frozen.thaw()
            await soon(lambda: one.mirror.up is True)
            assert refusal(one, "secret-of-app") == ("", None)


async def test_it_starts_without_redis_and_learns_later(tmp_path: Path) -> None:
    server = Server(tmp_path)
    one = Followed(server.settings)
    await one.mirror.start()
    try:
        assert one.events == [("warning", "the store of keys is away")]
        assert refusal(one, "secret-of-app") == ("OVERLOADED", "keys_unavailable")
        with server:
            await put(one.mirror.store, stored("app"))
            await soon(lambda: refusal(one, "secret-of-app") == ("", None))
    finally:
        await one.mirror.close()


async def test_a_revocation_outlives_a_redis_that_forgot_it(server: Server) -> None:
    """Redis lost its last write, or came back from a copy: who knows better writes it back."""
    async with followed(server, server) as (one, other):
        key = stored("app")
        version = await put(one.mirror.store, key)
        before = server.command("HGET", "{dragoman-keys}", "app")
        await put(one.mirror.store, replace(key, revoked=time.time()), version, "revoke")
        await soon(lambda: all(who.mirror.keys.get("app", key).revoked for who in (one, other)))
        server.command("FLUSHALL")
        await soon(lambda: one.mirror._version == other.mirror._version == 0)  # both have noticed that Redis is empty
        server.command("HSET", "{dragoman-keys}", "app", before)
        server.command("SET", "{dragoman-keys}:version", version)
        await soon(lambda: b"revoked" in server.command("HGET", "{dragoman-keys}", "app"))
        assert refusal(one, "secret-of-app") == refusal(other, "secret-of-app") == ("UNAUTHENTICATED", None)
        # The script has run before the gateway that called it goes on.
        lost = ("error", "key repaired, its last change was lost")
        await soon(lambda: [who.events.count(lost) for who in (one, other)] in ([1, 0], [0, 1]))
        async with followed(server) as late:
            assert refusal(late, "secret-of-app") == ("UNAUTHENTICATED", None)


async def test_keys_that_redis_lost_work_for_the_same_time(server: Server) -> None:
    async with followed(server) as one:
        await put(one.mirror.store, stored("app"))
        await soon(lambda: "app" in one.mirror.keys)
        server.command("FLUSHALL")
        await soon(lambda: ("error", "keys lost by their store") in one.events)
        assert refusal(one, "secret-of-app") == ("", None)
        await put(one.mirror.store, stored("other"))
        await soon(lambda: refusal(one, "secret-of-other") == ("", None))
        assert refusal(one, "secret-of-app") == ("", None)
        one.skipped_s = one.mirror.options.hold_s
        await soon(lambda: refusal(one, "secret-of-app") == ("UNAUTHENTICATED", None))
        assert refusal(one, "secret-of-other") == ("", None)


async def test_a_team_that_redis_lost_binds_on_and_is_written_back(server: Server) -> None:
    async with followed(server, server) as (one, other):
        team = stored_team("blue", models=("m",), limits={"team-requests": 3})
        version = await put(one.mirror.store, team)
        await put(one.mirror.store, stored("app", team="blue"))
        await soon(lambda: refusal(other, "secret-of-app") == ("", None))
        assert other.caller("secret-of-app").usable == {"m"}
        assert other.limits_of_teams["blue"] == replace(team, version=version)
        server.command("FLUSHALL")
        await soon(lambda: b"blue" in server.command("HKEYS", "{dragoman-keys}:teams"))
        assert [who.caller("secret-of-app").usable for who in (one, other)] == [{"m"}, {"m"}]
        async with followed(server) as late:
            assert late.mirror.teams["blue"].limits == {"team-requests": 3}


async def test_a_deleted_team_outlives_a_redis_that_forgot_the_deletion(server: Server) -> None:
    async with followed(server, server) as (one, other):
        team = stored_team("blue", disabled=True)
        version = await put(one.mirror.store, team)
        await put(one.mirror.store, stored("app", team="blue"))
        await soon(lambda: refusal(other, "secret-of-app") == ("UNAUTHENTICATED", None))
        before = server.command("HGET", "{dragoman-keys}:teams", "blue")
        await put(one.mirror.store, replace(team, deleted=time.time()), version, "delete team")
        await soon(lambda: [who.limits_of_teams["blue"] for who in (one, other)] == [None, None])
        assert [refusal(who, "secret-of-app") for who in (one, other)] == [("", None), ("", None)]
        server.command("HSET", "{dragoman-keys}:teams", "blue", before)
        server.command("SET", "{dragoman-keys}:version", version)
        await soon(lambda: b"deleted" in server.command("HGET", "{dragoman-keys}:teams", "blue"))
        assert refusal(one, "secret-of-app") == ("", None)


async def test_no_key_is_in_force_without_the_bounds_of_its_team(server: Server) -> None:
    async with followed(server) as one:
        await put(one.mirror.store, stored("app", team="blue"))
        await put(one.mirror.store, stored_team("blue", disabled=True))
        server.command("HSET", "{dragoman-keys}:teams", "spoilt", "1 {}")
        server.command("HSET", "{dragoman-keys}:teams", "spoilt-too", "1 {")
    late = Followed(server.settings)
    seen: list[bool] = []
    known = late.table.put

    def put_key(key: StoredKey) -> bool:
        seen.append(late.table.bounds("blue").disabled)
        return known(key)

    late.table.put = put_key  # type: ignore[method-assign]
    await late.mirror.start()
    try:
        assert seen == [True]
        assert late.events.count(("warning", "team ignored, it is malformed")) == 2
    finally:
        await late.mirror.close()


async def test_a_team_of_the_configuration_is_not_replaced(server: Server) -> None:
    async with followed(server) as one:
        one.table = KeyTable(Config(keys_store="redis", teams={"blue": Team(models=("m",))}))
        one.mirror.use(InForce(one.table, one.limits.__setitem__, one.limits_of_teams.__setitem__))
        await put(one.mirror.store, stored_team("blue", limits={"team-requests": 3}))
        await soon(lambda: ("error", "team refused, the configuration has it") in one.events)
        assert one.table.bounds("blue").models == {"m"}
        assert one.limits_of_teams["blue"] is None


async def test_news_that_were_cut_off_are_noticed(server: Server) -> None:
    """The stream is bounded: who comes too late reads everything again."""
    async with followed(server) as one:
        for number in range(3):
            await put(one.mirror.store, stored(f"app-{number}"))
        await soon(lambda: len(one.mirror.keys) == 3)
        store = one.mirror.store
        await one.mirror.close()
        one.mirror._following = None  # as a gateway that reads nothing for a while
        version = await put(store, stored("unseen"))
        server.command("XTRIM", "{dragoman-keys}:changes", "MAXLEN", 0)
        await put(store, stored("seen"))
        # The place from which it reads on.
        assert [change.after for change in await store.news(one.mirror._last, 0)] == [version]
        assert not await one.mirror._read_on(), "it asks for all of them"  # one step of the loop that follows
        await one.mirror.start()
        await soon(lambda: {"unseen", "seen"} <= one.mirror.keys.keys())


async def test_what_is_malformed_counts_for_nothing(server: Server) -> None:
    async with followed(server) as one:
        await put(one.mirror.store, stored("good"))
        for name, text in (("text", b"nonsense"), ("form", b'12 {"name":"form"}'), ("alias", b"7 {}")):
            server.command("HSET", "{dragoman-keys}", name, text)
        for amount in ("many", "0"):
            key, team = stored(amount, limits=OwnLimits(budget=amount)), stored_team(amount, budgets={"month": amount})
            server.command("HSET", "{dragoman-keys}", amount, encoded(key))
            server.command("HSET", "{dragoman-keys}:teams", amount, encoded(team))
        for number in (0, -1, 10**13, 10**30):
            key, team = stored(f"n{number}", limits=OwnLimits(tokens=number)), stored_team("", limits={"m": number})
            server.command("HSET", "{dragoman-keys}", key.name, encoded(key))
            server.command("HSET", "{dragoman-keys}:teams", key.name, encoded(replace(team, name=key.name)))
        for version in (b"-5", b"1_0", b" 7", b"07", b"9" * 5000):
            _, _, text = encoded(stored("v" + version.decode()[:9])).partition(b" ")
            server.command("HSET", "{dragoman-keys}", b"v" + version[:9], version + b" " + text)
        for event in (b"x", b"[" * 100_000, b'{"by": "\xff"}'):
            fields = ("event", event, "team", b"9" * 5000 + b" {}", "after", b"9" * 5000)
            server.command("XADD", "{dragoman-keys}:changes", "*", *fields)
        server.command("INCR", "{dragoman-keys}:version")
        await soon(lambda: one.events.count(("warning", "key ignored, it is malformed")) == 14)
        await soon(lambda: one.events.count(("warning", "team ignored, it is malformed")) == 7)
        assert refusal(one, "secret-of-good") == ("", None)
        assert [change.event.what for change in await one.mirror.store.record(None, 10)] == ["?"] * 3 + ["create"]


async def test_a_key_that_was_made_again_is_not_forgotten(server: Server) -> None:
    """Another gateway has made it meanwhile under the name of the one that goes."""
    async with followed(server, options=StoredKeys(max_keys=1)) as one:
        store, old, next_ = one.mirror.store, stored("old"), stored("next")
        gone = await put(store, replace(old, revoked=1.0), await put(store, old), "revoke")
        await soon(lambda: one.mirror.dropped() == ("old", gone))
        await put(store, old, gone)
        await put(store, replace(next_, revoked=1.0), await put(store, next_), "revoke", drop=("old", gone))
        assert sorted(server.command("HKEYS", "{dragoman-keys}")) == [b"next", b"old"]


async def test_revoked_keys_are_remembered_up_to_a_bound(server: Server) -> None:
    async with followed(server, server, options=StoredKeys(max_keys=2)) as (one, other):
        for number in range(4):
            key = stored(f"app-{number}")
            version = await put(one.mirror.store, key)
            await put(one.mirror.store, replace(key, revoked=1.0), version, "revoke", drop=one.mirror.dropped())
            await soon(functools.partial(all_know, [one, other], key.name))
        assert one.mirror.keys.keys() == other.mirror.keys.keys() == {"app-2", "app-3"}
        assert sorted(server.command("HKEYS", "{dragoman-keys}")) == [b"app-2", b"app-3"]


async def test_two_deployments_share_nothing(server: Server) -> None:
    blue, green = (Followed(server.settings, namespace=name) for name in ("blue", "green"))
    for one in (blue, green):
        await one.mirror.start()
    try:
        await put(blue.mirror.store, stored("app"))
        await soon(lambda: refusal(blue, "secret-of-app") == ("", None))
        assert refusal(green, "secret-of-app") == ("UNAUTHENTICATED", None)
        assert all(name.startswith(b"{blue-keys}") for name in server.command("KEYS", "*"))
    finally:
        for one in (blue, green):
            await one.mirror.close()


class Emptied:
    """A store that has lost everything."""

    async def last(self) -> str:
        return "0-0"

    async def version(self) -> int:
        return 0

    async def news(self, after: str, wait_s: float) -> list[Change]:
        return []

    async def pages(self, kind: str = "key") -> AsyncIterator[list[tuple[str, bytes]]]:
        yield []


@pytest.mark.parametrize("walk", ["away", "lost", "dropped"])
async def test_all_keys_are_looked_at_in_slices(walk: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many keys there are, one turn of the event loop has few of them."""
    one = Followed(server.settings)
    await one.mirror.store.close()
    one.mirror.store = Emptied()  # type: ignore[assignment]
    monkeypatch.setattr("gateway.auth.key_mirror.doubt", no_doubt)
    one.mirror.restore([stored(f"k{number}") for number in range(MANY)], 0.0)
    with rounds() as found:
        if walk == "dropped":
            await one.mirror._read_all()  # one step, so that its rounds are counted
            assert one.mirror.missing == MANY
        told = told_by_round(monkeypatch, one.table, found)
        one.skipped_s = one.mirror.options.hold_s
        before = found[0]
        mirror = one.mirror
        # One step, so that its rounds are counted.
        await (mirror._away("gone") if walk == "away" else mirror._read_all() if walk == "lost" else mirror._read_on())
        assert found[0] - before >= MANY // SLICE
    assert max(told.values(), default=0) <= SLICE
    assert told.total() == (0 if walk == "lost" else MANY)
    assert one.mirror.missing == (MANY if walk == "lost" else 0)


async def test_a_reload_takes_in_slices_what_changed_meanwhile(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    one, coming = Followed(server.settings), Followed(server.settings)
    await coming.mirror.store.close()
    try:
        one.mirror.restore([stored("early"), stored("gone")], 0.0)
        limits: dict[str, object] = {}
        table = KeyTable(Config(keys_store="redis"), *one.mirror.known())
        one.mirror.learn(stored("gone", revoked=1.0, version=2))
        for number in range(MANY):
            one.mirror.learn(stored(f"k{number}", version=2 + number, limits=OwnLimits(requests=5)))
        with rounds() as found:
            told = told_by_round(monkeypatch, table, found)
            await one.mirror.catch_up(InForce(table, limits.__setitem__, limits.__setitem__))
            one.mirror.learn(stored("late", version=MANY + 3))
            one.mirror.use(InForce(table, limits.__setitem__, limits.__setitem__))
        assert max(told.values()) <= SLICE + 1
        assert table.stored == MANY + 2
        assert table.named("gone") is None
        assert (limits["k7"], limits["late"]) == (OwnLimits(requests=5), None)
        one.mirror.learn(stored("after", version=MANY + 4))
        assert table.named("after") is not None
        assert one.table.named("after") is None
        assert told.total() == MANY + 3
    finally:
        await one.mirror.store.close()


def told_by_round(monkeypatch: pytest.MonkeyPatch, table: KeyTable, found: list[int]) -> Counter[int]:
    """How many keys `table` is told of, by the number of the round of the loop."""
    told: Counter[int] = Counter()
    for name in ("put", "forget"):
        tell = getattr(table, name)
        monkeypatch.setattr(table, name, lambda key, tell=tell: (told.update([found[0]]), tell(key))[1])
    return told


async def no_doubt(store: object) -> None:
    """Nothing of the store's settings is wrong."""
