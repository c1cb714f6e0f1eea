"""The cache of replies in Redis: what gateways share, what none of them serves, and what happens without Redis."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config import Redis
from gateway.features.reply_cache.in_redis import MOST_CALLS, RedisEntries
from gateway.observe.log import Log
from gateway.observe.metrics import Metrics
from tests.repo.tree import ROOT
from tests.support.harness import Captured, Stack, soon, until
from tests.support.ports import free_port
from tests.support.redis_server import Server
from tests.support.sampled import sampled
from tests.support.standins.guard import ALLOW, guard
from tests.unit.app.asking import key
from tests.unit.features.reply_cache.test_reply_cache import (
    CASES,
    CHATS,
    TEXT,
    ask,
    family,
    named,
    post,
    result,
    worked,
)
from tests.unit.features.resume.broken import heard
from tests.unit.kernel.asking import scripted

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def empty(server: Server) -> Server:
    server.command("FLUSHALL")
    return server


def sections(server: Server, timeout_s: float = 10, **options: Any) -> dict[str, Any]:
    return {
        "redis": {"addresses": [server.address], "timeout_s": timeout_s},
        "reply_cache": {"store": "redis", **options},
    }


def kept(server: Server) -> list[bytes]:
    """The keys of the replies."""
    found: list[bytes] = server.command("KEYS", "*-replies}:reply:*")
    return found


def errors(stack: Stack, call: str) -> float:
    page = httpx.get(stack.url + "/metrics").text
    return float(page.partition(f'dragoman_reply_cache_errors_total{{call="{call}"}} ')[2].partition("\n")[0])


@pytest.fixture(scope="module")
def two(server: Server) -> Iterator[tuple[Stack, Stack]]:
    with Stack(config=sections(server)) as one, Stack(config=sections(server)) as other:
        yield one, other


# -- what gateways share --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", sampled(range(len(CHATS)), 3))
def test_a_gateway_hits_in_every_dialect_what_another_one_stored(
    server: Server, two: tuple[Stack, Stack], number: int
) -> None:
    first = CHATS[number]
    text = scripted(text=f"{named(first)} in redis: {TEXT}")
    before, count = worked(two[0]) + worked(two[1]), len(kept(server))
    assert result(ask(two[0], first, text)) == "miss"
    until(lambda: len(kept(server)) == count + 1)
    for other in [one for one in CHATS if family(one) == family(first)]:
        assert result(ask(two[1], other, text)) == "hit", named(other)
    assert worked(two[0]) + worked(two[1]) == before + 1


def shape(body: Any) -> list[str]:
    """The members of a reply; TGI's is a list of one."""
    return sorted(body[0] if isinstance(body, list) else body)


@pytest.mark.parametrize("number", sampled(range(len(CASES)), 2, lambda number: CASES[number][0].dialect))
def test_a_reply_reads_as_that_of_the_other_gateway(server: Server, two: tuple[Stack, Stack], number: int) -> None:
    way, stream = case = CASES[number]
    text, count = scripted(text=f"{named(case)} elsewhere: {TEXT}"), len(kept(server))
    missed = ask(two[0], case, text)
    until(lambda: len(kept(server)) == count + 1)
    hit = ask(two[1], case, text)
    assert [result(missed), result(hit)] == ["miss", "hit"]
    if stream:
        assert [one.choices for one in heard(way, hit.content)] == [one.choices for one in heard(way, missed.content)]
    else:
        assert shape(missed.json()) == shape(hit.json())


def test_replies_outlive_a_restart_and_a_reload_and_end_with_their_age(empty: Server) -> None:
    with Stack(config=sections(empty)) as stack:
        assert result(post(stack)) == "miss"
        stack.run(stack.gateway.reload(stack.config({"reply_cache": {"ttl_s": 50}})))
        assert result(post(stack)) == "hit"
    with Stack(config=sections(empty, ttl_s=50)) as stack:
        assert result(post(stack)) == "hit"
        assert result(post(stack, "short")) == "miss"
        until(lambda: len(kept(empty)) == 2)
        ages = sorted(empty.command("PTTL", name) for name in empty.command("KEYS", "*"))
        assert 0 < ages[0] <= 50_000 < ages[1] <= ages[3] <= 3_600_000, "the index has the age of the longest"
        for name in kept(empty):
            empty.command("PEXPIRE", name, 1)
        until(lambda: not kept(empty))
        assert result(post(stack)) == "miss"


