"""All that a deployment has in Redis begins with its namespace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.harness import Stack, until
from tests.support.redis_server import Server


@pytest.mark.parametrize("namespace", [None, "blue", "llm.dragoman-1"])
def test_every_key_begins_with_the_namespace(tmp_path: Path, namespace: str | None) -> None:
    with Server(tmp_path) as server:
        redis: dict[str, Any] = {"addresses": [server.address], "timeout_s": 10}
        redis |= {"namespace": namespace} if namespace is not None else {}
        config = {
            "redis": redis,
            "limits": [{"name": "all", "kind": "requests", "limit": 100, "per_s": 60, "scope": []}],
            "accounting": {"redis_stream": "usage"},
            "store": {"where": "redis"},
            "models": {"m": {"discover": {"redis": True}}},
        }
        with Stack(({},), config) as stack:
            url = stack.url + "/v1/responses"
            first = httpx.post(url, json={"model": "m", "input": "hi", "store": True}, timeout=30)
            assert first.status_code == 200
            begins = re.escape((namespace or "dragoman").encode())
            parts = rb"\{%b:0\}:.+", rb"%b:stored:[0-9a-f]{32}:[0-9a-f]{32}", rb"%b:usage"
            forms = [re.compile(part % begins) for part in parts]

            def there() -> bool:
                keys = server.command("KEYS", "*")
                return all(any(form.fullmatch(key) for key in keys) for form in forms)

            until(there)
            keys = server.command("KEYS", "*")
            assert [key for key in keys if not any(form.fullmatch(key) for form in forms)] == []


def test_two_deployments_on_one_redis_share_nothing(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        limits = [{"name": "all", "kind": "requests", "limit": 1, "per_s": 3600, "scope": []}]
        there = {"addresses": [server.address], "timeout_s": 10}
        body = {"model": "m", "input": "hi", "store": True}

        def config(namespace: str) -> dict[str, Any]:
            return {"redis": {**there, "namespace": namespace}, "limits": limits, "store": {"where": "redis"}}

        with Stack(({},), config("blue")) as blue, Stack(({},), config("green")) as green:
            first = httpx.post(blue.url + "/v1/responses", json=body, timeout=30)
            assert first.status_code == 200
            again = httpx.post(blue.url + "/v1/responses", json=body, timeout=30)
            assert again.status_code == 429
            named = {**body, "previous_response_id": first.json()["id"]}
            other = httpx.post(green.url + "/v1/responses", json=named, timeout=30)
            assert other.status_code in (400, 404), "a response of the other deployment"
