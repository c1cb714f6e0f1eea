"""What is served where."""

from __future__ import annotations

import re

import httpx
import pytest

from gateway.app import KNOWN
from gateway.app.routes import active_dialects, paths, route_table, router
from gateway.config import Config
from tests.support.harness import Stack


def test_the_route_table_is_what_is_served(stack: Stack) -> None:
    """No path is served that is not listed, and every listed one is, GET by HEAD too. A 405 tells the methods."""
    config = stack.gateway.deployment.config
    listed: dict[str, set[str]] = {}
    for line in route_table(config):
        listed.setdefault(line.path, set()).add(line.method)
    served = set(router(config, stack.gateway.deployment.runtime).endpoints)
    own = {"/livez", "/readyz", "/metrics"}
    assert set(listed) == served | own
    with httpx.Client(base_url=stack.url) as client:
        for path, methods in listed.items():
            if path in own:
                assert client.get(path).status_code == 200
                continue
            concrete = re.sub(r"\{\w+(:path)?\}", "m", path)
            refused = client.patch(concrete)
            assert refused.status_code == 405, path
            if "GET" in methods:
                methods = {*methods, "HEAD"}
            assert set(refused.headers["allow"].split(", ")) == methods
            for method in methods:
                reply = client.request(method, concrete, json={} if method == "POST" else None)
                if "{response}" in path:  # nothing is stored
                    assert reply.status_code == 404
                else:
                    assert reply.status_code not in (404, 405), (method, path)


def test_a_head_is_as_its_get(stack: Stack) -> None:
    """RFC 9110, section 9.3.2: the same headers, whichever dialect the path is of, and if there is nothing too."""
    table = route_table(stack.gateway.deployment.config)
    probes = {line.path for line in table if line.method == "HEAD"}
    wanted = {(line.path, line.when) for line in table if line.path not in {*probes, "/metrics"}}
    answered = set()
    with httpx.Client(base_url=stack.url) as client:
        for place, when in sorted({*wanted, ("/nothing", ""), ("/v1/v1/models", ""), ("/gemini/v1beta/nothing", "")}):
            name, _, begins = when.partition(": ")
            headers = {name: begins.removesuffix("...") or "x"} if name else {}
            path = re.sub(r"\{\w+(:path)?\}", "m", place)
            whole, head = (client.request(method, path, headers=headers) for method in ("GET", "HEAD"))
            assert head.content == b""
            assert (head.status_code, told(head)) == (whole.status_code, told(whole)), place
            assert int(head.headers["content-length"]) == len(whole.content)
            answered.add(whole.status_code)
    assert answered >= {200, 404, 405}


def told(reply: httpx.Response) -> dict[str, str]:
    """The headers, but for those that each reply has its own of."""
    return {name: value for name, value in reply.headers.items() if name != "date" and "request" not in name}


def test_a_method_that_no_dialect_has_is_refused_in_the_form_of_none(stack: Stack) -> None:
    """At a path of several dialects the form is that of docs/errors.md, unless the request shows its dialect."""
    shared: dict[str, dict[str, list[str]]] = {}
    for line in route_table(stack.gateway.deployment.config):
        shared.setdefault(line.path, {}).setdefault(line.dialect, []).append(line.when)
    shared = {path: found for path, found in shared.items() if len(found) > 1}
    assert "/v1/models" in shared
    shared["/"] = {"anthropic": [""], "ollama": [""]}  # a HEAD there is the GET's
    for path, found in shared.items():
        plain = [dialect for dialect, tests in found.items() if "" in tests]
        for dialect, tests in [("", [""]), *found.items()]:
            name, _, begins = next(iter(filter(None, tests)), "").partition(": ")
            headers = {name: begins.removesuffix("...") or "x"} if name else {}
            reply = httpx.patch(stack.url + re.sub(r"\{\w+(:path)?\}", "m", path), headers=headers)
            assert reply.status_code == 405
            spoken = dialect if name else plain[0] if len(plain) == 1 else "openai"
            assert stack.records()[-1]["dialect"] == spoken, (path, headers)
            if spoken == "openai":
                assert reply.json() == {"error": {**reply.json()["error"], "code": "method_not_allowed"}}
    reply = httpx.post(stack.url + "/", json={})
    assert list(reply.json()) == ["error"]
    told = reply.json()["error"]["message"]
    assert told.startswith(
        f"POST is not allowed here; this path takes {reply.headers['allow']}; the path of an API must"
    )
    assert told.endswith('; for another API, POST is at /tgi/: the base URL of this client must end in "/tgi"')


def test_every_dialect_is_listed() -> None:
    assert {line.dialect for line in route_table(Config())} == {*KNOWN.dialects, "-"}


