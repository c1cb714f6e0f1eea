"""Laws 6 and 11 to 17: names of models and what is known of them, options, thinking, embeddings."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import httpx
import pytest

from gateway import backends
from gateway.core.messages import Complete, ModelCard
from gateway.core.ports import Capabilities
from gateway.dialects.ollama.models import capabilities
from gateway.translation.offline import Refused, send
from tests.support.harness import Stack
from tests.unit.app.asking import FORGOTTEN, key
from tests.unit.dialects.ollama.asking import DIALECT, PNG, TOOL, body, crossing, heard, lines, scripted, sent
from tests.unit.dialects.ollama.posted import METRICS, PROMPT_METRICS, refused, streamed, whole


def test_law_6_m_and_m_latest_are_one_model(client: httpx.Client) -> None:
    for path in ("/api/chat", "/ollama/api/chat"):
        assert whole(client, path, body(model="m:latest"))["model"] == "m:latest"
    assert client.post("/api/show", json={"model": "m:latest"}).status_code == 200
    assert client.post("/api/show", json={"name": "m"}).status_code == 200


def test_law_6_a_model_configured_as_latest_is_found_without() -> None:
    config = {"models": {"m": {"aliases": ["q:latest"]}}}
    with Stack(config=config) as stack, httpx.Client(base_url=stack.url) as client:
        for name in ("q", "q:latest"):
            assert whole(client, "/api/chat", body(model=name))["model"] == name


def test_law_6_what_is_listed_can_be_shown_and_asked() -> None:
    secret, keys = key("app", models=["m", "e"])
    workers = ["http://127.0.0.1:10"]  # a list of its own: no YAML alias, which the configuration refuses
    models = {"m": {}, "e": {**FORGOTTEN, "workers": workers, "features": ["embeddings"]}, "secret": FORGOTTEN}
    config = {"auth": "keys", "keys": keys, "models": models}
    with (
        Stack(config=config) as stack,
        httpx.Client(base_url=stack.url, headers={"authorization": f"Bearer {secret}"}) as client,
    ):
        listed = client.get("/api/tags").json()["models"]
        assert {card["model"] for card in listed} >= {"m", "e"}
        assert all(card["name"] == card["model"] and card["digest"] for card in listed)
        for card in listed:
            shown = client.post("/api/show", json={"model": card["model"]})
            assert shown.status_code == 200
            assert shown.json()["model_info"]["general.basename"] == card["model"]
            assert shown.json()["capabilities"] == card["capabilities"]
        assert {card["model"]: card["capabilities"] for card in listed}["e"] == ["embedding"]
        assert "secret" not in [card["model"] for card in listed]
        for path in ("/api/show", "/api/chat", "/api/pull"):
            assert (
                refused(client, path, body(model="secret"), 404)
                == "model 'secret' not found; GET /api/tags lists the models that you may use"
            )
        assert {card["model"] for card in client.get("/api/ps").json()["models"]} == {"m", "alias"}
        assert client.get("/api/tags", headers={"authorization": "Bearer x"}).status_code == 401


@pytest.mark.parametrize("keep_alive", [None, "5m", -1, 0, "0", "0s"])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_law_11_nothing_to_say_asks_no_worker(stack: Stack, client: httpx.Client, path: str, keep_alive: Any) -> None:
    before = len(stack.sim.entries)
    asked: dict[str, Any] = {"model": "m:latest", "keep_alive": keep_alive}
    empty: dict[str, Any] = {"messages": []} if path == "/api/chat" else {"prompt": ""}
    for stream in ({}, {"stream": False}):
        for members in ({}, empty):
            (line,) = lines(client.post(path, json={**asked, **stream, **members}).text)
            assert line["done"] is True
            assert line["done_reason"] == ("unload" if keep_alive in (0, "0", "0s") else "load")
            assert line["model"] == "m:latest"
            assert set(line) >= METRICS
    assert len(stack.sim.entries) == before
    assert (
        refused(client, path, {"model": "none"}, 404)
        == "model 'none' not found; GET /api/tags lists the models that you may use"
    )
    assert refused(client, path, {}) == "model is required"


def test_law_12_what_a_runner_decides_changes_nothing() -> None:
    runner = {"num_ctx": 10**9, "num_gpu": 1, "num_batch": 4, "use_mmap": True, "mirostat": 2, "num_keep": 4}
    assert sent(options=runner, keep_alive="5m") == sent()
    assert sent(options={"num_ctx": "many"}, keep_alive=[1]) == sent()


@pytest.mark.parametrize(
    ("option", "value", "name", "told"),
    [
        ("num_predict", 5, "max_tokens", 5),
        ("num_predict", -1, "max_tokens", None),
        ("num_predict", -2, "max_tokens", None),
        ("num_predict", 0, "max_tokens", None),
        ("seed", 7, "seed", 7),
        ("seed", -1, "seed", None),
        ("repeat_penalty", 1.1, "repetition_penalty", 1.1),
        ("top_k", 40.0, "top_k", 40),
        ("stop", "END", "stop", ["END"]),
        ("stop", ["A", "B"], "stop", ["A", "B"]),
        ("stop", [], "stop", None),
    ],
)
def test_options_by_their_names(option: str, value: Any, name: str, told: Any) -> None:
    assert sent(options={option: value}).get(name) == told


def test_no_option_is_filled_in() -> None:
    assert set(sent(stream=False)) == {"model", "messages"}


@pytest.mark.parametrize("members", [{"context": [1]}, {"template": "{{ .Prompt }}"}, {"raw": True, "system": "s"}])
def test_law_13_what_would_be_lost_is_refused(client: httpx.Client, members: dict[str, Any]) -> None:
    text = refused(client, "/api/generate", {"model": "m", "prompt": "hi", **members})
    assert next(iter(members)) in text


def test_law_13_what_is_empty_is_not() -> None:
    plain = sent(route="generate", prompt="hi")
    assert sent(route="generate", prompt="hi", context=[], template="", system="", raw=False) == plain


def test_generations_are_chats_unless_raw() -> None:
    first = sent(route="generate", prompt="p", system="s", images=[PNG])["messages"][0]
    assert first == {"role": "system", "content": "s"}
    assert crossing(route="generate", prompt="p").outgoing.path == "/v1/chat/completions"
    raw = crossing(route="generate", prompt="p", raw=True)
    assert isinstance(raw.op, Complete)
    assert raw.outgoing.path == "/v1/completions"
    fill = sent(route="generate", prompt="a", suffix="b")
    assert (fill["prompt"], fill["suffix"]) == ("a", "b")


def test_a_generation_is_answered_in_its_own_form(client: httpx.Client) -> None:
    asked = {"model": "m", "prompt": "sim:" + json.dumps({"text": "Hello there", "reasoning": "hm"})}
    found = streamed(client, "/api/generate", asked)
    assert "".join(line["response"] for line in found) == "Hello there"
    assert "".join(line.get("thinking", "") for line in found) == "hm"
    assert found[-1]["context"] == []
    reply = whole(client, "/api/generate", asked)
    assert (reply["response"], reply["thinking"], reply["context"]) == ("Hello there", "hm", [])
    assert "message" not in reply


PLAIN = Capabilities("w", features=frozenset({"tools"}))


def test_law_14_thinking_is_asked_for_or_not(client: httpx.Client) -> None:
    assert sent(think=False)["reasoning_effort"] == "none"
    efforts = {True: "medium", "low": "low", "high": "high", "max": "high"}
    assert {word: sent(think=word)["reasoning_effort"] for word in efforts} == efforts
    assert "reasoning_effort" not in sent()
    asked = {**scripted(text="Hello", reasoning="hm"), "think": False}
    assert "thinking" not in json.dumps(streamed(client, "/api/chat", asked))
    assert "thinking" not in whole(client, "/api/chat", asked)["message"]
    assert heard(streamed(client, "/api/chat", asked))["content"] == "Hello"


def test_law_14_a_model_that_cannot_think() -> None:
    assert "reasoning_effort" not in sent(can=PLAIN, think=False)
    assert sent("tgi", think=False)
    with pytest.raises(Refused) as caught:
        sent(can=PLAIN, think=True)
    assert json.loads(caught.value.response.body)["error"] == '"m" does not support thinking'
    with pytest.raises(Refused) as caught:
        sent(can=Capabilities("w", features=frozenset()), tools=[TOOL])
    assert json.loads(caught.value.response.body)["error"] == '"m" does not support tools'


@pytest.mark.parametrize("prefix", ["", "/ollama"])
def test_law_15_version_and_probes(client: httpx.Client, prefix: str) -> None:
    version = client.get(prefix + "/api/version").json()["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert tuple(map(int, version.split("."))) >= (0, 13, 4)
    assert client.get(prefix + "/").text == "Ollama is running"
    for path in ("/", "/api/version", "/api/tags"):
        probe = client.head(prefix + path)
        assert (probe.status_code, probe.content) == (200, b"")


def test_law_15_a_card_has_what_clients_read() -> None:
    with Stack(config={"models": {"m": {"max_context": 8192, "features": ["tools", "reasoning"]}}}) as stack:
        shown = httpx.post(stack.url + "/api/show", json={"model": "m"}).json()
    assert shown["model_info"]["general.basename"] == "m"
    assert shown["model_info"][shown["model_info"]["general.architecture"] + ".context_length"] == 8192
    assert shown["capabilities"] == ["completion", "tools", "thinking"]


@pytest.mark.parametrize(
    ("features", "lacks", "listed"),
    [
        (None, [], ["completion", "tools"]),
        (None, ["tools", "vision"], ["completion"]),
        (["tools", "vision"], ["tools"], ["completion", "vision"]),
        (["embeddings"], ["tools"], ["embedding"]),
    ],
)
def test_a_card_lists_nothing_that_a_worker_lacks(
    features: list[str] | None, lacks: list[str], listed: list[str]
) -> None:
    declared = None if features is None else frozenset(features)
    assert capabilities(ModelCard("m", 1, True, features=declared, lacks=frozenset(lacks))) == listed


def test_what_is_served_is_pulled_and_nothing_is_managed(client: httpx.Client) -> None:
    assert lines(client.post("/api/pull", json={"model": "m", "stream": True}).text) == [{"status": "success"}]
    assert (
        refused(client, "/api/pull", {"name": "none"}, 404)
        == "model 'none' not found; GET /api/tags lists the models that you may use"
    )
    for path in ("push", "create", "copy", "blobs/sha256:00"):
        assert "is not possible here" in refused(client, f"/api/{path}", {"model": "m"}, 403)
    assert client.request("DELETE", "/api/delete", json={"model": "m"}).status_code == 403


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
def test_law_16_every_media_type_is_json(client: httpx.Client, kind: str | None) -> None:
    headers = {"content-type": kind} if kind is not None else {}
    reply = client.post("/api/chat", content=json.dumps(body(stream=False)), headers=headers)
    assert reply.status_code == 200, reply.text


def test_law_17_embeddings_keep_their_order_and_have_norm_1(client: httpx.Client) -> None:
    reply = whole(client, "/api/embed", {"model": "m", "input": ["a", "b", "a"]})
    one, two, three = reply["embeddings"]
    assert one == pytest.approx(three)
    assert one != pytest.approx(two)
    assert [math.hypot(*vector) for vector in (one, two)] == pytest.approx([1, 1])
    assert reply["total_duration"] > 0
    assert reply["load_duration"] == 0
    assert reply["prompt_eval_count"] > 0
    alone = whole(client, "/api/embed", {"model": "m", "input": "b", "options": {"num_ctx": None}})
    assert alone["embeddings"][0] == pytest.approx(two)
    plain = client.post("/v1/embeddings", json={"model": "m", "input": "b"}).json()["data"][0]["embedding"]
    assert whole(client, "/api/embeddings", {"model": "m", "prompt": "b"}) == {"embedding": plain}


def test_law_17_no_input_no_vectors(client: httpx.Client) -> None:
    empty = whole(client, "/api/embed", {"model": "m", "input": []})
    assert empty == {"model": "m", "embeddings": [], **dict.fromkeys(PROMPT_METRICS, 0)}
    assert whole(client, "/api/embeddings", {"model": "m", "prompt": ""}) == {"embedding": []}
    assert refused(client, "/api/embed", {"model": "m", "input": 5}) == "invalid input type"
    assert "at most 2048" in refused(client, "/api/embed", {"model": "m", "input": ["a"] * 2049})


def test_an_input_that_is_too_long_is_cut_unless_that_is_refused() -> None:
    assert sent(route="embed", input="x")["truncate_prompt_tokens"] == -1
    assert "truncate_prompt_tokens" not in sent(route="embed", input="x", truncate=False)
    assert "truncate_prompt_tokens" not in sent("llamacpp", route="embed", input="x")


def test_what_asks_no_worker_is_not_translated() -> None:
    with pytest.raises(ValueError, match="no worker is asked"):
        send(DIALECT, backends.create("vllm"), b'{"model":"m","messages":[]}', Capabilities("w"))
