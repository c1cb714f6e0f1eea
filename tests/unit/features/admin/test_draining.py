"""An admin drains a worker, and undrains it: new requests go elsewhere in between, those under way stay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.features.admin.draining import Draining
from gateway.fleet.discovery import FoundWorker
from gateway.fleet.fleets import Fleets
from tests.support.harness import Stack
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


async def test_each_process_that_shares_the_address_drains_it(stack: Stack) -> None:
    asked: list[bytes] = []

    class Others:
        async def ask(self, question: bytes) -> list[bytes]:
            asked.append(question)
            return []

    others: Any = Others()
    look = stack.gateway._watched  # the view that a gateway gives its features
    one, other = Draining(look, others), Draining(look, None)
    assert one.models_of(stack.sim.url) == ["m"]
    try:
        await one.drain(stack.sim.url, True)
        look().fleets.drain(stack.sim.url, False)
        word, _, address = asked[0].partition(b" ")
        assert other.answers[word](address) == b"done"
        assert conditions(stack)[stack.sim.url] == "draining"
    finally:
        await one.drain(stack.sim.url, False)
    assert asked == [f"drain {stack.sim.url}".encode(), f"undrain {stack.sim.url}".encode()]


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
        stack.run(_drain(fleets, first, False))
        assert found(FoundWorker(first), FoundWorker(second)) == {first: False, second: False}
        assert found(FoundWorker(first, draining=True), FoundWorker(second)) == {first: True, second: False}
        stack.run(_drain(fleets, first, False))
        assert fleets.workers["m", first].draining, "an admin does not undrain one that drains by itself"
    finally:
        found(FoundWorker(first), FoundWorker(second))


async def _drain(fleets: Fleets, address: str, drained: bool) -> None:
    fleets.drain(address, drained)
