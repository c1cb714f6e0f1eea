"""Clients with a wrong base URL: a slash too many is served, a version too few or too many is told the right one."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from gateway import dialects
from gateway.app.base_urls import BaseUrls
from gateway.auth import new_key
from gateway.core.ports import Settings
from tests.laws.conformance.cases import DIALECTS
from tests.support.clients import MEDIA, WAYS, Way, usual
from tests.support.harness import Stack
from tests.support.sampled import of_dialect, sampled

_DONE = ("chat", "complete", "embed", "rerank")
GENERATING = [way for way in WAYS if way.operation in _DONE and "{" not in way.route.path and way.route.path.strip("/")]
VERSION = re.compile(r"/(v\d\w*|api)(?=/)")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    named = {name: {"default_model": "m"} for name in DIALECTS}
    config = {"dialects": named, "metrics": {"listen": "127.0.0.1:9"}}
    with Stack(config=config) as running:
        yield running


def place(way: Way) -> tuple[str, str]:
    path, _, query = way.path("m").partition("?")
    return path, f"?{query}" if query else ""


def slashed(path: str) -> list[str]:
    """`path` with a slash too many at each place where a base URL may end."""
    return [path[:at] + "/" + path[at:] for at, char in enumerate(path) if char == "/"]


@pytest.mark.parametrize("way", sampled(WAYS, 4, of_dialect), ids=str)
def test_a_slash_too_many_changes_nothing(stack: Stack, way: Way) -> None:
    path, query = place(way)
    body = way.body(model="m")
    expected = httpx.post(stack.url + path + query, json=body)
    record = stack.record()
    assert expected.status_code == (400 if way.operation in MEDIA else 200)  # this worker makes no sound or images
    for given in (*slashed(path)[:3], path.replace("/", "///")):
        reply = httpx.post(stack.url + given + query, json=body)
        assert reply.status_code == expected.status_code, (given, reply.text)
        assert (stack.record()["dialect"], stack.record()["operation"]) == (record["dialect"], record["operation"])


@pytest.mark.parametrize("path", ["//livez", "///readyz"])
def test_the_gateways_own_paths_alike(stack: Stack, path: str) -> None:
    assert httpx.get(stack.url + path).status_code == 200
    assert httpx.get(stack.admin_url + path).status_code == 200


def test_a_models_name_keeps_its_slashes() -> None:
    with Stack(config={"models": {"m": {"aliases": ["/data//model"]}}}) as stack:
        reply = httpx.get(stack.url + "/v1/models//data//model")
        assert (reply.status_code, reply.json()["id"]) == (200, "/data//model")


def wrong(path: str) -> Iterator[str]:
    """Paths that clients with a wrong base URL ask for."""
    version = VERSION.search(path)
    if version is not None:
        begin, end = version.span()
        yield path[:begin] + path[end:]
        yield path[:end] + version[0] + path[end:]
        yield path[:begin] + "/V" + path[begin + 2 : end] + "0" + path[end:]
    else:
        prefix = path[: path.index("/", 1)] if path.count("/") > 1 else ""
        yield f"{prefix}/v1{path.removeprefix(prefix)}"
    yield "/proxy" + path
    yield path + path
    yield path + "/"


@pytest.mark.parametrize("way", sampled(GENERATING, 3, of_dialect), ids=str)
def test_a_wrong_base_url_is_told_a_path_that_is_served(stack: Stack, way: Way) -> None:
    path, query = place(way)
    told = 0
    for given in wrong(path):
        reply = httpx.post(stack.url + given + query, json=way.body(model="m"))
        if reply.status_code == 200:  # it is another dialect's path
            continue
        assert reply.status_code == 404, (given, reply.text)
        found = re.search(r"it is at (/[^\s,:;\"\\]*)", reply.text)
        assert found is not None, (given, reply.text)
        again = httpx.post(stack.url + found[1] + query, json=way.body(model="m"))
        assert again.status_code not in (404, 405), (given, found[1])
        told += 1
    assert told >= 3


@pytest.mark.parametrize(
    ("method", "path", "advice"),
    [
        ("POST", "/chat/completions", 'it is at /v1/chat/completions: the base URL of this client must end in "/v1"'),
        ("POST", "/v1/v1/chat/completions", 'it is at /v1/chat/completions: "/v1" must be left out of the base URL'),
        ("POST", "/v1/v1/messages", 'it is at /v1/messages: "/v1" must be left out of the base URL'),
        ("POST", "/messages", 'it is at /v1/messages: the base URL of this client must end in "/v1"'),
        ("POST", "/openai/v1/v1/embeddings", 'it is at /openai/v1/embeddings: "/v1" must be left out'),
        ("POST", "/friendli/chat/completions", "it is at /friendli/v1/chat/completions: the base URL"),
        ("POST", "/anthropic/v1/v1/messages", 'it is at /anthropic/v1/messages: "/v1" must be left out'),
        ("POST", "/v1/api/chat", 'it is at /api/chat: "/v1" must be left out of the base URL'),
        ("POST", "/api/api/chat", 'it is at /api/chat: "/api" must be left out of the base URL'),
        ("POST", "/v1/v2/chat", 'it is at /v2/chat: "/v1" must be left out of the base URL'),
        ("POST", "/api/chat/completions", 'must end in "/v1" instead of "/api"'),
        ("POST", "/v1/chat/completions/chat/completions", 'must end in "/v1" instead of "/v1/chat/completions"'),
        ("POST", "/v1/messages/v1/messages", 'it is at /v1/messages: "/v1/messages" must be left out'),
        ("POST", "/models/m:generateContent", "it is at /v1/models/m:generateContent: the base URL"),
        ("POST", "/gemini/v1beta/v1beta/models/m:generateContent", "it is at /gemini/v1beta/models/m:generateContent"),
        ("POST", "/azure/v1/chat/completions", 'it is at /azure/chat/completions: "/v1" must be left out'),
        ("POST", "/ollama/v1/chat/completions", 'without "/ollama", /v1/chat/completions is that of another API'),
        ("POST", "/v1/chat/completions/", "it is at /v1/chat/completions, without the slash at the end"),
        (
            "POST",
            "/generate",
            'it is at /tgi/generate: the base URL of this client must end in "/tgi"; for another API',
        ),
        ("POST", "/generate", ', it is at /api/generate: the base URL of this client must end in "/api"'),
        ("POST", "/generate_stream", 'it is at /tgi/generate_stream: the base URL of this client must end in "/tgi"'),
        ("GET", "/info", 'it is at /tgi/info: the base URL of this client must end in "/tgi"'),
        ("GET", "/models", 'it is at /v1/models: the base URL of this client must end in "/v1"'),
        ("GET", "/v1/v1/models", 'it is at /v1/models: "/v1" must be left out of the base URL'),
        ("HEAD", "/models", ""),
        ("GET", "/chat/completions", "it is at /v1/chat/completions: the base URL"),
        ("GET", "/nothing/at/all", None),
        ("GET", "/v1", None),
        ("GET", "/" + "a/" * 90, None),
        ("GET", "/v1/v1/" + "a" * 200, None),
    ],
)
def test_the_advice(stack: Stack, method: str, path: str, advice: str | None) -> None:
    reply = httpx.request(method, stack.url + path, json={} if method == "POST" else None)
    assert reply.status_code == 404
    if advice is None:
        assert "it is at" not in reply.text
    else:
        assert advice in reply.text.replace('\\"', '"')


def test_the_root_path_of_an_api_below_a_prefix_is_told(stack: Stack) -> None:
    """TGI's own clients post to the path `/` behind their base URL."""
    reply = httpx.post(stack.url, json={"inputs": "hi"})
    assert reply.status_code == 405
    advice = 'POST is at /tgi/: the base URL of this client must end in "/tgi"'
    assert advice in reply.text.replace('\\"', '"')
    assert httpx.post(stack.url + "/tgi/", json={"inputs": "hi"}).status_code == 200
    with Stack(config={"dialects": {"tgi": {"enabled": False}}}) as without:
        assert "is at" not in httpx.post(without.url, json={}).text


