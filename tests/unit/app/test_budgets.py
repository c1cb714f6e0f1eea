"""Budgets, as clients of every dialect meet them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from gateway.core.errors import Kind
from tests.support.clients import DIALECTS, usual
from tests.support.harness import Stack
from tests.unit.app.asking import CHAT, key

SPEND = {"currency": "EUR"}
PRICED = {"m": {"price": {"request": 1}}}
SPENT = [{"name": "week", "amount": 0.5, "per": "week", "scope": ["model"]}]


@pytest.fixture(scope="module")
def spent() -> Iterator[Stack]:
    with Stack(config={"models": PRICED, "spend": SPEND, "budgets": SPENT}) as stack:
        # A request that may cost more than all of it is admitted while nothing of it is spent.
        assert httpx.post(stack.url + "/v1/chat/completions", json=CHAT, timeout=30).status_code == 200
        yield stack


@pytest.mark.parametrize("name", DIALECTS)
def test_a_spent_budget_is_a_429_that_no_client_should_try_again(spent: Stack, name: str) -> None:
    way = usual(name)
    reply = httpx.post(spent.url + way.path("m"), json={**way.body("hello"), "model": "m"}, timeout=30)
    assert reply.status_code == 429
    assert not {"retry-after", "retry-after-ms", "x-amz-retry-after"} & set(reply.headers)
    assert reply.headers["x-should-retry"] == "false"
    assert "the budget 'week' of 0.5 EUR a week is spent; it starts again on" in reply.text
    error = reply.json().get("error")
    if isinstance(error, dict):
        assert DIALECTS[name].errors[Kind.QUOTA][1] == error.get("type", error.get("status"))
    record = spent.record()
    assert (record["limit"], record["code"], record["cost"]) == ("week", "insufficient_quota", 0)


@pytest.mark.parametrize("library", ["openai", "anthropic"])
def test_a_vendors_client_asks_once(spent: Stack, library: str) -> None:
    before = len(spent.records())
    messages: Any = CHAT["messages"]
    if library == "openai":
        with pytest.raises(openai.RateLimitError) as refused:
            openai.OpenAI(base_url=spent.url + "/v1", api_key="none").chat.completions.create(
                model="m", messages=messages
            )
        assert refused.value.code == "insufficient_quota"
    else:
        with pytest.raises(anthropic.RateLimitError):
            anthropic.Anthropic(base_url=spent.url, api_key="none").messages.create(
                model="m", messages=messages, max_tokens=5
            )
    assert len(spent.records()) == before + 1


def test_a_key_has_a_budget_of_its_own_and_warns_once() -> None:
    mine, entry = key("mine", limits={"budget": 3})
    yours, other = key("yours")
    config = {
        "models": PRICED,
        "spend": SPEND,
        "keys": {**entry, **other},
        "budgets": [{"name": "all", "amount": 100, "scope": [], "warn_at": [0.03, 0.5], "shadow": True}],
    }
    with Stack(config=config) as stack:

        def ask(secret: str) -> int:
            headers = {"authorization": f"Bearer {secret}"}
            return httpx.post(stack.url + "/v1/chat/completions", json=CHAT, headers=headers, timeout=30).status_code

        assert [ask(mine) for _ in range(5)] == [200, 200, 200, 429, 429]
        assert ask(yours) == 200
        assert [(one["budget"], one["at"]) for one in stack.events("shadow budget passed")] == [("all", 0.03)]
        assert stack.events("budget passed") == []
        (spent,) = stack.events("budget spent")
        assert (spent["budget"], spent["of"]) == ("budget", {"key": "mine"})
        assert (spent["amount"], spent["used"], spent["left"]) == ("3", "3", "0")
        page = httpx.get(stack.url + "/metrics").text
        assert 'dragoman_budget_passed_total{at="0.03",budget="all",shadow="true"} 1.0' in page
        assert 'dragoman_budget_passed_total{at="0.5",budget="all",shadow="true"} 0.0' in page
        assert 'dragoman_budget_passed_total{at="1",budget="budget",shadow="false"} 1.0' in page


def test_a_budget_that_is_raised_by_a_reload_goes_on() -> None:
    with Stack(config={"models": PRICED, "spend": SPEND, "budgets": [{**SPENT[0], "amount": 2}]}) as stack:

        def ask() -> int:
            return httpx.post(stack.url + "/v1/chat/completions", json=CHAT, timeout=30).status_code

        assert [ask(), ask(), ask()] == [200, 200, 429]
        stack.run(stack.gateway.reload(stack.config({"budgets": [{**SPENT[0], "amount": 3}]})))
        assert [ask(), ask()] == [200, 429]


def test_a_body_that_limits_are_asked_about_before_it_is_read_is_charged() -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": "word " * 20_000}]}
    with Stack(({"max_model_len": 1_000_000},), {"models": PRICED, "spend": SPEND, "budgets": SPENT}) as stack:
        found = [httpx.post(stack.url + "/v1/chat/completions", json=body, timeout=30).status_code for _ in range(2)]
        assert found == [200, 429]