def test_a_large_reply_is_shared(empty: Server) -> None:
    worker = {"max_model_len": 1_000_000}
    with Stack((worker,), sections(empty)) as one, Stack((worker,), sections(empty)) as other:
        text = scripted(pieces=["x" * 1000] * 300)
        missed = post(one, text, max_tokens=100_000)
        until(lambda: len(kept(empty)) == 1)
        hit = post(other, text, max_tokens=100_000)
        assert [result(missed), result(hit)] == ["miss", "hit"]
        assert missed.json()["choices"] == hit.json()["choices"]


def test_those_that_wait_get_the_reply_without_redis(empty: Server) -> None:
    """It is written meanwhile."""
    with Stack(({"fault": "stall@before"},), sections(empty, timeout_s=0.2)) as stack, ThreadPoolExecutor(8) as threads:
        entries = stack.service("reply_cache")
        replies = [threads.submit(post, stack, "same", stream=bool(at % 2)) for at in range(8)]
        until(lambda: entries.waiting == 7)
        empty.freeze()
        try:
            stack.loop.call_soon_threadsafe(stack.sim.go_on)
            assert sorted(str(result(one.result())) for one in replies) == ["hit"] * 7 + ["miss"]
        finally:
            empty.thaw()
        assert worked(stack) == 1


def test_the_client_decides_by_cache_control(two: tuple[Stack, Stack], server: Server) -> None:
    def asked(at: int, control: str) -> str | None:
        reply = result(post(two[at], "control", headers={"cache-control": control}))
        until(lambda: not two[at].service("reply_cache").writes)
        return reply

    assert [asked(0, "no-store"), asked(1, "no-cache"), asked(0, ""), asked(0, "no-cache"), asked(1, "")] == [
        None, "miss", "hit", "miss", "hit",
    ]  # fmt: skip


# -- what is never served -------------------------------------------------------------------------------------------


def test_a_tenant_never_gets_the_reply_of_another_one(empty: Server) -> None:
    secrets, entries = dict[str, str](), dict[str, Any]()
    for name, team in (("a", None), ("b", None), ("red", "x"), ("blue", "x")):
        secrets[name], entry = key(name, **({} if team is None else {"team": team}))
        entries |= entry
    for shared, expected in ((False, ["miss", "miss", "miss", "hit"]), (True, ["miss", "hit", "hit", "hit"])):
        config = {**sections(empty, shared=shared), "keys": entries}
        with Stack(config=config) as one, Stack(config=config) as other:
            got = []
            for at, secret in enumerate(secrets.values()):
                got.append(result(post((one, other)[at % 2], secret=secret)))
                until(lambda: not (one.service("reply_cache").writes or other.service("reply_cache").writes))
            assert got == expected


def test_a_reply_at_the_place_of_another_owners_is_ignored(empty: Server) -> None:
    """A reply is bound to its owner and its request, not to its place in Redis alone."""
    (one, entry), (other, entry_of_other) = key("one"), key("other")
    with Stack(config={**sections(empty), "keys": entry | entry_of_other}) as stack:
        places: list[bytes] = []
        for at, (secret, text) in enumerate(((one, "mine"), (other, "mine"), (one, "yours"))):
            assert result(post(stack, scripted(text=f"secret of {at}"), secret=secret, odd=text)) == "miss"
            until(lambda: len(kept(empty)) > len(places))
            places.extend(set(kept(empty)) - set(places))
        for place in places[1:]:
            empty.command("COPY", places[0], place, "REPLACE")
        for at, (secret, text) in enumerate(((other, "mine"), (one, "yours")), 1):
            reply = post(stack, scripted(text=f"secret of {at}"), secret=secret, odd=text)
            assert (result(reply), "secret of 0" in reply.text) == ("miss", False)
        assert [line["reason"] for line in stack.events("kept reply ignored")] == ["damaged"]
        assert errors(stack, "entry") == 2


Damage = Callable[[Server, bytes], object]


def changed(change: Callable[[bytes], bytes]) -> Damage:
    def damage(server: Server, name: bytes) -> None:
        server.command("SET", name, change(server.command("GET", name)))

    return damage


