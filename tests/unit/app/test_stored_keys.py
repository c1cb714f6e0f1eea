"""Keys of the store in a running gateway: beside those of the file, over reloads, and on connections that stay open."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from gateway.auth import Stored, StoredKey
from gateway.auth.stored import OwnLimits
from gateway.config import ConfigError
from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.unit.auth.stored_keys import hash_of, put, stored, stored_team
from tests.unit.auth.test_jwt import AUDIENCE, ISSUER, RSA, token
from tests.unit.auth.test_jwt import keys as jwt_keys

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


@contextmanager
def away_after(
    directory: Path, hold_s: float, *entries: Stored, jwt: dict[str, Any] | None = None, **worker: Any
) -> Iterator[Stack]:
    """A gateway that knows these keys and teams, and whose Redis has ended."""
    with Server(directory, "--appendonly", "yes") as mortal:
        sections: dict[str, Any] = {
            "keys_store": "redis",
            "keys": {"own": {"hash": hash_of("configured")}},
            "redis": {"addresses": [mortal.address], "timeout_s": 10},
            "stored_keys": {"hold_s": hold_s},
            **({} if jwt is None else {"jwt": jwt}),
        }
        with Stack((worker,), sections) as stack:
            keys = stack.gateway.deployment.services.keys
            assert keys is not None
            for one in entries:
                stack.run(put(keys.store, one))
            until(lambda: {one.name for one in entries} == keys.keys.keys() | keys.teams.keys())
            mortal.kill()
            until(lambda: not keys.up)
            yield stack


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


@pytest.mark.parametrize("changed", [{"stored_keys": {"hold_s": 600}}, {"redis": {"timeout_s": 9}}])
def test_a_reload_while_redis_is_away_forgets_no_key_and_no_team(tmp_path: Path, changed: dict[str, Any]) -> None:
    (tmp_path / "keys.json").write_text(jwt_keys(r=RSA))
    jwt = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": str(tmp_path / "keys.json"), "team_claim": "org"}
    with away_after(tmp_path, 60, stored("app"), stored_team("blue", disabled=True), jwt=jwt) as stack:
        limiter = stack.service("limits")
        stack.run(stack.gateway.reload(stack.config(changed)))
        secrets = {"app": "secret-of-app", "blue": token(org="blue").decode(), "red": token(org="red").decode()}
        with httpx.Client() as client:
            found = {name: ask(client, stack, secret).status_code for name, secret in secrets.items()}
        assert found == {"app": 200, "blue": 401, "red": 200}
        assert stack.service("limits") is limiter
        assert limiter.limiter.store._settings == stack.gateway.deployment.config.redis  # no answer shows it


def test_the_keys_of_an_older_configuration_end_no_limit(tmp_path: Path) -> None:
    """It lives as long as its last request, and may lose its keys meanwhile."""
    head = {"authorization": "Bearer configured"}
    body = {**CHAT, "stream": True, "max_tokens": 1000, "ignore_eos": True}
    key = stored("app", limits=OwnLimits(tokens=9))
    with (
        away_after(tmp_path, 1, key, itl_ms=100) as stack,
        httpx.Client() as client,
        client.stream("POST", stack.url + "/v1/chat/completions", json=body, headers=head) as running,
    ):
        lines = running.iter_lines()
        assert next(lines)
        stack.run(stack.gateway.reload(stack.config({"stored_keys": {"hold_s": 600}})))
        until(lambda: bool(stack.events("keys refused, store away too long")))
        assert len(stack.gateway.host.deployments) == 2
        assert "app" in stack.service("limits").limiter._index._own  # the limiter counts for it
        assert ask(client, stack, "secret-of-app").status_code == 200


def test_a_reload_revives_no_key_that_was_held_too_long(tmp_path: Path) -> None:
    with away_after(tmp_path, 60, stored("app"), stored_team("blue")) as stack, httpx.Client() as client:
        time.sleep(1.1)
        assert ask(client, stack, "secret-of-app").status_code == 200
        stack.run(stack.gateway.reload(stack.config({"stored_keys": {"hold_s": 1}})))
        assert ask(client, stack, "secret-of-app").status_code == 503
        keys = stack.gateway.deployment.services.keys
        assert keys is not None
        assert (list(keys.keys), list(keys.teams), keys.unread) == (["app"], ["blue"], False)
        stack.run(stack.gateway.reload(stack.config({"stored_keys": {"hold_s": 600}})))
        assert ask(client, stack, "secret-of-app").status_code == 200


def test_the_keys_of_another_store_are_not_taken_over(tmp_path: Path) -> None:
    with away_after(tmp_path, 60, stored("app")) as stack, httpx.Client() as client:
        stack.run(stack.gateway.reload(stack.config({"redis": {"namespace": "other"}})))
        assert ask(client, stack, "secret-of-app").status_code == 503