def test_no_path_is_told_its_own_place(stack: Stack) -> None:
    """A wrong method at a right path has no other base URL, unless something is there by that method."""
    for way in WAYS:
        path, query = place(way)
        for method in ("GET", "PUT", "DELETE"):
            reply = httpx.request(method, stack.url + path + query)
            if reply.status_code != 405:
                continue
            found = re.search(rf"{method} is at (/[^\s,:;\"\\]*)", reply.text)
            assert found is None or httpx.request(method, stack.url + found[1]).status_code not in (404, 405)


def test_nothing_is_told_of_what_is_off() -> None:
    off = {name: {"enabled": False} for name in DIALECTS if name not in ("anthropic", "azure_openai")}
    with Stack(config={"dialects": off}) as stack:
        assert "/v1/messages" in httpx.post(stack.url + "/messages", json={}).text
        assert "it is at" not in httpx.post(stack.url + "/rerank/x", json={}).text


@pytest.mark.parametrize(
    ("path", "named"),
    [
        (
            "/",
            [
                *("/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat", "/rerank"),
                *("/v1beta/models/MODEL:generateContent", "/v2/chat"),
            ],
        ),
        ("/v1", ["/v1/chat/completions", "/v1/messages", "/v1/responses"]),
        ("/v1/", ["/v1/chat/completions", "/v1/messages", "/v1/responses"]),
        ("/v2", ["/v2/chat"]),
        ("/api", ["/api/chat"]),
        ("/openai", ["/openai/v1/chat/completions", "/openai/v1/responses", "/openai/chat/completions"]),
        ("/openai/v1", ["/openai/v1/chat/completions", "/openai/v1/responses"]),
        ("/anthropic", ["/anthropic/v1/messages"]),
        ("/azure", ["/azure/chat/completions"]),
        ("/friendli", ["/friendli/v1/chat/completions"]),
        ("/ollama", ["/ollama/chat/completions", "/ollama/api/chat"]),
        ("/gemini/v1beta", ["/gemini/v1beta/models/MODEL:generateContent"]),
        ("/sagemaker", ["/sagemaker/invocations"]),
    ],
)
@pytest.mark.parametrize("headers", [{}, {"anthropic-version": "2023-06-01"}], ids=["plain", "anthropic"])
def test_a_base_url_alone_gets_the_paths_behind_it(
    stack: Stack, path: str, named: list[str], headers: dict[str, str]
) -> None:
    reply = httpx.post(stack.url + path, json={"model": "m", "messages": []}, headers=headers)
    assert reply.status_code in (404, 405)
    found = re.search(r"the path of an API must follow, such as ([^;\"]*)", reply.text.replace(" (", ";"))
    assert found is not None, reply.text
    assert re.split(", | or ", found[1].rstrip("\\")) == named
    for one in named:
        assert httpx.post(stack.url + one.replace("MODEL", "m"), json={}).status_code not in (404, 405)


