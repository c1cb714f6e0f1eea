"""Copies of requests for another model."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self

import httpx
import pytest

from gateway.features.mirror import Mirror
from tests.support.clients import WAYS, Way
from tests.support.harness import Stack
from tests.support.sampled import of_dialect, sampled
from tests.unit.app.asking import key
from tests.unit.kernel.asking import chat

GENERATING = [way for way in WAYS if way.operation in ("chat", "complete", "embed", "score")]
PATH = "/v1/chat/completions"


def copies(stack: Stack) -> Mirror:
    """Those of model `m`."""
    (found,) = [one for one in stack.gateway.deployment.runtime.models["m"].way.features if isinstance(one, Mirror)]
    return found


class Mirrored(Stack):
    """A gateway whose model `m` is mirrored to `copy`, a worker of its own. policies: on requests for both."""

    def __init__(
        self,
        copy: dict[str, Any],
        config: dict[str, Any] | None = None,
        main: Any = None,
        policies: Any = None,
        environ: dict[str, str] | None = None,
        **mirror: Any,
    ) -> None:
        super().__init__(({}, copy), config, environ=environ)
        self.main = dict(main or {})
        self.policies = {"request_policies": policies} if policies else {}
        self.mirror = mirror

    def __enter__(self) -> Self:
        super().__enter__()
        base = {"backend": "vllm", "upstream_model": "sim"}
        models = {
            "m": {**base, "workers": [self.sims[0].url], "mirror": {"model": "copy", **self.mirror}, **self.main},
            "copy": {**base, "workers": [self.sims[1].url]},
        }
        self.run(self.gateway.reload(self.config({"models": models, **self.policies})))
        return self


def results(stack: Stack) -> dict[str, int]:
    lines = httpx.get(stack.url + "/metrics").text.splitlines()
    found = [line for line in lines if line.startswith("dragoman_mirrored_requests_total{")]
    return {line.partition('result="')[2].partition('"')[0]: int(float(line.split()[-1])) for line in found}


def sent(sim: Any) -> int:
    return sum(entry.method == "POST" for entry in sim.ledger.entries)


def test_every_way_is_mirrored_and_nobody_is_charged() -> None:
    limits = [{"name": "each", "kind": "requests", "limit": len(GENERATING), "scope": ["key"]}]
    with Mirrored({}, {"limits": limits}) as stack:
        for number, way in enumerate(GENERATING, 1):
            assert_answered(stack, way)
            stack.run(stack.sims[1].ledger.wait(completed=number, running=0))
        records = stack.records()
        assert len(records) == len(GENERATING)
        assert {record["model"] for record in records} == {"m"}
        assert httpx.post(stack.url + PATH, json=chat()).status_code == 429
        assert results(stack) == {"answered": len(GENERATING)}
        assert sent(stack.sims[0]) == sent(stack.sims[1])


def assert_answered(stack: Stack, way: Way) -> None:
    stream = not way.answers(stream=False)
    reply = httpx.post(stack.url + way.path("m"), json={"model": "m", **way.body(stream=stream, max_tokens=5)})
    assert reply.status_code == 200, (str(way), reply.text)
    assert "x-dragoman-model" not in reply.headers


@pytest.mark.feature("request_policies")
def test_a_copy_has_the_policies_of_its_own_model() -> None:
    """For the same caller; those of the model that was asked change no copy."""
    policies = {
        "asked": {"match": {"model": ["m"]}, "system": "Asked.", "force": {"seed": 1}, "drop": ["stop"]},
        "own": {
            "match": {"model": ["copy"]},
            "system": "Own.",
            "caps": {"max_tokens": 7},
            "rename": {"max_tokens": "max_completion_tokens"},
            "headers": {"x-house": "copy"},
            "pass_headers": ["x-mine"],
        },
    }
    main = {"fallback": ["copy"]}
    for options in ({}, main):
        with Mirrored({}, main=options, policies=policies) as stack:
            for stream in (False, True):
                body = chat(stop=["z"], max_tokens=90, stream=stream)
                assert httpx.post(stack.url + PATH, json=body, headers={"x-mine": "a"}).status_code == 200
                stack.run(copies(stack).idle())
                main_got, copy_got = (json.loads(sim.entries[-1].body) for sim in stack.sims)
                assert (main_got["seed"], main_got["max_tokens"], main_got["messages"][0]["content"]) == (
                    1,
                    90,
                    "Asked.",
                )
                assert (copy_got["messages"][0]["content"], len(copy_got["messages"])) == ("Own.", 2)
                assert (copy_got["stop"], copy_got["max_completion_tokens"]) == (["z"], 7)
                assert copy_got.keys().isdisjoint({"seed", "max_tokens"})
                entry = stack.sims[1].entries[-1]
                assert (entry.header("x-house"), entry.header("x-mine")) == ("copy", "a")
                assert stack.sim.entries[-1].header("x-house") is None
    policies["own"]["over_cap"] = "refuse"
    with Mirrored({}, policies=policies) as stack:
        assert httpx.post(stack.url + PATH, json=chat(max_tokens=90)).status_code == 200
        stack.run(copies(stack).idle())
        assert results(stack) == {"refused": 1}


@pytest.mark.feature("end_users")
@pytest.mark.parametrize("main", [{}, {"fallback": ["copy"]}], ids=["alone", "with a fallback"])
def test_copies_of_end_users_share_no_cache(main: dict[str, Any]) -> None:
    secret, entry = key("one")
    config = {"end_users": {}, "cache_salt": {"secret_env": "SALT", "by": "end_user"}, "keys": entry}
    with Mirrored({}, config, main, environ={"SALT": "0123456789abcdef" * 2}) as stack:
        for number, user in enumerate(("ann", "bob"), 1):
            headers = {"authorization": f"Bearer {secret}"}
            assert httpx.post(stack.url + PATH, json=chat(user=user), headers=headers).status_code == 200
            stack.run(stack.sims[1].ledger.wait(completed=number, running=0))
        salts = [[json.loads(one.body)["cache_salt"] for one in sim.entries if one.body] for sim in stack.sims]
    assert salts[0] == salts[1]
    assert len(set(salts[1])) == 2


def test_a_copy_that_is_slow_keeps_nobody_and_further_ones_are_left_out() -> None:
    with Mirrored({"fault": "stall@before"}, max_in_flight=2) as stack:
        for _ in range(4):
            assert httpx.post(stack.url + PATH, json=chat()).status_code == 200
        stack.run(stack.sims[1].ledger.wait(running=2))
        assert results(stack) == {"skipped": 2}
        assert [record["outcome"] for record in stack.records()] == ["ok"] * 4
        assert sent(stack.sims[1]) == 2


@pytest.mark.parametrize(("fault", "result"), [("status:500", "failed"), ("reset@before", "failed"), ("eof@1", None)])
def test_a_copy_that_fails_is_nobodys_failure(fault: str, result: str | None) -> None:
    with Mirrored({"fault": fault}) as stack:
        for stream in (False, True):
            assert httpx.post(stack.url + PATH, json=chat(stream=stream)).status_code == 200
        stack.run(copies(stack).idle())
        assert sum(results(stack).values()) == 2
        if result is not None:
            assert results(stack) == {result: 2}
        assert stack.events("bug") == []


def test_a_share_is_drawn_and_what_cannot_be_sent_is_counted() -> None:
    with Mirrored({}, share=0.5) as stack:
        for _ in range(40):
            assert httpx.post(stack.url + PATH, json=chat(max_tokens=1)).status_code == 200
        stack.run(copies(stack).idle())
        assert 5 <= results(stack)["answered"] <= 35
    with Mirrored({}) as stack:
        heavy = chat("word " * 80_000, max_tokens=1)
        httpx.post(stack.url + PATH, json=heavy)
        assert results(stack) == {"skipped": 1}


PLAIN = sampled([way for way in GENERATING if way.answers(stream=False)], 3, of_dialect)


@pytest.mark.parametrize("way", PLAIN, ids=str)
def test_what_no_worker_is_sent_is_not_copied(way: Way) -> None:
    """A queue that is full refuses it."""

    async def ask(stack: Stack) -> list[int]:
        url, body = stack.url + way.path("m"), {"model": "m", **way.body(stream=False, max_tokens=5)}
        async with httpx.AsyncClient(timeout=60) as client:
            held = asyncio.create_task(client.post(stack.url + PATH, json=chat()))
            await stack.sim.ledger.wait(running=1)
            await stack.sims[1].ledger.wait(completed=1)
            refused = await client.post(url, json=body)
            stack.sim.fault("")
            stack.sim.go_on()
            return [refused.status_code, (await held).status_code]

    with Mirrored({}, {"queue": {"max_waiting": 0}}, {"max_in_flight": 1}) as stack:
        stack.sim.fault("stall@before")
        assert stack.run(ask(stack), 60) == [429, 200]
        stack.run(copies(stack).idle())
        assert results(stack) == {"answered": 1}
        assert sent(stack.sims[1]) == 1


def test_copies_end_with_the_gateway() -> None:
    with Mirrored({"fault": "stall@before"}) as stack:
        httpx.post(stack.url + PATH, json=chat())
        stack.run(stack.sims[1].ledger.wait(running=1))
        stack.run(stack.gateway.deployment.close())
        stack.run(stack.sims[1].ledger.wait(aborted=1))
