"""Names by pattern, on a running gateway: requests, lists of models, keys and the readiness page."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.harness import Stack
from tests.unit.app.asking import CHAT, GONE, key

MODELS: dict[str, Any] = {
    "m": {"aliases": ["claude-*", "exact"]},
    "away": {**GONE, "aliases": ["claude-opus*", "gone-*", "exa*"]},
}
MESSAGES = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}


def ask(client: httpx.Client, model: str) -> tuple[int, str]:
    """Asks by OpenAI's chat. Returns the status and the model that the reply names, or its error's code."""
    reply = client.post("/v1/chat/completions", json={**CHAT, "model": model})
    said = reply.json()
    return reply.status_code, said["model"] if reply.status_code == 200 else said["error"]["code"]


def test_a_pattern_serves_what_no_model_is_called() -> None:
    with Stack(config={"models": MODELS}) as stack, httpx.Client(base_url=stack.url) as client:
        assert ask(client, "m")[0] == 200
        assert ask(client, "claude-haiku-4-5")[0] == 200
        record = stack.record()
        assert (record["model"], record["status"]) == ("m", 200)
        assert client.post("/v1/messages", json={**MESSAGES, "model": "claude-sonnet-4-5"}).status_code == 200
        assert ask(client, "claude-opus-4-1")[0] == 503, "its own model has no worker"
        assert stack.record()["model"] == "away"
        assert ask(client, "claudia")[0] == 404
        assert stack.record()["asked"] == "claudia"
        assert ask(client, "claude-" + "x" * 500)[0] == 404
        assert ask(client, "")[0] == 404, "no name is no model"

        assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["away", "m", "exact"]
        card = client.get("/v1/models/claude-haiku-4-5").json()
        assert (card["id"], card["root"]) == ("claude-haiku-4-5", "m")
        assert client.get("/v1/models/exact").json()["root"] == "m", "a name that is written out wins"
        assert ask(client, "exact")[0] == 200
        assert ask(client, "example")[0] == 503
        assert client.get("/v1/models/claudia").status_code == 404
        assert client.get("/readyz?model=claude-x").status_code == 200
        assert client.get("/readyz?model=gone-x").status_code == 503
        assert client.get("/readyz?model=claudia").status_code == 503


def test_a_key_has_names_of_its_own() -> None:
    mine, one = key("mine", aliases={"claude-*": "m", "exact": "m", "away": "exact", "gpt-*": "away"})
    barred, two = key("barred", models=["away"], aliases={"claude-haiku*": "away"})
    others, three = key("others")
    models: dict[str, Any] = {"m": {"aliases": ["claude-opus*", "exact"]}, "away": {**GONE, "aliases": ["claude-*"]}}
    config = {"models": models, "keys": one | two | three}
    with Stack(config=config) as stack:

        def client(secret: str) -> httpx.Client:
            return httpx.Client(base_url=stack.url, headers={"authorization": f"Bearer {secret}"})

        with client(mine) as asking:
            assert [ask(asking, name)[0] for name in ("claude-x", "exact", "away", "m")] == [200] * 4
            assert ask(asking, "gpt-4o")[0] == 503
            assert asking.get("/v1/models/away").json()["root"] == "m"
            assert asking.get("/v1/models/gpt-4o").json()["root"] == "away"
        with client(barred) as asking:
            assert ask(asking, "claude-haiku-4-5")[0] == 503
            assert ask(asking, "claude-opus-4-1")[0] == 404, "m is not for this key"
            assert asking.get("/v1/models/claude-opus-4-1").status_code == 404
        with client(others) as asking:
            assert ask(asking, "claude-x")[0] == 503
            assert ask(asking, "gpt-4o")[0] == 404


@pytest.mark.parametrize("named", ["tgi", "dummy"])
def test_a_placeholder_means_the_default_model_before_a_pattern(named: str) -> None:
    models = {"m": {}, "away": {**GONE, "aliases": ["*"]}}
    config = {"models": models, "dialects": {"openai": {"default_model": "m"}}}
    with Stack(config=config) as stack, httpx.Client(base_url=stack.url) as client:
        assert ask(client, named)[0] == 200
        assert ask(client, "anything")[0] == 503
    with Stack(config={"models": models}) as stack, httpx.Client(base_url=stack.url) as client:
        assert ask(client, named)[0] == 503


def test_a_fallback_is_ready_for_a_name_by_pattern() -> None:
    models = {"m": {}, "away": {**GONE, "aliases": ["claude-*"], "fallback": ["m"]}}
    with Stack(config={"models": models}) as stack, httpx.Client(base_url=stack.url) as client:
        assert ask(client, "claude-x") == (200, "claude-x")
        assert client.get("/v1/models/claude-x").status_code == 200
