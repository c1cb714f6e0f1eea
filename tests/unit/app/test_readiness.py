"""When a gateway that starts is ready, and what it takes over from the process before."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import saved_state, services
from gateway.app.saved_state import SavedState
from gateway.fleet import fleets
from gateway.fleet.clients import Clients
from gateway.fleet.discovery import Dns
from gateway.transport import names
from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.unit.auth.stored_keys import put, stored, stored_team
from tests.unit.auth.test_jwt import AUDIENCE, ISSUER, RSA, keys
from workers import registry as writer

LOCAL = {"metrics": {"listen": "127.0.0.1:9090"}}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def ready(stack: Stack) -> tuple[int, str]:
    answer = httpx.get(stack.url + "/readyz", timeout=30)
    return answer.status_code, answer.text


def ask(stack: Stack, secret: str = "") -> int:
    headers = {"authorization": f"Bearer {secret}"} if secret else {}
    return httpx.post(stack.url + "/v1/chat/completions", json=CHAT, headers=headers, timeout=60).status_code


def shown(stack: Stack) -> tuple[bool, list[str]]:
    """The same of the state as JSON: whether it starts, and what it has not read."""
    state = httpx.get(stack.admin_url + "/status.json", timeout=30).json()
    return state["starting"], state["unread"]


def enter(server: Server, worker: Stack) -> None:
    """Puts the worker's entry into the registry."""
    server.command("SADD", "{dragoman-workers}", "w")
    entry = json.dumps({**json.loads(writer.WorkerEntry(worker.sim.url, ("sim",), "simulated").text()), "id": "w"})
    server.command("SET", "{dragoman-workers}:w", entry)


class Away:
    """A look-up that fails until it is there: of names, or of an identity provider's keys."""

    def __init__(self, answer: Any, error: Exception | None = None) -> None:
        self.there = False
        self._answer = answer
        self._error = error or socket.gaierror(socket.EAI_AGAIN, "the name server does not answer")

    async def __call__(self, *asked: object, **how: object) -> Any:
        if not self.there:
            raise self._error
        return self._answer


Source = Callable[[pytest.MonkeyPatch, Path], tuple[Mapping[str, Any], Callable[[], None], Callable[[], None]]]
"""The configuration, what brings the source back, and what ends it."""


def of_redis(config: Mapping[str, Any]) -> Source:
    def source(patch: pytest.MonkeyPatch, folder: Path) -> Any:
        server = Server(folder)
        redis = {"addresses": [server.address], "timeout_s": 10}
        return {"redis": redis, **config}, server.start, lambda: server.__exit__()

    return source


def of_dns(patch: pytest.MonkeyPatch, folder: Path) -> Any:
    away = Away(["127.0.0.1"])
    patch.setattr(fleets, "Dns", lambda model, host, port, every: Dns(model, host, port, 0.1, away))
    config = {"models": {"m": {"discover": {"dns": "workers.example:1"}}}}
    return config, lambda: setattr(away, "there", True), lambda: None


def of_a_listed_name(patch: pytest.MonkeyPatch, folder: Path) -> Any:
    away = Away(["127.0.0.1"])
    patch.setattr(names, "look_up", away)
    config = {"models": {"m": {"workers": ["http://gpu-1.example:1"]}}}
    return config, lambda: setattr(away, "there", True), lambda: None


def of_a_provider(patch: pytest.MonkeyPatch, folder: Path) -> Any:
    away = Away(keys(r=RSA).encode(), OSError("away"))
    patch.setattr(services, "fetch_soon", away)
    patch.setattr("gateway.auth.jwt._RETRY_S", 0.1)
    jwt = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": "https://id.example/keys"}
    return {"jwt": jwt}, lambda: setattr(away, "there", True), lambda: None


SOURCES: dict[str, Source] = {
    "registry": of_redis({"models": {"m": {"discover": {"redis": True}}}}),
    "keys of the store": of_redis({"keys_store": "redis"}),
    "dns workers.example:1": of_dns,
    "names of m": of_a_listed_name,
    "keys of tokens": of_a_provider,
}


@contextmanager
def without(source: str, patch: pytest.MonkeyPatch, folder: Path, **start: object) -> Iterator[tuple[Stack, Any]]:
    """A gateway that starts while the source is away, and what brings that back."""
    config, come, end = SOURCES[source](patch, folder)
    try:
        with Stack(() if "models" in config else ({},), {**config, **LOCAL, "start": start}) as stack:
            yield stack, come
    finally:
        end()


