"""Outputs that are asked for together, heavy requests, and what is used beyond a reservation."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.core.errors import Kind
from gateway.ratelimit import Subject
from tests.support.clients import DIALECTS, REQUESTS, WAYS, Way
from tests.support.harness import Stack
from tests.support.redis_server import Server
from tests.support.sampled import of_dialect, sampled
from tests.unit.ratelimit.asking import DEFAULTS, ask, limiter_of, made, said, standing

HEAVY = "word " * 60_000


@pytest.fixture(scope="module")
def heavy() -> Iterator[tuple[Stack, dict[str, str]]]:
    keys, entries = {}, {}
    for name in REQUESTS:
        keys[name], entry = made(name, limits={"requests": 2, "tokens": 10_000_000, "concurrency": 1})
        entries.update(entry)
    of_model = {"name": "of-model", "kind": "requests", "limit": 100, "scope": ["model"]}
    with Stack(({"max_model_len": 1 << 20},), {**DEFAULTS, "keys": entries, "limits": [of_model]}) as stack:
        yield stack, keys


@pytest.mark.parametrize("dialect", REQUESTS)
def test_a_heavy_request_passes_the_limits_before_it_is_read(
    heavy: tuple[Stack, dict[str, str]], dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, keys = heavy
    way = next(way for way in WAYS if way.dialect == dialect and way.path() == REQUESTS[dialect][0])
    read: list[int] = []
    made_dialect = type(DIALECTS[dialect])
    reads = made_dialect.read

    def reading(self: Any, request: Any) -> Any:
        read.append(len(request.body))
        return reads(self, request)

    monkeypatch.setattr(made_dialect, "read", reading)
    headers = {"x-api-key" if dialect == "sagemaker" else "api-key": keys[dialect], "content-type": "application/json"}

    def send(body: bytes) -> httpx.Response:
        return httpx.post(stack.url + way.path("m"), content=body, headers=headers, timeout=30)

    whole = json.dumps({**way.body(HEAVY, stream=False, max_tokens=5), "model": "m"}).encode()
    assert send(whole[:-1]).status_code in (400, 422, 424)
    assert standing(stack, key=dialect)["requests"] == 1, "what was read counts, malformed or not"
    served = send(whole)
    assert served.status_code == 200, served.text[:300]
    assert served.headers["x-ratelimit-limit-requests"] == "2"
    assert served.headers["x-ratelimit-remaining-requests"] == "0"
    assert served.headers["x-ratelimit-limit-tokens"] == "10000000"
    assert len([name for name in served.headers.raw if name[0] == b"x-ratelimit-limit-requests"]) == 1
    left = standing(stack, key=dialect)
    assert (left["requests"], left["concurrency"]) == (2, 0), "once each"
    before = len(read)
    refused = send(whole)
    assert (refused.status_code, len(read)) == (429, before)
    assert refused.headers["retry-after"]
    assert "limit 'requests' reached" in refused.text
    assert stack.records()[-1]["limit"] == "requests"
    assert standing(stack, key=dialect)["concurrency"] == 0


def test_a_heavy_request_that_a_model_has_its_own_limit_for_is_counted_once() -> None:
    """Which of the limits of that name applies is known only when the body was read."""
    limits = [
        {"name": "requests", "kind": "requests", "limit": 5, "match": {"model": ["m"]}},
        {"name": "requests", "kind": "requests", "limit": 1},
        {"name": "others", "kind": "requests", "limit": 9, "scope": []},
    ]
    with Stack(({"max_model_len": 1 << 20},), {"limits": limits}) as stack:
        for count in (1, 2, 3):
            assert ask(stack, messages=[{"role": "user", "content": HEAVY}]).status_code == 200
            assert standing(stack, key="anonymous") == {"requests": count, "others": count}
        refused = ask(stack, messages=[{"role": "user", "content": HEAVY}], model="nobody")
        assert refused.status_code == 404
        assert standing(stack, key="anonymous") == {"requests": 3, "others": 4}


TEXTS = [way for way in WAYS if way.operation in ("chat", "complete")]
MULTIPLIERS = ("n", "best_of", "num_beams", "n_cmpl", "beam_width")


TOO_MANY = {"maximum": 2, "expected": 30}
"""Outputs of up to 1500 tokens that together reserve more than a limit of 2000, whatever was learnt of their length."""


@pytest.fixture(scope="module", params=TOO_MANY)
def narrow(request: pytest.FixtureRequest) -> Iterator[tuple[Stack, int]]:
    """One output fits the limit, so many do not."""
    limits = [
        {"name": "tpm", "kind": "tokens", "limit": 2000, "reserve": request.param},
        {"name": "rpm", "kind": "requests", "limit": 10**6},
    ]
    config = {"limits": limits, "models": {"m": {"max_context": 1500}}}
    with Stack(({"itl_ms": 0},), {**config, "dialects": {name: {"default_model": "m"} for name in DIALECTS}}) as stack:
        yield stack, TOO_MANY[request.param]


@pytest.mark.parametrize("way", sampled(TEXTS, 3, of_dialect), ids=str)
def test_several_outputs_that_do_not_fit_the_limit_are_refused_by_their_name(
    narrow: tuple[Stack, int], way: Way
) -> None:
    """Or they are refused or left out by the dialect: no member makes a worker produce more than the limit."""
    stack, many = narrow
    nested = next((field.name for field in DIALECTS[way.dialect].fields[way.operation] if "." in field.name), "")
    holder = nested.partition(".")[0] if nested.startswith("parameters.") else ""
    for name in MULTIPLIERS:
        member: dict[str, Any] = {"do_sample": True, name: many} if holder else {name: many}
        body = {**way.body(stream=False), "model": "m", **({holder: member} if holder else member)}
        reply = httpx.post(stack.url + way.path("m"), json=body)
        stack.run(limiter_of(stack).reset(Subject(key="anonymous", model="m")))
        if reply.status_code == DIALECTS[way.dialect].errors[Kind.LIMITED][0]:
            own = f"{holder}.{name}" if holder else name
            assert f"'{own}' asks for {many} outputs of up to 1500 tokens each" in reply.text
            assert "limit 'tpm' of 2000 tokens a minute" in reply.text
            assert reply.headers.get("x-should-retry", "false") == "false"
        elif reply.status_code == 200:
            sent = next(one.body for one in reversed(stack.sim.ledger.entries) if one.method == "POST")
            assert json.loads(sent).get(name, 1) == 1


def test_several_prompts_that_do_not_fit_the_limit_are_refused_by_their_name(narrow: tuple[Stack, int]) -> None:
    stack, many = narrow
    body = {"model": "m", "prompt": ["a"] * many}
    reply = httpx.post(stack.url + "/v1/completions", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (429, "prompt")
    assert f"'prompt' asks for {many} outputs of up to 1500 tokens each" in reply.text
    assert httpx.post(stack.url + "/v1/completions", json={**body, "max_tokens": 900}).status_code == 200
    stack.run(limiter_of(stack).reset(Subject(key="anonymous", model="m")))


@pytest.mark.parametrize("reserve", ["expected", "maximum"])
@pytest.mark.parametrize("shared", [False, True], ids=["memory", "redis"])
def test_a_worker_that_uses_the_most_it_may_is_held_to_the_limit(tmp_path: Path, shared: bool, reserve: str) -> None:
    """In a time T at most limit x (T / window + 1) tokens are used, and what one request, the only one in flight, used
    beyond its reservation. Each request asks for what it can get."""
    limit, window, most = 100, 0.5, 300
    config: dict[str, Any] = {
        "limits": [{"name": "tpm", "kind": "tokens", "limit": limit, "per_s": window}],
        "limiter": {"reserve": reserve},
        "models": {"m": {"max_context": most}},
    }
    asks: list[dict[str, Any]] = [
        {},
        {"n": 128, "temperature": 1},
        {"n": 128, "max_tokens": 100, "temperature": 1},
        {"n": 9, "max_tokens": 10, "temperature": 1},
        {"max_tokens": 250},
        {"stream": True},
    ]
    with contextlib.ExitStack() as held:
        if shared:
            server = held.enter_context(Server(tmp_path))
            config["redis"] = {"addresses": [server.address], "timeout_s": 10}
        stack = held.enter_context(Stack(({"itl_ms": 0, "max_model_len": most},), config))
        began = time.monotonic()
        for number in range(18):
            reply = ask(stack, **said(text="word ", repeat=400), **asks[number % len(asks)])
            if reply.status_code == 429 and "retry-after-ms" in reply.headers:
                time.sleep(int(reply.headers["retry-after-ms"]) / 1000)
        took = time.monotonic() - began
        used = [one["usage"] for one in stack.records() if one["outcome"] == "ok"]
    total = sum(one["input"] + one["output"] for one in used)
    assert len(used) >= 4
    assert total > 2 * limit
    assert total <= limit * (took / window + 1) + most