def test_a_disabled_dialect_is_not_served() -> None:
    config = {"dialects": {name: {"enabled": False} for name in KNOWN.dialects if name != "openai"}}
    with Stack(config=config) as stack:
        assert {line.dialect for line in route_table(stack.gateway.deployment.config)} == {"openai", "-"}
        assert httpx.post(stack.url + "/invocations", json={}).json()["error"]["code"] == "unknown_path"


def fallbacks() -> list[tuple[str, str]]:
    """Who answers for unknown paths: of the dialects of a prefix those with a header test, and the first without."""
    found: dict[tuple[str, str], str] = {}
    for dialect in active_dialects(Config()):
        test = next((str(route.when) for route in dialect.routes if route.when is not None), "")
        for prefix in dialect.prefixes:
            found.setdefault((prefix.rstrip("/"), test), dialect.name)
    return [(prefix, name) for (prefix, _), name in found.items()]


@pytest.mark.parametrize(("prefix", "dialect"), fallbacks())
@pytest.mark.parametrize("rest", ["/nothing/here", "/v1/chat/completions/", "/%2e%2e/v1/models", ""])
def test_an_unknown_path_is_refused_in_the_dialect_of_its_prefix(
    stack: Stack, prefix: str, dialect: str, rest: str
) -> None:
    (speaker,) = [one for one in active_dialects(Config()) if one.name == dialect]
    path = prefix + rest or "/"
    if any(path in paths(Config(), one) for one in active_dialects(Config())):
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
        ("GET", "/v1/responses/resp_1", {"authorization": "Bearer k"}, "responses"),
        ("DELETE", "/openai/v1/responses/resp_1", {"authorization": "Bearer k"}, "responses"),
        ("GET", "/openai/responses/resp_1/input_items?api-version=preview", {"api-key": "k"}, "responses"),
        ("POST", "/openai/deployments/m/responses?api-version=2025-04-01-preview", {"api-key": "k"}, "responses"),
        ("POST", "/openai/deployments/m/chat/completions?api-version=2024-10-21", {"api-key": "k"}, "azure_openai"),
        ("POST", "/openai/v1/deployments/m/completions?api-version=preview", {"api-key": "k"}, "azure_openai"),
        ("POST", "/openai/chat/completions", {"api-key": "k"}, "azure_openai"),
        ("GET", "/openai/models?api-version=2024-10-21", {"api-key": "k"}, "azure_openai"),
        ("GET", "/openai/models/m?api-version=2024-10-21", {"api-key": "k"}, "azure_openai"),
        ("POST", "/openai/v1/chat/completions", {"authorization": "Bearer k"}, "openai"),
        ("GET", "/openai/v1/models?api-version=preview", {"api-key": "k"}, "openai"),
        ("POST", "/api/chat", {"authorization": "Bearer k"}, "ollama"),
        ("POST", "/ollama/api/generate", {}, "ollama"),
        ("POST", "/ollama/chat/completions", {}, "ollama_style"),
        ("POST", "/api/embed", {}, "ollama"),
        ("GET", "/api/tags", {}, "ollama"),
        ("GET", "/api/status", {}, "ollama"),
        ("POST", "/ollama/api/me", {}, "ollama"),
        ("POST", "/api/never", {"anthropic-version": "2023-06-01"}, "anthropic"),
        ("POST", "/v2/chat", {"authorization": "Bearer k"}, "cohere"),
        ("GET", "/v1/models?endpoint=chat&default_only=true", {"x-fern-sdk-name": "cohere"}, "cohere"),
        ("GET", "/v1/models/m", {"x-fern-sdk-name": "cohere"}, "cohere"),
        ("POST", "/v2/rerank", {"x-fern-sdk-name": "cohere"}, "rerank"),
        ("GET", "/ollama/api/version", {}, "ollama"),
        ("GET", "/", {}, "ollama"),
        ("POST", "/tgi", {"authorization": "Bearer k"}, "tgi"),
        ("POST", "/tgi/generate_stream", {}, "tgi"),
        ("GET", "/tgi/info", {}, "tgi"),
        ("HEAD", "/", {"user-agent": "Bun/1.3"}, "ollama"),
        ("HEAD", "/anthropic", {"user-agent": "Bun/1.3"}, "anthropic"),
        ("HEAD", "/anthropic/api/hello", {"user-agent": "Bun/1.3"}, "anthropic"),
    ],
)
def test_a_recorded_request_reaches_its_dialect(
    stack: Stack, method: str, path: str, headers: dict[str, str], dialect: str
) -> None:
    httpx.request(method, stack.url + path, headers=headers, json={} if method == "POST" else None)
    assert stack.records()[-1]["dialect"] == dialect
