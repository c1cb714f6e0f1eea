"""A key in a wrong place reaches nobody else: whatever a client sends it as, in every dialect.

The keys have no vendor's form: that of the caller, that of another caller, and one that was replaced.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from gateway.dialects import REGISTRY
from tests.support.clients import DIALECTS, WAYS, Way, target, usual
from tests.support.harness import Stack
from tests.support.redis_server import Server

KEYS = {
    "own": "0f8c2b7a91d34e65b8a07c1d2e3f4a5b",
    "other": "another-callers.key_of+no/vendor",
    "replaced": "r3placedKeyOfNoVendor0123456789abcdefABC",
}
# What the gateway, a proxy or a tracing system could repeat.
HEADERS = (
    *("x-request-id", "request-id", "x-correlation-id", "traceparent", "tracestate", "baggage", "user-agent"),
    *("referer", "cookie", "via", "x-ms-client-request-id", "x-amzn-sagemaker-custom-attributes"),
    *("x-amzn-sagemaker-inference-id", "x-amzn-trace-id", "x-amzn-sagemaker-target-variant", "x-session-id"),
    *("idempotency-key", "anthropic-beta", "x-stainless-retry-count", "accept-language", "openai-organization"),
    *("openai-project", "x-forwarded-for", "x-dragoman-explain", "x-friendli-team", "x-data-parallel-rank"),
)
ALONE = ("content-type", "accept", "x-amzn-sagemaker-target-model", "x-stainless-timeout", "origin")
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Asked(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: Any


def placed(way: Way, key: str) -> Iterator[Asked]:
    """Requests that have `key` in every place that could be repeated."""
    path, body = way.path("m"), {"model": "m", **way.body()}
    method = way.route.method
    every = dict.fromkeys(HEADERS, key)
    yield Asked(method, path, {**every, "x-" + key.replace("/", ""): key}, body)
    yield Asked(method, path, {"traceparent": PARENT, "tracestate": f"a={key},b=1", "x-request-id": f"key:{key}"}, body)
    if len(key) == 32:
        yield Asked(method, path, {"traceparent": PARENT.replace(PARENT[3:35], key)}, body)
    for name in ALONE:
        yield Asked(method, path, {name: key}, body)
    preflight = {"origin": "https://page.example", "access-control-request-method": "POST"}
    yield Asked("OPTIONS", path, {**preflight, "access-control-request-headers": key.replace("/", "")}, None)
    yield Asked(key.replace("/", "").upper()[:20], path, {}, None)
    bare, _, query = path.partition("?")
    for more in (f"{key}={key}", *(f"{part.partition('=')[0]}={key}" for part in query.split("&") if part)):
        yield Asked(method, f"{bare}?{more}&{query}", {}, body)
    yield Asked(method, f"{bare}/{key}?{query}", {}, body)
    for name in (key, "x" * 40 + key, "y" * 63 + key):
        yield Asked(method, path, {}, {**body, name: 1})
        yield Asked(method, path, {}, _inside(body, name))
    yield Asked(method, path, {}, {**body, "model": key})
    yield Asked(method, path, {}, {**body, "model": "m" * 100 + key})


def _inside(value: Any, name: str) -> Any:
    """`value`, with an unknown member in every object."""
    if isinstance(value, dict):
        return {**{inner: _inside(one, name) for inner, one in value.items()}, name: {name: 1}}
    return [_inside(one, name) for one in value] if isinstance(value, list) else value


def valued(way: Way, key: str) -> Iterator[Asked]:
    """Requests that have `key` as the value of one field each."""
    for field in DIALECTS[way.dialect].fields[way.operation]:
        if field.where == "body":
            name = field.name.partition(".")[0]
            for value in (key, {key: [key]}):
                yield Asked(way.route.method, way.path("m"), {}, {"model": "m", **way.body(), name: value})


def routed(key: str) -> Iterator[Asked]:
    """Requests that have `key` in the path."""
    for name, dialect in DIALECTS.items():
        for route in dialect.routes:
            if "{" in route.path:
                yield Asked(route.method, target(name, route, key.replace("/", "%2F")), {}, {"model": "m"})


def entry(key: str, **more: Any) -> dict[str, Any]:
    return {"hash": "sha256:" + sha256(key.encode()).hexdigest(), **more}


@pytest.mark.parametrize(
    ("which", "everywhere"), [*((key, False) for key in KEYS), pytest.param("own", True, marks=pytest.mark.long)]
)
def test_a_key_in_a_wrong_place_reaches_nobody(which: str, everywhere: bool, tmp_path: Path) -> None:
    """everywhere: on each path, and as the value of each field; otherwise on one path of each dialect."""
    key = KEYS[which]
    keys = {name: entry(one, expires="2999-01-01") for name, one in KEYS.items()}
    with Server(tmp_path) as server:
        config = {
            "keys": keys,
            "redis": {"addresses": [server.address]},
            "accounting": {"redis_stream": "usage"},
            "dialects": {name: {"default_model": "m"} for name in REGISTRY},
            "routing": {"explain": "always", "scrape_s": 0},
            "cors": {"origins": ["https://page.example"]},
            "log": {"level": "debug"},
        }
        with Stack(config=config) as stack:
            for one in KEYS.values():
                assert httpx.get(stack.url + "/v1/models", headers={"api-key": one}).status_code == 200
            kept = stack.config()
            left = {name: one for name, one in kept.keys.items() if name != "replaced"}
            stack.run(stack.gateway.reload(kept.model_copy(update={"keys": left})))
            replies = stack.run(asked_of(stack, key, everywhere), 300)
            stack.records()
            metrics = httpx.get(stack.url + "/metrics").text
            upstream = [f"{one.path} {one.headers}" for one in stack.sim.ledger.entries]
            log = stack.output.getvalue().decode()
        accounted = [fields[b"record"] for _, fields in server.command("XRANGE", "dragoman:usage", "-", "+")]
    assert len(accounted) > 100, len(replies)
    found = {
        "log": [line for line in log.splitlines() if key in line],
        "accounting": [text for text in accounted if key.encode() in text],
        "metrics": [line for line in metrics.splitlines() if key in line],
        "headers of replies": [reply for reply in replies if key in str(reply.headers.raw)],
        "refusals": [reply.text for reply in replies if reply.status_code >= 400 and key in reply.text],
        "workers": [text for text in upstream if key in text],
    }
    assert {where: texts[:3] for where, texts in found.items() if texts} == {}
    assert {reply.status_code for reply in replies} >= {200, 400, 404}


async def asked_of(stack: Stack, key: str, everywhere: bool) -> list[httpx.Response]:
    asked = [*routed(key)]
    if everywhere:
        asked += [one for way in WAYS for one in placed(way, key)]
        asked += [one for name in REGISTRY for one in valued(usual(name), key)]
    else:
        asked += [one for name in REGISTRY for one in placed(usual(name), key)]
    turns = asyncio.Semaphore(8)
    headers = {"api-key": KEYS["own"]}

    async with httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=60) as client:

        async def send(one: Asked) -> httpx.Response:
            content = json.dumps(one.body) if one.body is not None else None
            more = {"content-type": "application/json", **one.headers} if content is not None else one.headers
            async with turns:
                return await client.request(one.method, one.path, content=content, headers=more)

        return await asyncio.gather(*map(send, asked))
