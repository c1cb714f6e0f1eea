"""Keys of the store in a running gateway: beside those of the file, over reloads, and on connections that stay open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from gateway.auth import StoredKey
from gateway.auth.stored import OwnLimits
from gateway.config import ConfigError
from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.unit.auth.stored_keys import hash_of, put, stored

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redis"), "--appendonly", "yes") as server:
        yield server


@pytest.fixture
def stack(server: Server) -> Iterator[Stack]:
    server.command("FLUSHALL")
    config: dict[str, Any] = {
        "keys_store": "redis",
        "keys": {"own": {"hash": hash_of("configured")}},
        "redis": {"addresses": [server.address], "timeout_s": 10},
    }
    with Stack(({},), config) as stack:
        yield stack


def change(stack: Stack, key: StoredKey, expected: int = 0) -> int:
    """Changes the key, and waits until the gateway knows."""
    keys = stack.gateway.deployment.services.keys
    assert keys is not None
    version = stack.run(put(keys.store, key, expected))
    until(lambda: key.name in keys.keys and keys.keys[key.name].version >= version)
    return version


def ask(client: httpx.Client, stack: Stack, secret: str) -> httpx.Response:
    return client.post(stack.url + "/v1/chat/completions", json=CHAT, headers={"authorization": f"Bearer {secret}"})


def test_a_revoked_key_is_refused_on_the_connection_that_knew_it(stack: Stack) -> None:
    key = stored("app", team="blue")
    version = change(stack, key)
    with httpx.Client() as client:
        assert [ask(client, stack, "secret-of-app").status_code for _ in range(3)] == [200, 200, 200]
        assert (stack.record()["key"], stack.record()["team"]) == ("app", "blue")
        change(stack, replace(key, revoked=1.0), version)
        assert ask(client, stack, "secret-of-app").status_code == 401
        assert ask(client, stack, "configured").status_code == 200


def test_its_limits_hold_and_change(stack: Stack) -> None:
    key = stored("app", limits=OwnLimits(requests=2))
    version = change(stack, key)
    with httpx.Client() as client:
        assert [ask(client, stack, "secret-of-app").status_code for _ in range(3)] == [200, 200, 429]
        assert ask(client, stack, "configured").status_code == 200, "it has none"
        change(stack, replace(key, limits=OwnLimits(requests=4)), version)
        assert [ask(client, stack, "secret-of-app").status_code for _ in range(3)] == [200, 200, 429]
        stack.run(stack.gateway.reload(stack.config()))
        assert ask(client, stack, "secret-of-app").status_code == 429, "a reload forgets neither key nor limit"


def test_token_limits_of_a_stored_key_are_measured(stack: Stack) -> None:
    change(stack, stored("app", limits=OwnLimits(tokens=10)))
    with httpx.Client() as client:
        first, second = (ask(client, stack, "secret-of-app") for _ in range(2))
        assert (first.status_code, first.headers["x-ratelimit-remaining-tokens"]) == (200, "0")
        assert second.status_code == 429


def test_a_budget_of_a_stored_key_is_an_amount_of_the_currency(stack: Stack) -> None:
    priced = {"models": {"m": {"price": {"request": 1}}}, "spend": {"currency": "EUR"}}
    stack.run(stack.gateway.reload(stack.config(priced)))
    change(stack, stored("app", limits=OwnLimits(budget="2.5")))
    with httpx.Client() as client:
        assert [ask(client, stack, "secret-of-app").status_code for _ in range(3)] == [200, 200, 429]
        assert "the budget 'budget' of 2.5 EUR a month" in ask(client, stack, "secret-of-app").text
        assert ask(client, stack, "configured").status_code == 200, "it has none"
    stack.run(stack.gateway.reload(stack.config()))


def test_a_reload_keeps_them_and_refuses_one_that_is_named_twice(stack: Stack) -> None:
    change(stack, stored("app"))
    stack.run(stack.gateway.reload(stack.config({"models": {"m": {"aliases": ["other"]}}})))
    with httpx.Client() as client:
        assert ask(client, stack, "secret-of-app").status_code == 200
        change(stack, stored("later"))
        assert ask(client, stack, "secret-of-later").status_code == 200
        with pytest.raises(ConfigError, match=r"keys_store: keys\.app: is also in the store"):
            stack.run(stack.gateway.reload(stack.config({"keys": {"app": {"hash": hash_of("another")}}})))
        assert ask(client, stack, "another").status_code == 401
        stack.run(stack.gateway.reload(stack.config({"keys_store": None})))
        assert ask(client, stack, "secret-of-app").status_code == 401, "the file says that there is no store"


def test_a_priority_that_no_configured_key_has_counts_when_requests_are_shed(stack: Stack) -> None:
    change(stack, stored("app", priority=-5))
    assert stack.gateway.deployment.prepared.priorities == {0, -5}
    assert stack.service("shedding").priorities == [-5, 0]


def test_every_key_begins_with_the_namespace(stack: Stack, server: Server, tmp_path: Path) -> None:
    change(stack, stored("app"))
    own = [name for name in server.command("KEYS", "*") if b"-keys}" in name]
    assert sorted(own) == [b"{dragoman-keys}", b"{dragoman-keys}:changes", b"{dragoman-keys}:version"]
