"""What is served where."""

from __future__ import annotations

import httpx
import pytest

from gateway.app import KNOWN
from gateway.app.routes import active_dialects, paths, route_table, router
from gateway.config import Config
from tests.harness import Stack


def test_the_route_table_is_what_is_served(stack: Stack) -> None:
    """No path is served that is not listed, and every listed one is, GET by HEAD too. A 405 tells the methods."""
    config = stack.gateway.state.config
    listed: dict[str, set[str]] = {}
    for line in route_table(config):
        listed.setdefault(line.path, set()).add(line.method)
    served = {getattr(route, "path", "") for route in router(config, stack.gateway.state.runtime).routes}
    own = {"/livez", "/readyz", "/metrics"}
    assert set(listed) == served | own
    with httpx.Client(base_url=stack.url) as client:
        for path, methods in listed.items():
            if path in own:
                assert client.get(path).status_code == 200
                continue
            concrete = path.replace("{model:path}", "m").replace("{name:path}", "m")
            refused = client.delete(concrete)
            assert refused.status_code == 405, path
            if "GET" in methods:
                methods = {*methods, "HEAD"}
            assert set(refused.headers["allow"].split(", ")) == methods
            for method in methods:
                reply = client.request(method, concrete, json={} if method == "POST" else None)
                assert reply.status_code not in (404, 405), (method, path)


def test_every_dialect_is_listed() -> None:
    assert {line.dialect for line in route_table(Config())} == {*KNOWN.dialects, "-"}


def test_a_disabled_dialect_is_not_served() -> None:
    config = {"dialects": {name: {"enabled": False} for name in KNOWN.dialects if name != "openai"}}
    with Stack(config=config) as stack:
        assert {line.dialect for line in route_table(stack.gateway.state.config)} == {"openai", "-"}
        assert httpx.post(stack.url + "/invocations", json={}).json()["error"]["code"] == "unknown_path"


def fallbacks() -> list[tuple[str, str]]:
    return [(prefix.rstrip("/"), dialect.name) for dialect in active_dialects(Config()) for prefix in dialect.prefixes]


@pytest.mark.parametrize(("prefix", "dialect"), fallbacks())
@pytest.mark.parametrize("rest", ["/nothing/here", "/v1/chat/completions/", "/%2e%2e/v1/models", ""])
def test_an_unknown_path_is_refused_in_the_dialect_of_its_prefix(
    stack: Stack, prefix: str, dialect: str, rest: str
) -> None:
    (speaker,) = [one for one in active_dialects(Config()) if one.name == dialect]
    path = prefix + rest or "/"
    if any(path in paths(one) for one in active_dialects(Config())):
        pytest.skip("there is something at this path")
    # What tells a dialect's requests from those of others under the same prefix.
    tests = [route.when for route in speaker.routes if route.when is not None]
    headers = {test.name.decode(): test.begins.decode() or "x" for test in tests}
    reply = httpx.get(stack.url + path, headers=headers)
    assert reply.status_code == 404
    assert reply.content
    record = stack.records()[-1]
    assert (record["dialect"], record["code"], record["status"]) == (dialect, "unknown_path", 404)


def test_a_prefix_is_a_whole_segment(stack: Stack) -> None:
    assert httpx.get(stack.url + "/openaiv1/models").status_code == 404
    assert httpx.get(stack.url + "/ollamachat/sse").status_code == 404
    assert stack.records()[-1]["dialect"] == "openai"


def test_no_request_is_meant_for_two() -> None:
    """Of the routes at one path and method, at most one has no header test, and no two have the same."""
    places: dict[tuple[str, str], list[str]] = {}
    for line in route_table(Config()):
        places.setdefault((line.path, line.method), []).append(line.when)
    shared = {place: tests for place, tests in places.items() if len(tests) > 1}
    assert shared
    assert {place: tests for place, tests in shared.items() if len(set(tests)) != len(tests)} == {}


@pytest.mark.parametrize(
    ("method", "path", "headers", "dialect"),
    [
        ("GET", "/v1/models", {}, "openai"),
        ("GET", "/v1/models", {"authorization": "Bearer k"}, "openai"),
        ("GET", "/v1/models?limit=1000", {"anthropic-version": "2023-06-01", "x-api-key": "k"}, "anthropic"),
        ("GET", "/v1/models/m", {"anthropic-version": "2026-10-21"}, "anthropic"),
        ("GET", "/v1/models/m", {}, "openai"),
        ("POST", "/v1/messages/batches", {"anthropic-version": "2023-06-01"}, "anthropic"),
        ("POST", "/v1/files", {}, "openai"),
        ("POST", "/v1/chat/completions", {"anthropic-version": "2023-06-01"}, "openai"),
        ("POST", "/v1/messages?beta=true", {}, "anthropic"),
        ("HEAD", "/", {"user-agent": "Bun/1.3"}, "anthropic"),
        ("HEAD", "/anthropic/api/hello", {"user-agent": "Bun/1.3"}, "anthropic"),
    ],
)
def test_a_recorded_request_reaches_its_dialect(
    stack: Stack, method: str, path: str, headers: dict[str, str], dialect: str
) -> None:
    httpx.request(method, stack.url + path, headers=headers, json={} if method == "POST" else None)
    assert stack.records()[-1]["dialect"] == dialect