@pytest.mark.parametrize("source", SOURCES)
def test_a_gateway_is_not_ready_before_each_source_was_read(
    source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gateway.fleet.discovery._ABSENT_S", 0.2)
    with without(source, monkeypatch, tmp_path) as (stack, come):
        assert ready(stack) == (503, "starting\n")
        assert shown(stack) == (True, [source])
        assert httpx.get(stack.url + "/livez").status_code == 200
        (line,) = stack.events("not ready, sources could not be read")
        assert (line["sources"], line["ready_within_s"]) == ([source], 300)
        come()
        until(lambda: ready(stack) == (200, "ready\n"))
        assert stack.events("ready, all sources were read")
        until(lambda: shown(stack) == (False, []))


@pytest.mark.parametrize("source", SOURCES)
def test_it_is_ready_in_the_end(source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with without(source, monkeypatch, tmp_path, ready_within_s=0) as (stack, _):
        assert ready(stack) == (200, "ready\n")
        assert shown(stack) == (False, [source])
        (line,) = stack.events("ready although sources could not be read")
        assert line["sources"] == [source]


def test_a_registry_without_workers_counts_after_a_while(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that was emptied has none until they enter it again."""
    models = {"m": {"discover": {"redis": True}}}
    config = {"redis": {"addresses": [server.address], "timeout_s": 10}, "models": models}
    with Stack(({},), {}) as worker, Stack((), {**config, **LOCAL}) as stack:
        assert ready(stack) == (503, "starting\n")
        assert shown(stack) == (True, ["registry"])
        enter(server, worker)
        until(lambda: ready(stack) == (200, "ready\n"))
        assert ask(stack) == 200
    server.command("FLUSHALL")
    monkeypatch.setattr("gateway.fleet.discovery._ABSENT_S", 0.2)
    with Stack((), config) as stack:
        assert ready(stack) == (503, "starting\n")
        until(lambda: ready(stack) == (200, "ready\n"))


def test_workers_that_are_found_are_probed_first(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    probe, answers = Clients.probe, threading.Event()

    async def held(clients: Clients, *asked: Any) -> int:
        await asyncio.to_thread(answers.wait, 30)
        return await probe(clients, *asked)

    models = {"m": {"discover": {"redis": True}}}
    config = {"redis": {"addresses": [server.address], "timeout_s": 10}, "models": models, **LOCAL}
    with Stack(({},), {}) as worker:
        monkeypatch.setattr(Clients, "probe", held)
        with Stack((), config) as stack:
            enter(server, worker)
            until(lambda: shown(stack) == (True, ["workers of m"]))
            assert ready(stack) == (503, "starting\n")
            answers.set()
            until(lambda: ready(stack) == (200, "ready\n"))
            assert ask(stack) == 200


def test_once_ready_it_stays_so_over_a_reload(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with Stack() as stack:
        assert ready(stack) == (200, "ready\n")
        config, _, end = SOURCES["registry"](monkeypatch, tmp_path)
        stack.run(stack.gateway.reload(stack.config(config)))
        end()
        assert ready(stack) == (200, "ready\n"), "what it had serves on"


def test_a_reload_may_leave_out_a_model_that_is_looked_up(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        both = {name: {"backend": "vllm", "discover": {"redis": True}} for name in ("m", "n")}
        config = {"redis": {"addresses": [server.address], "timeout_s": 10}, "models": both}
        with Stack((), config) as stack:
            whole = stack.config()
            stack.run(stack.gateway.reload(whole.model_copy(update={"models": {"m": whole.models["m"]}})))
            assert list(stack.gateway.deployment.pools) == ["m"]


# -- what outlives a restart ------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, "--appendonly", "no") as server:
        yield server


@pytest.fixture
def kept(server: Server, tmp_path: Path) -> Iterator[tuple[dict[str, Any], Stack]]:
    """The configuration of a gateway with workers in the registry and keys in the store, and the gateway."""
    config: dict[str, Any] = {
        "redis": {"addresses": [server.address], "timeout_s": 10},
        "keys_store": "redis",
        "models": {"m": {"discover": {"redis": True}}},
        "start": {"known_folder": str(tmp_path / "known")},
    }
    with Stack(({},), {}) as worker:
        enter(server, worker)
        with Stack((), config) as stack:
            mirror = stack.gateway.deployment.services.keys
            assert mirror is not None
            blue = stored("bound", team="blue")
            for key in (stored("app"), stored("gone", revoked=1.0), stored_team("blue", disabled=True), blue):
                stack.run(put(mirror.store, key))
            until(lambda: len(mirror.keys) == 3)
            until(lambda: ask(stack, "secret-of-app") == 200)
        server.kill()
        yield config, worker


def test_a_restart_begins_with_what_was_known(kept: tuple[dict[str, Any], Stack], server: Server) -> None:
    with Stack((), kept[0]) as stack:
        assert ready(stack) == (200, "ready\n")
        assert [ask(stack, f"secret-of-{name}") for name in ("app", "gone", "other")] == [200, 401, 503]
        assert ask(stack, "secret-of-bound") == 401, "its team is disabled"
        server.start()  # and it comes back empty
        mirror = stack.gateway.deployment.services.keys
        assert mirror is not None
        until(lambda: mirror.up is True)
        assert [ask(stack, f"secret-of-{name}") for name in ("app", "gone", "other")] == [200, 401, 401]


def test_what_is_known_is_old_in_the_end(kept: tuple[dict[str, Any], Stack]) -> None:
    config = kept[0]
    folder = Path(config["start"]["known_folder"])
    for file in folder.iterdir():
        os.utime(file, (time.time() - 90_000,) * 2)
    (file,) = folder.glob("workers-*")
    text = file.read_bytes()
    file.write_bytes(text.replace(b'"at":', b'"at":-'))
    with Stack((), config) as stack:
        assert ready(stack) == (503, "starting\n")
        (line,) = stack.events("not ready, sources could not be read")
        assert line["sources"] == ["registry", "keys of the store"]


def test_a_file_is_of_one_server_and_of_its_owner(
    kept: tuple[dict[str, Any], Stack], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = kept[0]
    for file in Path(config["start"]["known_folder"]).iterdir():
        assert file.stat().st_mode & 0o777 == 0o600
        assert b"secret-of" not in file.read_bytes()
    with Stack((), {**config, "redis": {**config["redis"], "namespace": "other"}}) as stack:
        assert ready(stack)[0] == 503, "it is another deployment's"
    for file in Path(config["start"]["known_folder"]).iterdir():
        file.chmod(0o620)
    with Stack((), config) as stack:
        assert ready(stack)[0] == 503
        assert [line["reason"] for line in stack.events("known keys could not be read")] == [
            "others may write to its files"
        ]


def test_a_spoilt_file_stops_no_start(kept: tuple[dict[str, Any], Stack]) -> None:
    for file in Path(kept[0]["start"]["known_folder"]).iterdir():
        file.write_bytes(b"\x00{")
    with Stack((), kept[0]) as stack:
        assert ready(stack)[0] == 503
        assert stack.events("known workers could not be read")


async def test_what_cannot_be_written_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Stack(({},), {"start": {"known_folder": str(tmp_path / "file" / "x")}}) as stack:
        tokens = type("Tokens", (), {"body": b"{}", "close": lambda self: _done()})()
        seen: list[str] = []
        watched = SavedState(lambda: _Deployment(stack, tokens), lambda level, event, **facts: seen.append(event))  # type: ignore[arg-type,return-value]
        await watched.save()
        await watched.save()
        assert seen == ["what is known cannot be kept"]
    assert saved_state._EVERY_S < saved_state._FRESH_S  # two constants that must fit each other


class _Deployment:
    def __init__(self, stack: Stack, tokens: object) -> None:
        deployment = stack.gateway.deployment
        self.config, self.fleets = deployment.config, deployment.fleets
        self.services = services.Services(tokens=tokens)  # type: ignore[arg-type]


async def _done() -> None:
    pass


def test_an_identity_providers_keys_outlive_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, come, _ = of_a_provider(monkeypatch, tmp_path)
    config |= {"start": {"known_folder": str(tmp_path / "known")}}
    with Stack(({},), config) as stack:
        come()
        until(lambda: ready(stack)[0] == 200)
    of_a_provider(monkeypatch, tmp_path)  # away again
    with Stack(({},), config) as stack:
        assert ready(stack) == (200, "ready\n")