DAMAGES: dict[str, tuple[Damage, str]] = {
    "cut": (changed(lambda text: text[:-1]), "damaged"),
    "cut in half": (changed(lambda text: text[: len(text) // 2]), "damaged"),
    "cut before the digest": (changed(lambda text: text[:25]), "damaged"),
    "another letter": (changed(lambda text: text.replace(b"hidden", b"hiddem")), "damaged"),
    "another digest": (changed(lambda text: text[:30] + bytes([text[30] ^ 1]) + text[31:]), "damaged"),
    "longer": (changed(lambda text: text + b" "), "damaged"),
    "an older version": (changed(lambda text: text.replace(b"dragoman 0.", b"dragoman -.")), "not of this version"),
    "something else": (changed(lambda text: b'{"choices": []}'), "not of this version"),
    "nothing": (changed(lambda text: b"{}"), "not of this version"),
    "too large": (changed(lambda text: text + bytes(1 << 21)), "larger than max_entry_bytes"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_reply_is_a_miss_that_a_worker_mends(
    server: Server, two: tuple[Stack, Stack], name: str, stream: bool
) -> None:
    damage, why = DAMAGES[name]
    text = scripted(text=f"hidden {name} {stream}")
    before = set(kept(server))
    assert result(post(two[0], text)) == "miss"
    until(lambda: len(kept(server)) == len(before) + 1)
    (place,) = set(kept(server)) - before
    ignored = errors(two[1], "entry")
    damage(server, place)
    reply = post(two[1], text, stream=stream)
    assert (reply.status_code, result(reply), errors(two[1], "entry")) == (200, "miss", ignored + 1)
    until(lambda: not two[1].service("reply_cache").writes)
    assert result(post(two[0], text, stream=stream)) == "hit"
    assert [line["reason"] for line in two[1].events("kept reply ignored")].count(why) == 1, "logged once"


def test_a_key_of_another_kind_is_a_miss(empty: Server) -> None:
    with Stack(config=sections(empty)) as stack:
        assert result(post(stack)) == "miss"
        until(lambda: len(kept(empty)) == 1)
        (place,) = kept(empty)
        empty.command("DEL", place)
        empty.command("SADD", place, "x")
        assert [result(post(stack)) for _ in range(2)] == ["miss", "hit"]
        assert stack.events("reply cache failing")[0]["call"] == "read"


async def test_a_reply_that_cannot_be_read_is_a_miss(empty: Server) -> None:
    """One that another build of the same version wrote."""
    with Stack(config=sections(empty)) as stack:
        entries = stack.service("reply_cache")
        put = entries.put
        entries.put = lambda key, owner, entry: put(key, owner, b'{"start": 5}')
        assert result(post(stack)) == "miss"
        until(lambda: len(kept(empty)) == 1)
        entries.put = put
        assert [result(post(stack)) for _ in range(2)] == ["miss", "hit"]
        assert stack.events("kept reply ignored")[0]["reason"] == "not readable"


@pytest.mark.parametrize("fault", ["reset@2", "fin@2", "status:500"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_that_fails_is_not_written(server: Server, two: tuple[Stack, Stack], fault: str, stream: bool) -> None:
    text, before = scripted(text=f"a b c d {fault} {stream}", fault=fault), len(kept(server))
    with contextlib.suppress(Exception):
        post(two[0], text, stream=stream)
    assert two[0].record()["outcome"] != "ok"
    assert not two[0].service("reply_cache").writes
    assert len(kept(server)) == before


@pytest.mark.parametrize("stream", [False, True])
def test_what_guards_or_filters_refuse_is_not_written(empty: Server, stream: bool) -> None:
    with guard() as service:
        guards = {"g": {"url": service.url, "before": False, "after": "whole"}}
        with Stack(config={**sections(empty), "guards": guards}) as stack:
            service.decide = lambda question: {"action": "refuse"}
            post(stack, "a secret", stream=stream)
            service.decide = lambda question: ALLOW
            post(stack, scripted(text="cut by a filter", finish="content_filter"), stream=stream)
            assert [line["cache"] for line in stack.records()] == ["miss", "miss"]
            assert not stack.service("reply_cache").writes
            assert not kept(empty)


def test_redis_is_not_asked_about_other_requests(empty: Server) -> None:
    (one, entry), (other, entry_of_other) = key("one"), key("other")
    config = {**sections(empty, keys=["one"]), "keys": entry | entry_of_other}
    with Stack(config=config) as stack:
        empty.command("CONFIG", "RESETSTAT")
        post(stack, secret=one, temperature=0.5)
        post(stack, secret=one, temperature=None)
        post(stack, secret=other)
        post(stack, secret=one, headers={"cache-control": "no-store"})
        stack.records()
        asked = re.findall("cmdstat_[a-z|]+", str(empty.command("INFO", "commandstats")))
        assert asked == ["cmdstat_config|resetstat"] or not set(asked) & {"cmdstat_getrange", "cmdstat_eval"}
        assert result(post(stack, secret=one)) == "miss"
        until(lambda: len(kept(empty)) == 1)
        assert "cmdstat_getrange" in empty.command("INFO", "commandstats")


# -- without Redis --------------------------------------------------------------------------------------------------


def test_requests_ask_a_worker_while_redis_is_away(tmp_path: Path) -> None:
    with Server(tmp_path) as server, Stack(config=sections(server)) as stack:
        assert result(post(stack)) == "miss"
        until(lambda: len(kept(server)) == 1)
        assert result(post(stack)) == "hit"
        server.kill()
        for at in range(6):
            reply = post(stack, stream=bool(at % 2))
            assert (reply.status_code, result(reply)) == (200, "miss")
        assert [line["call"] for line in stack.events("reply cache failing")] == ["read", "write"]
        assert errors(stack, "read") >= 6
        server.start()
        until(lambda: result(post(stack)) == "hit")
        assert sorted(line["call"] for line in stack.events("reply cache works again")) == ["read", "write"]


def test_no_request_waits_long_for_a_silent_redis(tmp_path: Path) -> None:
    with Server(tmp_path) as server, Stack(config=sections(server, timeout_s=0.05)) as stack:
        post(stack)
        until(lambda: len(kept(server)) == 1)
        server.freeze()
        try:
            begun = time.monotonic()
            with ThreadPoolExecutor(16) as threads:
                replies = list(threads.map(lambda at: post(stack, f"while away {at}"), range(150)))
            assert {(reply.status_code, result(reply)) for reply in replies} == {(200, "miss")}
            assert errors(stack, "late") + errors(stack, "read") >= 150
            assert time.monotonic() - begun < 150 * 2 / 16, "each would have waited for 2 s"
        finally:
            server.thaw()
        until(lambda: result(post(stack)) == "hit")


async def test_few_calls_wait_for_a_silent_redis(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        settings = server.settings.model_copy(update={"timeout_s": 0.05})
        entries = entries_of(settings, 1 << 20, 5_000)
        server.freeze()
        try:
            finds = [asyncio.create_task(entries.find(b"%d" % at, "o")) for at in range(3 * MOST_CALLS)]
            assert all(entries.put(b"%d" % at, "o", bytes(100)) for at in range(3 * MOST_CALLS))
            await soon(lambda: len(entries.reads) == MOST_CALLS)
            assert await asyncio.gather(*finds) == [None] * len(finds)
            assert (len(entries.writes), entries.bytes) == (MOST_CALLS, MOST_CALLS * 612)
        finally:
            server.thaw()
        await soon(lambda: not (entries.reads or entries.writes))
        assert entries.bytes == 0
        await entries.close()


# -- the bound ------------------------------------------------------------------------------------------------------


def entries_of(settings: Redis, max_bytes: int, max_entry_bytes: int, ttl_s: float = 100.0) -> RedisEntries:
    found = RedisEntries(settings, Log("info", True, Captured(), "json"), Metrics())
    found.bound(max_bytes, max_entry_bytes, ttl_s)
    return found


def held(server: Server) -> int:
    return sum(server.command("STRLEN", name) + 512 for name in kept(server))


async def written(entries: RedisEntries, name: str, size: int, owner: str = "o") -> bool:
    begun = entries.put(name.encode(), owner, bytes(size))
    await soon(lambda: not entries.writes)
    return begun


async def test_no_more_bytes_are_kept_than_allowed_by_gateways_together(empty: Server) -> None:
    draw = random.Random(7)
    both = [entries_of(empty.settings, 20_000, 5_000) for _ in range(2)]
    for _ in range(300):
        name, size = str(draw.randrange(40)), draw.randrange(7_000)
        assert await written(draw.choice(both), name, size) is (size <= 5_000)
        if draw.random() < 0.1 and (there := kept(empty)):
            empty.command("DEL", draw.choice(there))  # as if its time were over
        assert held(empty) <= 20_000
        total = int(empty.command("HGET", "{dragoman-replies}:sizes", "all"))
        assert held(empty) <= total <= 20_000
        names = {name.rpartition(b":")[2] for name in kept(empty)}
        assert names <= set(empty.command("ZRANGE", "{dragoman-replies}:ends", 0, -1))
    for one in both:
        assert one.bytes == 0
        await one.close()


async def test_the_oldest_goes_first_and_what_is_over_goes_before(empty: Server) -> None:
    entries = entries_of(empty.settings, 4_000, 2_000)
    for name in "abc":
        await written(entries, name, 700)
    assert await entries.find(b"a", "o") == bytes(700)
    await written(entries, "d", 700)
    assert [name for name in "abcd" if await entries.find(name.encode(), "o") is not None] == ["b", "c", "d"]
    assert await entries.find(b"b", "another") is None
    roomy, short = entries_of(empty.settings, 40_000, 2_000), entries_of(empty.settings, 40_000, 2_000, ttl_s=0.001)
    await written(short, "e", 100)
    await written(roomy, "f", 100)
    assert empty.command("ZSCORE", "{dragoman-replies}:ends", b"e".hex()) is None
    for _ in range(3):
        await written(roomy, "f", 200)
    assert int(empty.command("HGET", "{dragoman-replies}:sizes", "all")) == held(empty), "it is counted once"
    for one in (entries, roomy, short):
        await one.close()


async def test_an_index_that_was_lost_is_made_anew(empty: Server) -> None:
    """A policy of Redis that evicts keys may take it."""
    entries = entries_of(empty.settings, 4_000, 2_000)
    for lost in ("ends", "sizes"):
        for at in range(8):
            await written(entries, f"{lost}{at}", 700)
        empty.command("DEL", f"{{dragoman-replies}}:{lost}")
        for at in range(8):
            await written(entries, f"{lost} again {at}", 700)
            assert await entries.find(f"{lost} again {at}".encode(), "o") is not None
        assert int(empty.command("HGET", "{dragoman-replies}:sizes", "all")) <= 4_000
    await entries.close()


async def test_a_cluster(tmp_path: Path) -> None:
    with Server(tmp_path, "--cluster-enabled", "yes", "--cluster-port", str(free_port())) as cluster:
        cluster.command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        await soon(lambda: b"cluster_state:ok" in cluster.command("CLUSTER", "INFO"))
        settings = cluster.settings.model_copy(update={"mode": "cluster"})
        entries = entries_of(settings, 4_000, 2_000)
        for name in "abcdef":
            await written(entries, name, 700)
        assert [name for name in "abcdef" if await entries.find(name.encode(), "o") is not None] == ["d", "e", "f"]
        await entries.close()


async def test_the_rights_that_the_page_names_are_enough(empty: Server, tmp_path: Path) -> None:
    found = re.search(r"`(~{dragoman-replies}[^`]*)`", (ROOT / "docs" / "reply-cache.md").read_text())
    assert found is not None
    empty.command("ACL", "SETUSER", "replies", "on", ">secret", *found[1].split())
    empty.command("ACL", "LOG", "RESET")
    (tmp_path / "password").write_text("secret")
    login = {"username": "replies", "password_file": str(tmp_path / "password")}
    entries = entries_of(empty.settings.model_copy(update=login), 2_000, 1_000)
    for name in "abcc":
        await written(entries, name, 700)
    assert await entries.find(b"c", "o") == bytes(700)
    assert empty.command("ACL", "LOG") == []
    await entries.close()


def test_two_deployments_on_one_redis_share_nothing(empty: Server) -> None:
    def config(namespace: str) -> dict[str, Any]:
        made = sections(empty)
        made["redis"]["namespace"] = namespace
        return made

    with Stack(config=config("blue")) as blue, Stack(config=config("green")) as green:
        assert result(post(blue)) == "miss"
        until(lambda: len(kept(empty)) == 1)
        assert [result(post(green)), result(post(blue))] == ["miss", "hit"]
        until(lambda: len(kept(empty)) == 2)
    assert {name.partition(b":")[0] for name in empty.command("KEYS", "*")} == {b"{blue-replies}", b"{green-replies}"}
