"""The laws of Azure OpenAI's paths, by their numbers in the notes on its recorded clients: what they send, and what
they must be answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.harness import Stack
from tests.unit.dialects.asking import keyed

LAWS = 12
"""How many there are: tests/repo looks for a test of each."""

HI = [{"role": "user", "content": "hi"}]
CHAT: dict[str, Any] = {"messages": HI, "max_tokens": 5}
TEXT: dict[str, Any] = {"prompt": "hi", "max_tokens": 5}
EMBED: dict[str, Any] = {"input": "hi"}
ODD = "org/dep-1"
VERSION = "?api-version=2024-10-21"
SIM = {"backend": "vllm", "upstream_model": "sim"}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    models = {"m": {"aliases": [ODD, "dep.1", "größe"]}}
    with Stack(config={"models": models, "breaker": {"failures": 10_000}}) as found:
        yield found


def model_of(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    return str(reply.json()["model"])


# -- 1 and 2: paths ---------------------------------------------------------------------------------------------------

RECORDED = [
    (f"/openai/deployments/dep.1/chat/completions{VERSION}", {**CHAT, "model": "dep.1"}),
    (f"/openai/deployments/dep.1/completions{VERSION}", {**TEXT, "model": "dep.1"}),
    (f"/openai/deployments/dep.1/embeddings{VERSION}", {**EMBED, "encoding_format": "base64"}),
    (f"/openai/deployments/dep.1/chat/completions{VERSION}", {**CHAT, "model": None, "stream": False}),
    ("/openai/v1/deployments/dep.1/chat/completions?api-version=preview", {**CHAT, "model": "dep.1"}),
    ("/openai/v1/deployments/dep.1/completions?api-version=preview", TEXT),
    ("/openai/v1/deployments/dep.1/embeddings?api-version=preview", EMBED),
    ("/openai/v1/chat/completions", {**CHAT, "model": "dep.1"}),
    ("/openai/v1/embeddings?api-version=preview", {**EMBED, "model": "dep.1"}),
    ("/openai/chat/completions", {**CHAT, "model": "dep.1"}),
    ("/openai/completions", {**TEXT, "model": "dep.1"}),
    ("/openai/embeddings", {**EMBED, "model": "dep.1"}),
    ("/openai/deployments/dep.1/chat/completions?api-version=2024-05-01-preview", CHAT),
    ("/openai/deployments/dep.1/chat/completions", {**CHAT, "model": "dep.1"}),
]


@pytest.mark.parametrize(("path", "body"), RECORDED)
def test_law_1_every_recorded_request_reaches_its_operation_and_model(
    client: httpx.Client, stack: Stack, path: str, body: dict[str, Any]
) -> None:
    reply = client.post(path, json=body)
    assert model_of(reply) == "dep.1"
    kind = {"messages": "chat.completion", "prompt": "text_completion", "input": "list"}
    assert reply.json()["object"] == next(word for name, word in kind.items() if name in body)
    assert stack.records()[-1]["model"] == "m"


@pytest.mark.parametrize("path", ["/openai/models", "/openai/v1/models"])
def test_law_1_models_are_listed_under_both_prefixes(client: httpx.Client, path: str) -> None:
    names = [card["id"] for card in client.get(path + VERSION).json()["data"]]
    assert {"m", ODD} <= set(names)
    assert client.get(f"{path}/dep.1{VERSION}").json()["id"] == "dep.1"


@pytest.mark.parametrize(
    "path",
    [
        "/openai/deployments/m/extensions/chat/completions",
        "/openai/deployments",
        "/openai/deployments/m",
        "/openai/v1//openai/v1/chat/completions",
    ],
)
def test_law_1_what_was_withdrawn_is_not_there(client: httpx.Client, path: str) -> None:
    assert client.post(path, json=CHAT).status_code == 404


def test_law_2_a_name_is_one_segment_encoded_once(client: httpx.Client) -> None:
    assert model_of(client.post(f"/openai/deployments/org%2Fdep-1/chat/completions{VERSION}", json=CHAT)) == ODD
    assert model_of(client.post(f"/openai/deployments/gr%C3%B6%C3%9Fe/completions{VERSION}", json=TEXT)) == "größe"
    assert client.post("/openai/deployments/org/dep-1/chat/completions", json=CHAT).status_code == 404
    twice = client.post("/openai/deployments/org%252Fdep-1/chat/completions", json=CHAT)
    assert twice.json()["error"]["code"] == "DeploymentNotFound"
    unknown = client.post("/openai/deployments/org%2Fdep%201/chat/completions", json=CHAT)
    assert "'org/dep 1'" in unknown.json()["error"]["message"]


# -- 3 to 6: names, versions, replies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["none", "", None, "m", ["x"]])
def test_law_3_the_paths_name_wins(client: httpx.Client, model: Any) -> None:
    body = {**CHAT, "model": model}
    assert model_of(client.post(f"/openai/deployments/dep.1/chat/completions{VERSION}", json=body)) == "dep.1"
    refused = client.post(f"/openai/deployments/none/chat/completions{VERSION}", json=body)
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "DeploymentNotFound"


def test_law_3_a_blank_name_leaves_it_to_the_body(client: httpx.Client) -> None:
    reply = client.post("/openai/deployments/%20/chat/completions", json={**CHAT, "model": "dep.1"})
    assert model_of(reply) == "dep.1"


@pytest.mark.parametrize("query", ["", "?api-version=preview", "?api-version=v1", "?api-version=1&api-version=2", "?x"])
def test_law_4_no_version_matters(client: httpx.Client, query: str) -> None:
    assert model_of(client.post("/openai/deployments/m/chat/completions" + query, json=CHAT)) == "m"


@pytest.mark.parametrize("members", [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}])
def test_law_5_and_6_the_reply_is_openais_and_no_chunk_is_empty(client: httpx.Client, members: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": 'sim:{"text":"Hello there","reasoning":"hm"}'}]

    def answer(path: str) -> list[Any]:
        reply = client.post(path, json={"model": "m", "messages": messages, **members})
        assert "content_filter" not in reply.text
        texts = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
        found = [json.loads(text) for text in texts if text != "[DONE]"]
        for one in found:
            assert one.pop("id")
            del one["created"]
        return found

    chunks = answer(f"/openai/deployments/m/chat/completions{VERSION}")
    assert all(chunk["choices"] for chunk in chunks[:-1])
    assert bool(chunks[-1]["choices"]) is ("stream_options" not in members)
    assert chunks == answer("/v1/chat/completions")


# -- 7 to 12: keys, refusals, records ---------------------------------------------------------------------------------


def test_law_7_a_key_in_any_of_its_headers_and_a_bad_one_is_a_401() -> None:
    key, config = keyed()
    path = f"/openai/deployments/m/chat/completions{VERSION}"
    with Stack(config=config) as stack, httpx.Client(base_url=stack.url) as client:
        for headers in (
            {"api-key": key},
            {"authorization": f"Bearer {key}"},
            {"ocp-apim-subscription-key": key},
            {"api-key": key, "authorization": f"Bearer {key}"},
            {"api-key": key, "authorization": "Bearer"},
        ):
            assert client.post(path, json=CHAT, headers=headers).status_code == 200, list(headers)
        for headers in ({"api-key": "wrong"}, {}, {"api-key": key, "authorization": "Bearer other"}):
            refused = client.post(path, json=CHAT, headers=headers)
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "401"
            assert key not in refused.text


@pytest.mark.parametrize("name", ["data_sources", "dataSources", "enhancements"])
def test_law_8_azures_own_retrieval_is_refused(client: httpx.Client, name: str) -> None:
    refused = client.post(f"/openai/deployments/m/chat/completions{VERSION}", json={**CHAT, name: [{"type": "x"}]})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == name
    assert name in refused.json()["error"]["message"]


def test_law_9_a_limit_says_when_to_come_back() -> None:
    limits = [{"name": "daily", "kind": "requests", "limit": 1, "per_s": "24h", "scope": []}]
    with Stack(config={"limits": limits}) as stack, httpx.Client(base_url=stack.url) as client:
        path = f"/openai/deployments/m/chat/completions{VERSION}"
        assert client.post(path, json=CHAT).status_code == 200
        refused = client.post(path, json=CHAT)
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 120
        assert 1 <= int(refused.headers["retry-after-ms"]) <= 120_000


def test_law_10_a_keys_models_hold_for_names_in_the_path() -> None:
    key, config = keyed(models=["m"])
    config["models"] = {"m": {}, "other": {**SIM, "workers": ["http://127.0.0.1:9"]}}
    with Stack(config=config) as stack, httpx.Client(base_url=stack.url, headers={"api-key": key}) as client:
        for deployment, body in (("other", {}), ("other", {"model": "m"})):
            refused = client.post(f"/openai/deployments/{deployment}/chat/completions", json={**CHAT, **body})
            assert refused.status_code == 404
        assert "other" not in [card["id"] for card in client.get("/openai/models").json()["data"]]
        assert client.get("/openai/models/other").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/openai/deployments/m/chat/completions", 405),
        ("DELETE", "/openai/models", 405),
        ("POST", "/openai/deployments/m/images/descriptions", 404),
        ("GET", "/openai", 404),
        ("GET", "/openai/", 404),
    ],
)
def test_law_11_errors_are_json(client: httpx.Client, method: str, path: str, status: int) -> None:
    refused = client.request(method, path)
    assert refused.status_code == status
    assert refused.json()["error"]["message"]


def test_law_12_what_is_recorded_is_the_models_own_name(client: httpx.Client, stack: Stack) -> None:
    client.post("/openai/deployments/org%2Fdep-1/chat/completions", json=CHAT)
    assert (stack.records()[-1]["model"], stack.records()[-1]["dialect"]) == ("m", "azure_openai")
    client.post("/openai/deployments/evil%22%7D/chat/completions", json=CHAT)
    assert stack.records()[-1]["model"] == ""
    assert "evil" not in httpx.get(stack.url + "/metrics").text


def test_replies_carry_the_ids_that_clients_log(client: httpx.Client) -> None:
    path = f"/openai/deployments/m/chat/completions{VERSION}"
    for body in (CHAT, {**CHAT, "stream": True}, {}):
        reply = client.post(path, json=body, headers={"x-ms-client-request-id": "mine"})
        assert reply.headers["apim-request-id"] == reply.headers["x-request-id"]
        assert reply.headers["x-ms-client-request-id"] == "mine"
    assert "x-ms-client-request-id" not in client.post(path, json=CHAT).headers
    long = client.post(path, json=CHAT, headers={"x-ms-client-request-id": "x" * 129})
    assert "x-ms-client-request-id" not in long.headers