def test_every_prefix_of_a_chat_has_such_a_path(stack: Stack) -> None:
    """One more dialect with a prefix of its own is named, too."""
    prefixes = {prefix.rstrip("/") for name in DIALECTS for prefix in dialects.create(name, Settings()).prefixes}
    for prefix in sorted(prefixes - {"/tgi", "/vllm"}):  # TGI's is a path itself; vLLM's dialect has no chats
        reply = httpx.post(stack.url + prefix, json={})
        assert (reply.status_code in (404, 405), "must follow, such as /" in reply.text) == (True, True), prefix


def test_every_place_of_a_path_is_named(stack: Stack) -> None:
    text = httpx.post(stack.url + "/v1/chat", json={}).text.replace('\\"', '"')
    assert 'it is at /api/chat: the base URL of this client must end in "/api" instead of "/v1"' in text
    assert text.count("there is also /v2/chat") == 1
    text = httpx.post(stack.url + "/models/m:generateContent", json={}).text
    assert "/v1beta" not in text, "a version beside its own beta is the same API"


def test_a_wrong_path_is_no_modality(stack: Stack) -> None:
    text = httpx.post(stack.url + "/azure/v1/chat/completions", json={}).json()["message"]
    assert text.startswith("there is nothing at this path")
    text = httpx.post(stack.url + "/azure/images/embeddings", json={}).json()["message"]
    assert text.startswith("Modality not supported by the model: there is nothing at this path")


