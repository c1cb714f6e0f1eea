"""Request policies, the log of prompts and the cache of replies for requests that come other ways than by a POST:
lines of batches, messages of web sockets, continued responses, rounds of tools, the playground."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.support.standins.web import web
from tests.unit.app.asking import key
from tests.unit.dialects.responses.talking import Talk
from tests.unit.features.console.opened import ENVIRON, LOCAL, SHOWN
from tests.unit.features.prompt_log.logged import written
from tests.unit.kernel.asking import scripted

pytestmark = [
    pytest.mark.feature(one)
    for one in ("batches", "console", "prompt_log", "reply_cache", "request_policies", "sockets", "stored", "web_tools")
]

ANNE, _ANNE = key("anne", team="blue")
BEN, _BEN = key("ben", team="blue")
POLICIES: dict[str, Any] = {
    "team": {"match": {"team": ["blue"]}, "system": "Team.", "caps": {"max_tokens": 300}, "drop": ["stop"]},
    "anne": {
        "match": {"key": ["anne"]},
        "system": "Anne.",
        "caps": {"max_tokens": 200},
        "force": {"seed": 5, "temperature": 0},
        "headers": {"x-of": "anne"},
    },
}
RULED = {"max_tokens": 9000, "stop": ["z"], "seed": 9, "temperature": 1.5, "SEED": 4, "max_completion_tokens": 800}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def stack(server: Server, tmp_path: Path) -> Iterator[Stack]:
    server.command("FLUSHALL")
    with web() as service:
        config = {
            "keys": _ANNE | _BEN,
            "request_policies": POLICIES,
            "redis": {"addresses": [server.address], "timeout_s": 10},
            "batches": {"directory": str(tmp_path / "files")},
            "prompt_log": {"directory": str(tmp_path / "log"), "rules": {"anne": {"match": {"key": ["anne"]}}}},
            "reply_cache": {},
            **LOCAL,
            "console": {"enabled": True, "key_env": "CONSOLE_KEY"},
            "tools": {"web_search": {"url": service.url}},
            "store": {"where": "memory"},
        }
        with Stack(({},), config, environ=ENVIRON) as stack:
            yield stack


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def batched(url: str, body: dict[str, Any]) -> Callable[[Stack, str], None]:
    def send(stack: Stack, secret: str) -> None:
        line = json.dumps({"custom_id": "c", "method": "POST", "url": url, "body": body}).encode()
        with httpx.Client(base_url=stack.url, headers=bearer(secret), timeout=30) as client:
            file = client.post("/v1/files", files={"file": ("a.jsonl", line)}, data={"purpose": "batch"}).json()
            asked = {"input_file_id": file["id"], "endpoint": url, "completion_window": "24h"}
            id_ = client.post("/v1/batches", json=asked).json()["id"]
            until(lambda: client.get(f"/v1/batches/{id_}").json()["status"] == "completed")
            found = client.get(f"/v1/batches/{id_}").json()
            assert found["request_counts"]["completed"] == 1, client.get(
                f"/v1/files/{found['error_file_id']}/content"
            ).text

    return send


def messages(words: str = "hi") -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": words}]}


def anthropic_batch(stack: Stack, secret: str) -> None:
    params = {**messages(), "max_tokens": 9000, "stop_sequences": ["z"], "temperature": 0.9}
    with httpx.Client(base_url=stack.url, headers={"x-api-key": secret}, timeout=30) as client:
        asked = {"requests": [{"custom_id": "c", "params": params}]}
        made = client.post("/v1/messages/batches", json=asked)
        assert made.status_code == 200, made.text
        id_ = made.json()["id"]
        until(lambda: client.get(f"/v1/messages/batches/{id_}").json()["processing_status"] == "ended")
        assert client.get(f"/v1/messages/batches/{id_}").json()["request_counts"]["succeeded"] == 1


def socket(stack: Stack, secret: str) -> None:
    with Talk(stack, **bearer(secret)) as talk:
        first = talk.turn(input="hi", max_output_tokens=9000, stop=["z"], seed=9, temperature=1.5)
        assert first["status"] == "completed", first
        again = talk.turn(input="more", previous_response_id=first["id"], max_output_tokens=9000, temperature=1.5)
        assert again["status"] == "completed", again


def continued(stack: Stack, secret: str) -> None:
    previous: dict[str, Any] = {}
    for stream in (False, True):
        body = {
            "model": "m",
            "input": "hi",
            "max_output_tokens": 9000,
            "stream": stream,
            "temperature": 1.5,
            **previous,
        }
        reply = httpx.post(stack.url + "/v1/responses", json=body, headers=bearer(secret), timeout=30)
        assert reply.status_code == 200, reply.text
        previous = {} if stream else {"previous_response_id": reply.json()["id"]}


def rounds(stack: Stack, secret: str) -> None:
    tool = {"type": "web_search_20250305", "name": "web_search"}
    made = [{"tool_calls": [{"name": "web_search", "arguments": {"query": "a"}}]}, {"text": "It rains."}]
    body = {**messages("Go. " + scripted(rounds=made)), "max_tokens": 9000, "tools": [tool], "stop_sequences": ["z"]}
    reply = httpx.post(stack.url + "/v1/messages", json=body, headers=bearer(secret), timeout=30)
    assert reply.status_code == 200, reply.text


def playground(stack: Stack, secret: str) -> None:
    body = json.dumps({**messages(), **RULED})
    asked = {"path": "/v1/chat/completions", "body": body, "key": secret}
    reply = httpx.post(stack.admin_url + "/console/play", json=asked, headers=SHOWN, timeout=30)
    assert reply.status_code == 200, reply.text
    assert '"status":200' in reply.text.replace(" ", ""), reply.text


WAYS: dict[str, tuple[Callable[[Stack, str], None], int]] = {
    "chat": (batched("/v1/chat/completions", {**messages(), **RULED}), 1),
    "responses": (
        batched("/v1/responses", {"model": "m", "input": "hi", "max_output_tokens": 9000, "temperature": 1.5}),
        1,
    ),
    "completions": (batched("/v1/completions", {"model": "m", "prompt": "hi", **RULED}), 1),
    "anthropic": (anthropic_batch, 1),
    "socket": (socket, 2),
    "continued": (continued, 2),
    "rounds": (rounds, 2),
    "playground": (playground, 1),
}


@pytest.mark.parametrize("way", WAYS)
def test_workers_get_what_the_policies_of_the_key_say(stack: Stack, way: str) -> None:
    send, count = WAYS[way]
    for secret, system, most in ((ANNE, "Anne.", 200), (BEN, "Team.", 300)):
        stack.sim.ledger.forget()
        send(stack, secret)
        entries = stack.sim.entries
        assert len(entries) == count
        for entry in entries:
            body = json.loads(entry.body)
            assert body.get("max_tokens", 0) <= most, body
            assert "max_completion_tokens" not in body
            assert "stop" not in body, body
            assert entry.header("x-of") == ("anne" if secret is ANNE else None)
            if secret is ANNE:
                assert (body["seed"], body["temperature"], "SEED" in body) == (5, 0, False), body
            if way != "completions":
                assert [json.dumps(body["messages"]).count(one) for one in ("Anne.", "Team.")] == [
                    int(system == one) for one in ("Anne.", "Team.")
                ], body


@pytest.mark.parametrize("way", WAYS)
def test_the_log_has_one_line_for_each_request_of_the_key(stack: Stack, way: str, tmp_path: Path) -> None:
    send, _ = WAYS[way]
    send(stack, BEN)
    send(stack, ANNE)
    asked = [one for one in stack.records() if one["key"] == "anne" and one["model"]]
    found = written(stack, tmp_path / "log")
    assert [one["id"] for one in found] == [one["id"] for one in asked]
    for line in found:
        texts = [one["text"] for one in line["prompt"]["texts"]]
        assert texts.count("Anne.") == (way != "completions"), texts
        assert line["reply"]["complete"], line
        assert not any(secret in json.dumps(line) for secret in (ANNE, BEN))


@pytest.mark.parametrize("way", [way for way in WAYS if way != "rounds"])
def test_no_reply_from_memory_is_another_keys_or_an_earlier_policys(stack: Stack, way: str) -> None:
    send, count = WAYS[way]

    def asked(secret: str) -> int:
        stack.sim.ledger.forget()
        send(stack, secret)
        return len(stack.sim.entries)

    sections = stack.sections
    policies = {**POLICIES, "team": {**POLICIES["team"], "force": {"temperature": 0}}}
    stack.run(stack.gateway.reload(stack.config({**sections, "request_policies": policies})))
    assert asked(ANNE) == count
    assert asked(ANNE) < count
    assert asked(BEN) == count, "a key of the same team with another policy"
    policies["anne"] = {**POLICIES["anne"], "system": "Later.", "caps": {"max_tokens": 190}}
    stack.run(stack.gateway.reload(stack.config({**sections, "request_policies": policies})))
    assert asked(ANNE) == count
