"""LoRA adapters that workers have loaded are models, and only their workers are picked for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.fleet import adapters
from tests.support.clients import WAYS
from tests.support.harness import Stack
from tests.unit.app.asking import key

CONFIG = {"models": {"m": {"adapters": True}}, "routing": {"scrape_s": 0}}
WORDS = [{"role": "user", "content": "hello " * 300}]


@pytest.fixture
def stack() -> Iterator[Stack]:
    """Two workers, one of which has loaded `sql`."""
    with Stack(({}, {"adapters": ("sql",)}), config=CONFIG) as stack:
        yield stack


def change(stack: Stack, worker: int, action: str, name: str) -> None:
    """Has the worker load or unload an adapter, and the gateway look."""
    url = f"{stack.sims[worker].url}/v1/{action}_lora_adapter"
    assert httpx.post(url, json={"lora_name": name, "lora_path": "/x"}).status_code == 200
    stack.run(stack.gateway.deployment.fleets.adapters.look())


def ask(stack: Stack, model: str = "sql", **members: Any) -> httpx.Response:
    body = {"model": model, "messages": WORDS, **members}
    return httpx.post(stack.url + "/v1/chat/completions", json=body, headers={"x-dragoman-explain": "1"})


def listed(stack: Stack) -> dict[str, str]:
    data = httpx.get(stack.url + "/v1/models").json()["data"]
    return {one["id"]: one.get("root", one["id"]) for one in data}


def test_an_adapter_is_a_model_that_its_workers_serve(stack: Stack) -> None:
    assert listed(stack) == {"m": "m", "alias": "m", "sql": "m"}
    for _ in range(4):
        reply = ask(stack)
        assert reply.status_code == 200, reply.text
        assert reply.json()["model"] == "sql"
        assert reply.headers["x-dragoman-worker"] == stack.sims[1].url
    record = stack.record()
    assert (record["model"], record["adapter"]) == ("m", "sql")
    assert {entry.body.count(b'"model":"sql"') for entry in stack.sims[1].entries} == {1}
    assert ask(stack, "m").status_code == 200
    assert stack.record()["adapter"] is None


def test_every_dialect_may_name_it(stack: Stack) -> None:
    for way in WAYS:
        if way.operation in ("chat", "complete") and way.field("model") is not None:
            reply = httpx.post(stack.url + way.path("sql"), json=way.body(model="sql"))
            assert reply.status_code == 200, (way, reply.text)
            assert stack.record()["adapter"] == "sql", way


def test_what_workers_load_and_unload_is_followed(stack: Stack) -> None:
    change(stack, 0, "load", "sql")
    change(stack, 0, "load", "poems")
    assert set(listed(stack)) == {"m", "alias", "sql", "poems"}
    assert ask(stack, "poems").headers["x-dragoman-worker"] == stack.sims[0].url
    change(stack, 1, "unload", "sql")
    assert ask(stack).headers["x-dragoman-worker"] == stack.sims[0].url
    change(stack, 0, "unload", "sql")
    assert set(listed(stack)) == {"m", "alias", "poems"}
    assert ask(stack).status_code == 404
    assert [event["adapter"] for event in stack.events("adapter offered")] == ["sql", "poems"]
    assert [event["adapter"] for event in stack.events("adapter gone")] == ["sql"]


def test_the_bound_holds_for_adapters_that_are_offered_already(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """None beyond it stays with the workers that had it once."""
    monkeypatch.setattr(adapters, "_MOST", 2)
    change(stack, 0, "load", "tales")
    assert set(listed(stack)) == {"m", "alias", "sql", "tales"}
    change(stack, 0, "load", "poems")
    assert set(listed(stack)) == {"m", "alias", "poems", "sql"}
    assert ask(stack, "tales").status_code == 404
    change(stack, 0, "unload", "tales")
    change(stack, 1, "load", "tales")
    change(stack, 0, "unload", "poems")
    assert set(listed(stack)) == {"m", "alias", "sql", "tales"}
    assert ask(stack, "tales").headers["x-dragoman-worker"] == stack.sims[1].url


def test_a_worker_that_does_not_answer_keeps_its_adapters(stack: Stack) -> None:
    stack.sims[1].die()
    stack.run(stack.gateway.deployment.fleets.adapters.look())
    assert "sql" in listed(stack)
    reply = ask(stack)
    assert reply.status_code >= 500
    assert "does not exist" not in reply.text


def test_a_reload_keeps_what_is_offered(stack: Stack) -> None:
    stack.run(stack.gateway.reload(stack.config()))
    assert ask(stack).status_code == 200
    stack.run(stack.gateway.reload(stack.config({"models": {"m": {"adapters": False}}})))
    assert ask(stack).status_code == 404


def test_a_name_that_is_taken_stays_what_it_is() -> None:
    with Stack(({"adapters": ("alias", "m", "own")},), config=CONFIG) as stack:
        assert set(listed(stack)) == {"m", "alias", "own"}
        assert ask(stack, "alias").json()["model"] == "alias"
        assert stack.record()["adapter"] is None


def test_keys_and_limits_are_those_of_the_model() -> None:
    (may, allowed), (not_, refused) = key("may", models=["m"]), key("other", models=["other"])
    models = {"m": {"adapters": True}, "other": {"backend": "vllm", "workers": ["http://127.0.0.1:9"]}}
    limit = {"name": "one", "kind": "requests", "limit": 1, "scope": ["key"], "match": {"model": ["m"]}}
    config = {"models": models, "keys": allowed | refused, "limits": [limit]}
    with Stack(({"adapters": ("sql",)},), config=config) as stack:
        body = {"model": "sql", "messages": WORDS}
        url = stack.url + "/v1/chat/completions"
        statuses = [
            httpx.post(url, json=body, headers={"authorization": f"Bearer {secret}"}).status_code
            for secret in (may, may, not_)
        ]
    assert statuses == [200, 429, 404]


def test_its_prompts_are_not_in_the_model_s_cache() -> None:
    with Stack(({"adapters": ("sql",)}, {"adapters": ("sql",)}), config=CONFIG) as stack:
        shares = []
        for model in ("m", "m", "sql", "sql"):
            ask(stack, model)
            shares.append(float(stack.record()["picked"].rpartition("=")[2]))
    assert [share > 0.9 for share in shares] == [False, True, False, True]


def test_both_steps_go_to_workers_that_have_it() -> None:
    roles: tuple[dict[str, Any], ...] = ({}, {"adapters": ("sql",)}) * 2
    with Stack(tuple({"kv_transfer": True, **one} for one in roles)) as stack:
        generate, compute = [sim.url for sim in stack.sims[:2]], [sim.url for sim in stack.sims[2:]]
        model = {"adapters": True, "workers": generate, "prefill": {"workers": compute}}
        stack.run(stack.gateway.reload(stack.config({"models": {"m": model}})))
        for _ in range(3):
            reply = ask(stack)
            assert reply.headers["x-dragoman-worker"] == generate[1]
            assert reply.headers["x-dragoman-prefill"] == compute[1]


def test_no_other_model_answers_for_an_adapter_or_gets_copies() -> None:
    """Others do not have it: what they answered would not be what was asked for."""
    with Stack(({}, {"adapters": ("sql",), "fault": "status:429"}, {})) as stack:
        base = {"backend": "vllm", "upstream_model": "sim"}
        models: dict[str, dict[str, Any]] = {
            "other": {**base, "workers": [stack.sims[2].url]},
            "m": {
                "workers": [stack.sims[1].url],
                "adapters": True,
                "fallback": ["other"],
                "mirror": {"model": "other"},
            },
        }
        models["m"]["mirror"] = {"model": "other"}
        stack.run(stack.gateway.reload(stack.config({**CONFIG, "models": models})))
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
        for model, status in (("m", 200), ("sql", 503)):
            reply = httpx.post(stack.url + "/v1/chat/completions", json={"model": model, **body})
            assert reply.status_code == status
        assert stack.records()[-1]["asked"] is None
