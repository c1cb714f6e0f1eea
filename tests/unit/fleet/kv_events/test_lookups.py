"""Prompts that are looked up in what engines have cached."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.harness import Stack, until
from tests.support.simulated.requests import Refused
from tests.support.simulated.tokenizer import encode
from tests.unit.app.asking import key
from tests.unit.fleet.kv_events.publishing import WORDS, WORKER, ask, blocks, chat, heard, listen, send, tokenized

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def test_prompts_are_looked_up_in_each_way_of_asking(stack: Stack) -> None:
    texts = [f"a text: {WORDS * 30}", f"one of ids: {WORDS * 30}"]
    for index, prompt in enumerate((texts[0], encode(texts[1]))):
        before = tokenized(stack)
        body = {"model": "sim", "prompt": prompt, "max_tokens": 2}
        httpx.post(stack.sims[index].url + "/v1/completions", json=body, timeout=60)
        until(heard(stack, index))
        worker, picked = ask(stack, {**body, "model": "m"}, "/v1/completions")
        assert (worker, picked.rpartition("=")[0]) == (stack.sims[index].url, "prefix;why=prefix;matched")
        assert tokenized(stack) - before == 1 - index, "ids are tokens already"
    send(stack, 1, chat("a chat"))
    until(heard(stack, 1))
    for path in ("/anthropic/v1/messages", "/friendli/v1/chat/completions"):
        assert ask(stack, chat("a chat"), path)[0] == stack.sims[1].url, path


@pytest.mark.parametrize(
    "body",
    [
        {**chat("salted"), "cache_salt": "mine"},
        {**chat("short"), "messages": [{"role": "user", "content": "Hi"}]},
        {**chat("image"), "messages": [{"role": "user", "content": [{"type": "text", "text": WORDS * 20}, IMAGE]}]},
    ],
)
def test_what_a_text_does_not_say_is_not_looked_up(stack: Stack, body: dict[str, Any]) -> None:
    assert ask(stack, body)[1].startswith("prefix;")
    assert tokenized(stack) == 0


def test_sessions_are_not_looked_up(stack: Stack) -> None:
    headers = {"x-session-id": "one"}
    reply = httpx.post(stack.url + "/v1/chat/completions", json=chat("one"), headers=headers, timeout=60)
    assert reply.status_code == 200
    assert tokenized(stack) == 0


def test_tenants_are_kept_apart() -> None:
    one, first = key("one", team="a")
    two, second = key("two", team="b")
    salts = {"keys": first | second, "cache_salt": {"secret_env": "SALT"}}
    with Stack((WORKER, WORKER), salts, environ={"SALT": "s" * 40}) as stack:
        listen(stack)
        until(lambda: blocks(stack, 0).live and blocks(stack, 1).live)
        picked = []
        for secret in (one, one, two):
            headers = {"authorization": f"Bearer {secret}", "x-dragoman-explain": "1"}
            reply = httpx.post(stack.url + "/v1/chat/completions", json=chat("mine"), headers=headers, timeout=60)
            assert reply.status_code == 200
            picked.append(reply.headers["x-dragoman-picked"].rpartition("matched=")[2])
            until(heard(stack, 0))
            until(heard(stack, 1))
        assert picked == ["0.00", "1.00;exact", "0.00"]
        assert tokenized(stack) == 3


@pytest.mark.feature("request_policies")
def test_workers_are_asked_with_the_headers_of_policies() -> None:
    policies = {"all": {"headers": {"x-house": "a"}, "system": "Be brief."}}
    with Stack((WORKER, WORKER), {"request_policies": policies}) as stack:
        listen(stack)
        until(lambda: blocks(stack, 0).live and blocks(stack, 1).live)
        ask(stack, chat("one"))
        (question,) = [one for sim in stack.sims for one in sim.ledger.entries if one.path == "/tokenize"]
        assert (question.header("x-house"), b"Be brief." in question.body) == ("a", True)


def test_tokens_that_cannot_be_had_are_done_without(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(worker: Any, body: bytes) -> Any:
        raise Refused(500, "InternalServerError", "no", None)

    monkeypatch.setattr("tests.support.simulated.extras.tokenize", refuse)
    assert ask(stack, chat("one"))[1] == "prefix;why=home;matched=0.00"
    assert tokenized(stack) == 1
    monkeypatch.undo()
    monkeypatch.setattr("gateway.features.kv_events._LONGEST_S", 1e-6)
    assert ask(stack, chat("two"))[1].startswith("prefix;")
