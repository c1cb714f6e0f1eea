"""What workers say of themselves when they become ready, and what is made of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import pytest

from gateway import backends
from tests.support.harness import PROBED, Stack, until
from tests.support.standins.serving import Answering, serving

PROPS = {
    "default_generation_settings": {"n_ctx": 300},
    "modalities": {"vision": False},
    "chat_template_caps": {"supports_tools": False},
}


MODELS = {"object": "list", "data": [{"id": "other", "max_model_len": 7}, {"id": "m", "max_model_len": 300}]}
PATHS = {name: path for name in backends.REGISTRY if (path := backends.create(name).facts_path) is not None}


class Server(NamedTuple):
    """What it says of itself where it is asked, and who asked for what, and with which key."""

    props: bytes
    asked: list[tuple[str, str | None]]


@contextmanager
def served(props: bytes, backend: str = "llamacpp", **options: Any) -> Iterator[tuple[Server, httpx.Client]]:
    """A gateway before a worker that says `props`."""
    server = Server(props, [])

    class Answer(Answering):
        def do_GET(self) -> None:
            server.asked.append((self.path, self.headers["authorization"]))
            self.answer(200, server.props if self.path in PATHS.values() else b"{}")

    with serving(Answer) as address:
        models = {"m": {"backend": backend, "workers": [address], **options}}
        config = {"models": models, "routing": {"scrape_s": 0}}
        with Stack((), config) as stack, httpx.Client(base_url=stack.url) as client:
            yield server, client


def context(client: httpx.Client) -> object:
    return client.get("/v1/models").json()["data"][0].get("max_model_len")


def test_a_worker_that_becomes_ready_is_asked() -> None:
    with served(json.dumps(PROPS).encode()) as (server, client):
        assert context(client) == 300
        tools = [{"type": "function", "function": {"name": "f"}}]
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": tools}
        answer = client.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
        assert [path for path, _ in server.asked].count("/props") == 1


@pytest.mark.parametrize("backend", ["vllm", "openai"])
def test_a_servers_list_of_models_says_the_context(backend: str) -> None:
    with served(json.dumps(MODELS).encode(), backend, upstream_model="m") as (server, client):
        assert context(client) == 300
        answer = client.post("/v1/completions", json={"model": "m", "prompt": [1] * 301})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert [path for path, _ in server.asked].count("/v1/models") == 1


def test_the_model_is_looked_up_by_the_workers_name_for_it() -> None:
    with served(json.dumps(MODELS).encode(), "vllm", upstream_model="other") as (_, client):
        assert context(client) == 7


def test_what_is_configured_goes_before_what_is_said() -> None:
    with served(json.dumps(PROPS).encode(), max_context=200) as (_, client):
        assert context(client) == 200


NONSENSE = [b"", b"<html>", b"[]", b'{"modalities":7}', b'{"data":7}', b" " * (2 << 20)]


@pytest.mark.parametrize("props", NONSENSE)
@pytest.mark.parametrize("backend", PATHS)
def test_an_answer_that_says_nothing_changes_nothing(props: bytes, backend: str) -> None:
    with served(props, backend) as (server, client):
        assert context(client) is None
        assert PATHS[backend] in [path for path, _ in server.asked]


def test_the_workers_key_is_shown(tmp_path: Any) -> None:
    (tmp_path / "key").write_text("sk-worker\n")
    with served(json.dumps(PROPS).encode(), api_key_file=str(tmp_path / "key")) as (server, client):
        assert context(client) == 300
        assert ("/props", "Bearer sk-worker") in server.asked


def test_other_workers_and_other_paths_are_not_asked() -> None:
    asked_less: list[tuple[str, dict[str, Any]]] = [("tgi", {})]
    asked_less += [(backend, {"paths": ["/v1/chat/completions"]}) for backend in PATHS]
    for backend, options in asked_less:
        with served(json.dumps(PROPS).encode(), backend, **options) as (server, client):
            assert context(client) is None
            assert {path for path, _ in server.asked} == {"/health"}


def test_a_ready_worker_that_was_replaced_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two probes, or behind a balancer, another one may come that no probe missed."""
    monkeypatch.setattr("gateway.fleet.health._ASKED_AGAIN_S", 0)
    failed: list[object] = []

    async def failing(*given: object) -> None:
        failed.append(given)

    with Stack(({"max_model_len": 64},), PROBED) as stack:
        fleet = stack.gateway.deployment.fleets.models["m"]
        assert fleet.can.max_context == 64
        stack.sim.options.max_model_len = 4096
        until(lambda: fleet.can.max_context == 4096)
        monkeypatch.setattr("gateway.fleet.fleets.ask", failing)
        until(lambda: len(failed) > 1)
        assert fleet.can.max_context == 4096, "without an answer the last one stands"
