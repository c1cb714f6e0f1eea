"""An admin drains a worker, and undrains it: new requests go elsewhere in between, those under way stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from redis.asyncio import Redis

from gateway.auth.key_store import KeyStore
from gateway.features.admin.draining import Draining
from gateway.fleet.discovery import FoundWorker
from gateway.fleet.fleets import Fleets
from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.unit.app.asking import CHAT, key
from tests.unit.features.console.opened import ENVIRON, KEYED, SECRET, SHOWN

pytestmark = pytest.mark.feature("console")
ROOT, ADMINS = key("root")
LEAD, LEADS = key("lead")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    admins = {**ADMINS, "lead": {"hash": LEADS["lead"]["hash"], "teams": ["blue"]}}
    with Server(tmp_path_factory.mktemp("valkey"), "--appendonly", "yes") as server:
        redis = {"addresses": [server.address], "timeout_s": 10}
        config = {**KEYED, "keys_store": "redis", "admins": admins, "redis": redis}
        with Stack(({"output_tokens": 100_000, "itl_ms": 20},) * 2, config, environ=ENVIRON) as running:
            yield running


def post(stack: Stack, address: str, what: str, secret: str = ROOT) -> httpx.Response:
    path = f"{stack.admin_url}/admin/v1/workers/{address.replace(':', '%3A').replace('/', '%2F')}/{what}"
    return httpx.post(path, headers={"authorization": f"Bearer {secret}"}, timeout=30)


def served(stack: Stack, times: int = 12) -> set[str]:
    """The workers that new requests go to."""
    before = [sim.ledger.received for sim in stack.sims]
    headers = {"authorization": f"Bearer {SECRET}"}
    with httpx.Client(headers=headers, timeout=30) as client:
        for _ in range(times):
            body = {**CHAT, "max_tokens": 1}
            assert client.post(stack.url + "/v1/chat/completions", json=body).status_code == 200
    return {sim.url for sim, old in zip(stack.sims, before, strict=True) if sim.ledger.received > old}


def conditions(stack: Stack) -> dict[str, str]:
    stack.service("console")._state = None  # one of half a second ago is kept
    state: Any = httpx.get(stack.admin_url + "/status.json", headers=SHOWN).json()
    return {one["address"]: one["condition"] for one in state["models"][0]["workers"]}


def test_a_drained_worker_gets_nothing_new_and_finishes_what_it_has(stack: Stack) -> None:
    first, second = (sim.url for sim in stack.sims)
    body = {**CHAT, "stream": True, "max_tokens": 100_000}
    headers = {"authorization": f"Bearer {SECRET}"}
    with httpx.stream("POST", stack.url + "/v1/chat/completions", json=body, headers=headers, timeout=30) as reply:
        pieces = reply.iter_bytes()
        next(pieces)
        at = next(sim.url for sim in stack.sims if sim.ledger.running)
        other = second if at == first else first
        assert post(stack, at, "drain").json() == {"address": at, "models": ["m"], "drained": True}
        assert conditions(stack) == {at: "draining", other: "ready"}
        assert served(stack) == {other}
        assert next(pieces), "what it has goes on"
        stack.run(stack.gateway.reload(stack.config()))
        assert served(stack) == {other}, "under later configurations, too"
        more = {"models": {"another": {"backend": "vllm", "workers": [at]}}}
        stack.run(stack.gateway.reload(stack.config(more)))
        assert stack.gateway.deployment.fleets.workers["another", at].draining
        stack.run(stack.gateway.reload(stack.config()))
        assert post(stack, at, "undrain").json() == {"address": at, "models": ["m"], "drained": False}
    stack.records()
    assert conditions(stack) == {first: "ready", second: "ready"}
    assert post(stack, other, "drain").status_code == 200
    assert served(stack) == {at}, "it takes requests again"
    assert post(stack, other, "undrain").status_code == 200
    lines = httpx.get(stack.admin_url + "/admin/v1/audit?limit=4", headers={"authorization": f"Bearer {ROOT}"}).json()[
        "changes"
    ]
    assert [(line["what"], line["by"], line["name"]) for line in lines] == [
        (what, "root", address) for address in (other, at) for what in ("undrain", "drain")
    ]


def test_only_an_admin_of_all_keys_drains_and_only_a_worker(stack: Stack) -> None:
    for secret, address, status, code in (
        (LEAD, stack.sim.url, 403, "role"),
        (ROOT, "http://127.0.0.1:9", 404, "unknown_worker"),
        (SHOWN["authorization"].split()[1], stack.sim.url, 401, "invalid_api_key"),
    ):
        refused = post(stack, address, "drain", secret)
        assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
    assert set(conditions(stack).values()) == {"ready"}


def test_a_drain_is_of_all_gateways_and_outlives_them(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        redis = {"addresses": [server.address], "timeout_s": 10}
        config = {**KEYED, "keys_store": "redis", "admins": ADMINS, "redis": redis}
        with Stack(({}, {}), config, environ=ENVIRON) as one:
            at = one.sims[0].url
            model = {"backend": "vllm", "workers": [sim.url for sim in one.sims]}

            def other() -> Stack:
                return Stack((), {**config, "models": {"m": model}}, environ=ENVIRON)

            with other() as two:
                assert post(one, at, "drain").status_code == 200
                until(lambda: draining(two) == {at})
            with other() as three:
                assert draining(three) == {at}, "from its start on"
                assert post(three, at, "undrain").status_code == 200
            until(lambda: draining(one) == set())
            server.command("SET", "{dragoman-keys}:drained", b"\xff " + at.encode())
            until(lambda: draining(one) == {at})


async def test_the_addresses_in_redis_are_bounded(tmp_path: Path) -> None:
    """Workers that were drained and never came back."""
    with Server(tmp_path) as server:
        fleets = SimpleNamespace(drained=frozenset(), drain=lambda address, drained: None, workers={})
        client = Redis.from_url(f"redis://{server.address}")
        one = Draining(lambda: cast(Any, SimpleNamespace(fleets=fleets)), KeyStore("n", 10, client, 10))
        for number in range(1003):
            await one.drain(f"http://w{number}", True)
        await one.drain("http://w500", False)
        await one.drain("http://w7", True)
        there = server.command("GET", "{n-keys}:drained").decode().split()
        assert there == [f"http://w{number}" for number in range(3, 1003) if number not in (7, 500)] + ["http://w7"]
        await client.aclose()


def draining(stack: Stack) -> set[str]:
    fleet = stack.gateway.deployment.fleets.models["m"]
    return {worker.address for worker in fleet.workers if worker.draining}


def test_a_drained_worker_that_leaves_comes_back_drained_and_may_drain_by_itself(stack: Stack) -> None:
    first, second = (sim.url for sim in stack.sims)
    fleets = stack.gateway.deployment.fleets

    def found(*members: FoundWorker) -> dict[str, bool]:
        stack.run(fleets._join("m", members))  # as discovery calls it
        return {worker.address: worker.draining for worker in fleets.models["m"].workers}

    try:
        stack.run(_drain(fleets, first, True))
        assert found(FoundWorker(second)) == {second: False}
        assert found(FoundWorker(first), FoundWorker(second)) == {first: True, second: False}
        assert stack.events("worker joined")[-1]["drained"] is True, "it may be another one at the address"
        stack.run(_drain(fleets, first, False))
        assert found(FoundWorker(second)) == {second: False}
        assert found(FoundWorker(first), FoundWorker(second)) == {first: False, second: False}
        assert "drained" not in stack.events("worker joined")[-1]
        assert found(FoundWorker(first), FoundWorker(second)) == {first: False, second: False}
        assert found(FoundWorker(first, draining=True), FoundWorker(second)) == {first: True, second: False}
        stack.run(_drain(fleets, first, False))
        assert fleets.workers["m", first].draining, "an admin does not undrain one that drains by itself"
    finally:
        found(FoundWorker(first), FoundWorker(second))


async def _drain(fleets: Fleets, address: str, drained: bool) -> None:
    fleets.drain(address, drained)