def test_the_work_for_one_path_is_bounded() -> None:
    looked: list[str] = []

    def served(path: str) -> tuple[str, ...]:
        looked.append(path)
        return ()

    urls = BaseUrls(served, {"": ["v1", "v1beta", "v2", "api"], "/openai": ["v1"]}, {"": [], "/openai": []})
    assert urls.advice("GET", "/openai" + "/a" * 11) == ""
    assert 0 < len(looked) < 100
    looked.clear()
    assert urls.advice("GET", "/openai" + "/a" * 50) == urls.advice("GET", "/" + "a" * 1000) == ""
    assert looked == []


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "responses"])
def test_an_unknown_model_is_told_where_the_list_is(stack: Stack, dialect: str) -> None:
    way = usual(dialect)
    reply = httpx.post(stack.url + way.path("nobody"), json=way.body(model="nobody"))
    if dialect == "sagemaker":  # the endpoint's name alone names the model
        reply = httpx.post(stack.url + "/sagemaker/endpoints/nobody/invocations", json=way.body(model="nobody"))
    assert reply.status_code in (400, 404)
    assert "nobody" in reply.text
    found = re.search(r"GET (/\S+) lists the models that you may use", reply.text)
    assert found is not None, reply.text
    assert "m" in re.findall(r'"(?:models/)?(\w+)(?::latest)?"', httpx.get(stack.url + found[1]).text)


def test_the_list_shows_what_the_caller_may_use_and_nothing_else() -> None:
    """A key without the model is told of the list, and the model is neither in the error nor there."""
    import yaml

    secret, entry = new_key("k")
    keys = yaml.safe_load(entry)
    keys["k"]["models"] = ["m"]
    config = {"keys": keys, "models": {"hidden": {"backend": "vllm", "workers": ["http://127.0.0.1:9"]}}}
    with (
        Stack(config=config) as stack,
        httpx.Client(base_url=stack.url, headers={"authorization": f"Bearer {secret}"}) as client,
    ):
        reply = client.get("/v1/models/hidden")
        assert reply.status_code == 404
        found = re.search(r"GET (/\S+) lists", reply.text)
        assert found is not None
        assert "hidden" not in client.get(found[1]).text
        assert httpx.get(stack.url + "/chat/completions").status_code == 401, "a stranger learns of no path"


def test_the_root_of_an_api_with_a_prefix() -> None:
    """TGI's own client posts to its base URL."""
    off = {name: {"enabled": False} for name in DIALECTS if name not in ("openai", "tgi")}  # some have a GET there
    with Stack(config={"dialects": off}) as stack:
        reply = httpx.post(stack.url + "/", json={"inputs": "hi"})
        assert reply.status_code == 404
        assert 'it is at /tgi/: the base URL of this client must end in "/tgi"' in reply.json()["error"]["message"]


def test_tgi_without_a_default_model_names_the_option() -> None:
    with Stack() as stack:
        reply = httpx.post(stack.url + "/tgi/generate", json={"inputs": "hi"})
        assert reply.status_code == 422
        assert "`dialects.tgi.default_model`" in reply.json()["error"]
