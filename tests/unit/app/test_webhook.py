"""Budgets tell an address: signed, tried again, bounded."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.config.money import BudgetWebhook
from gateway.observe import webhook as module
from gateway.observe.webhook import Webhook
from tests.support.harness import Stack, soon, until
from tests.support.standins.serving import Answering, serving
from tests.unit.app.asking import CHAT, key

SECRET = "0123456789abcdef0123456789abcdef"


class Hearing:
    """A server that notes what is posted. It answers with `statuses`, and then with 204."""

    def __init__(self) -> None:
        self.url = ""
        self.heard: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []


@pytest.fixture
def hearing() -> Iterator[Hearing]:
    one = Hearing()

    class Handler(Answering):
        def do_POST(self) -> None:
            one.heard.append((self.named(), self.posted()))
            self.answer(one.statuses.pop(0) if one.statuses else 204)

    with serving(Handler) as origin:
        one.url = f"{origin}/hook"
        yield one


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAITS_S", (0.01, 0.01))


def hook(url: str) -> BudgetWebhook:
    return BudgetWebhook(url=url, secret_env="X").holding({"secret": SECRET})


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://xn--zz/", f"http://{'a' * 64}.x/", "http://a..b/"])
def test_an_address_that_cannot_be_reached_is_reported(url: str) -> None:
    changes: list[tuple[str, str]] = []

    async def send() -> None:
        sender = Webhook(hook(url), lambda *change: changes.append(change))
        for _ in range(3):
            sender.send("budget", {})
        await soon(lambda: len(changes) == 4)

    asyncio.run(send())
    assert [state for state, _ in changes] == ["failing", "lost", "lost", "lost"]


def test_a_share_and_the_end_of_a_budget_are_told_once_and_signed(hearing: Hearing) -> None:
    secret, keys = key("one", team="red")
    config = {
        "models": {"m": {"price": {"request": 1}}},
        "spend": {"currency": "EUR"},
        "budgets": [{"name": "team", "amount": 4, "scope": ["team"], "warn_at": [0.5]}],
        "budget_webhook": {"url": hearing.url, "secret_env": "HOOK"},
        "keys": keys,
    }
    hearing.statuses = [500, 302]
    with Stack(config=config, environ={"HOOK": SECRET}) as stack:
        for _ in range(8):
            headers = {"authorization": f"Bearer {secret}"}
            httpx.post(stack.url + "/v1/chat/completions", json=CHAT, headers=headers, timeout=30)
        until(lambda: len(hearing.heard) == 4)
        assert [line["reason"] for line in stack.events("budget webhook failing")] == ["status 500"]
        assert len(stack.events("budget webhook sending")) == 1
        assert SECRET.encode() not in stack.output.getvalue()
    ids = [headers["webhook-id"] for headers, _ in hearing.heard]
    assert (len(set(ids[:3])), len(set(ids))) == (1, 2), "one that is tried again keeps its id"
    for headers, body in hearing.heard:
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        mac = base64.b64encode(hmac.digest(SECRET.encode(), signed, "sha256")).decode()
        assert headers["webhook-signature"] == f"v1,{mac}"
        assert headers["content-type"] == "application/json"
    told = [json.loads(body) for _, body in hearing.heard]
    assert [one["type"] for one in told[2:]] == ["budget.passed", "budget.spent"]
    data = told[-1]["data"]
    assert (data["budget"], data["of"], data["at"], data["used"], data["amount"]) == (
        "team",
        {"team": "red"},
        1,
        "4",
        "4",
    )


@pytest.mark.parametrize("shadow", [False, True])
def test_every_word_of_a_budget_s_events_says_whether_it_refuses(hearing: Hearing, shadow: bool) -> None:
    config = {
        "models": {"m": {"price": {"request": 1}}},
        "spend": {"currency": "EUR"},
        "budgets": [{"name": "b", "amount": 2, "scope": [], "warn_at": [0.5], "shadow": shadow}],
        "budget_webhook": {"url": hearing.url, "secret_env": "HOOK"},
    }
    with Stack(config=config, environ={"HOOK": SECRET}) as stack:
        answers = [httpx.post(stack.url + "/v1/chat/completions", json=CHAT, timeout=30).status_code for _ in range(4)]
        until(lambda: len(hearing.heard) == 2)
        assert answers == [200, 200, *([200] * 2 if shadow else [429] * 2)]
        other, which = ("budget", "shadow budget") if shadow else ("shadow budget", "budget")
        for what in ("passed", "spent"):
            assert len(stack.events(f"{which} {what}")) == 1
            assert stack.events(f"{other} {what}") == []
    kinds = [json.loads(body)["type"] for _, body in hearing.heard]
    assert kinds == [f"{which.replace(' ', '_')}.{what}" for what in ("passed", "spent")]


async def test_events_that_wait_are_bounded_and_those_lost_are_told(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WAITING", 3)
    changes: list[tuple[str, str]] = []
    one = Webhook(hook(hearing.url), lambda state, why: changes.append((state, why)))
    hearing.statuses = [503] * 3
    for number in range(5):
        one.send("budget.passed", {"number": number})
    await soon(lambda: len(hearing.heard) == 5)
    assert [json.loads(body)["data"]["number"] for _, body in hearing.heard] == [2, 2, 2, 3, 4]
    assert changes == [("lost", "1"), ("lost", "1"), ("failing", "status 503"), ("lost", "1"), ("sending", "")]
    await one.close()


async def test_an_event_that_comes_as_the_sender_ends_is_sent(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Webhook(hook(hearing.url), lambda *_: None)
    closes = httpx.AsyncClient.__aexit__

    async def slowly(client: httpx.AsyncClient, *error: Any) -> None:
        if not late:
            late.append("budget.spent")
            one.send("budget.spent", {})
        await closes(client, *error)

    late: list[str] = []
    monkeypatch.setattr(httpx.AsyncClient, "__aexit__", slowly)
    one.send("budget.passed", {})
    await soon(lambda: len(hearing.heard) == 2)
    assert [json.loads(body)["type"] for _, body in hearing.heard] == ["budget.passed", "budget.spent"]
    await one.close()


async def test_nobody_there_and_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAITS_S", (60.0,))
    changes: list[tuple[str, str]] = []
    one = Webhook(hook("http://127.0.0.1:9/x"), lambda state, why: changes.append((state, why)))
    one.send("budget.passed", {})
    one.send("budget.passed", {})
    await soon(lambda: bool(changes))
    await one.close()
    assert changes == [("failing", "ConnectError"), ("lost", "2")]
