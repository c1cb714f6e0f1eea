"""Each gateway of a `redis.namespace` shows the others, whatever is in Redis and however long Redis is away."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gateway.features.console import gateways
from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.unit.features.console.opened import ENVIRON, KEYED, SHOWN

INDEX = "{dragoman-gateways}"


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "EVERY_S", 0.05)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("valkey")) as one:
        yield one


def gateway(server: Server, *workers: str) -> Stack:
    redis = {"addresses": [server.address], "timeout_s": 10}
    given = {"models": {"m": {"backend": "vllm", "workers": list(workers)}}} if workers else {}
    return Stack(() if workers else ({}, {}), {**KEYED, **given, "redis": redis}, environ=ENVIRON)


def others(stack: Stack) -> list[dict[str, Any]]:
    reply = httpx.get(f"{stack.admin_url}/console/gateways.json", headers=SHOWN, timeout=30)
    assert reply.status_code == 200, reply.text
    found: list[dict[str, Any]] = reply.json()
    return found


def test_gateways_show_each_other_and_what_each_sees_of_workers(server: Server) -> None:
    with gateway(server) as one:
        up, down = (sim.url for sim in one.sims)
        with gateway(server, up, "http://127.0.0.1:9") as two:
            until(lambda: len(others(one)) == len(others(two)) == 1)
            until(lambda: others(one)[0]["ready"])
            (view,) = others(one)
            assert view["name"] == f"{socket.gethostname()}:9090"
            assert (view["ready"], view["draining"], view["running"], view["waiting"]) == (True, False, 0, 0)
            until(lambda: others(one)[0]["otherwise"] == [["m", "http://127.0.0.1:9", "down", "refused", 0]])
            assert (others(one)[0]["workers_ready"], others(one)[0]["differs"]) == (1, 1)
            assert [worker[1] for worker in others(two)[0]["otherwise"]] == [down]
        assert others(one) == [], "it has said good-bye"


def test_of_many_workers_that_differ_the_first_are_named(server: Server) -> None:
    here = [("m", f"http://w{number}", "ready", None, 0) for number in range(200)]
    there = [gateways.WorkerView(*one[:2], "down", "died", 0) for one in here]
    server.command("DEL", INDEX)
    with gateway(server) as one:
        view = gateways.View("other:1", "9", 1.0, True, False, False, 2, 3, (*there,))
        server.command("ZADD", INDEX, "9999999999", "other")
        server.command("SET", f"{INDEX}:other", zlib.compress(msgspec.json.encode(view)))
        until(lambda: len(others(one)) == 1)
        (found,) = others(one)
        assert (len(found["otherwise"]), found["differs"], found["workers_ready"]) == (20, 200, 0)
        server.command("DEL", f"{INDEX}:other")


def test_a_gateway_that_died_is_forgotten_soon_and_nobody_grows(server: Server) -> None:
    server.command("DEL", INDEX)
    with gateway(server) as one:
        until(lambda: server.command("ZCARD", INDEX) == 1)
        (id_,) = server.command("ZRANGE", INDEX, "0", "-1")
        assert 0 < server.command("TTL", f"{INDEX}:{id_.decode()}") <= 15
        for number in range(300):
            server.command("ZADD", INDEX, str(number), f"dead-{number}:9090")
        until(lambda: server.command("ZCARD", INDEX) <= gateways.MOST)
        assert others(one) == []


def test_what_cannot_be_read_is_left_out(server: Server) -> None:
    good = gateways.View("good:1", "9", 1.0, True, False, False, 2, 3, ())
    bad = [
        b"", b"junk", zlib.compress(b"{}"), zlib.compress(b"\xff" * 100), zlib.compress(b" " * (64 << 20)),
        zlib.compress(msgspec.json.encode(good))[:-4],
    ]  # fmt: skip
    with gateway(server) as one:
        for number, text in enumerate((*bad, zlib.compress(msgspec.json.encode(good)))):
            server.command("ZADD", INDEX, "9999999999", f"odd-{number}:1")
            server.command("SET", f"{INDEX}:odd-{number}:1", text)
        until(lambda: [view["name"] for view in others(one)] == ["good:1"])


def test_redis_that_is_away_hides_the_others_and_nothing_else(tmp_path: Path) -> None:
    with Server(tmp_path) as away, gateway(away) as one:
        until(lambda: away.command("ZCARD", INDEX) == 1)
        away.kill()
        until(lambda: len(one.events("other gateways do not see this one")) == 1)
        assert others(one) == []
        assert httpx.get(f"{one.admin_url}/status.json", headers=SHOWN, timeout=30).status_code == 200


def test_without_redis_there_are_none() -> None:
    with Stack(({},), KEYED, environ=ENVIRON) as one:
        assert httpx.get(f"{one.admin_url}/console/gateways.json", headers=SHOWN, timeout=30).status_code == 404
        views = httpx.get(f"{one.admin_url}/console/views.json", headers=SHOWN, timeout=30).json()
        assert views["gateways"] is False
