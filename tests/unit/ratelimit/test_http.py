"""Limits before requests: what is refused and how it is said, whom a limit counts, what survives a reload."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Limit
from gateway.core.errors import Kind
from gateway.core.estimate import Cost
from gateway.core.money import Rates
from gateway.core.usage import Usage
from gateway.features.limits import Limits as Charging
from gateway.ratelimit import Limits, Subject, rules
from gateway.ratelimit.addresses import client_address
from gateway.ratelimit.http import duration
from gateway.ratelimit.kinds import KINDS
from tests.repo.tree import ROOT
from tests.support.clients import CHAT, DIALECTS, REQUESTS, WAYS, Way
from tests.support.harness import Stack, load_text
from tests.unit.ratelimit.asking import DEFAULTS, OPENAI, ask, limiter_of, made, standing


@pytest.fixture(scope="module")
def limited() -> Iterator[tuple[Stack, dict[str, str]]]:
    keys, entries = {}, {}
    for name in REQUESTS:
        keys[name], entry = made(name, team="red", limits={"requests": 1, "tokens": 5000, "concurrency": 2})
        entries.update(entry)
    keys["free"], entry = made("free")
    with Stack(({"itl_ms": 1},), {**DEFAULTS, "keys": {**entries, **entry}}) as stack:
        yield stack, keys


def test_a_refusal_by_tokens_says_what_is_reserved_and_what_makes_it_less() -> None:
    limit = {"name": "tokens", "kind": "tokens", "limit": 1000}
    with Stack(config={"limits": [limit], "models": {"m": {"max_context": 4000}}}) as stack:
        assert ask(stack, max_tokens=5).status_code == 200
        refused = ask(stack, max_tokens=None)
        assert refused.status_code == 429
        said = refused.json()["error"]["message"]
        assert " left and this request reserves 1000; try again in " in said
        assert said.endswith(" s; a smaller cap on its output (such as max_tokens) reserves less")
        assert ask(stack, max_tokens=5).status_code == 200


HINTED: dict[str, dict[str, Any]] = {
    "tokens": {"limits": [{"name": "tpm", "kind": "tokens", "limit": 1000, "scope": []}]},
    "cost": {
        "spend": {"currency": "EUR"},
        "models": {"m": {"price": {"input": 1000, "output": 1000}}},
        "budgets": [{"name": "money", "amount": 1, "scope": []}],
    },
}


@pytest.mark.parametrize("kind", HINTED)
def test_a_refusal_names_the_part_of_the_request_that_is_too_large(kind: str) -> None:
    config = {**DEFAULTS, **HINTED[kind], "limiter": {"reserve": "maximum"}}
    with Stack(({"max_model_len": 100_000},), config) as stack:

        def refused(words: int, cap: int) -> str:
            messages = [{"role": "user", "content": "word " * words}]
            reply = ask(stack, messages=messages, max_tokens=cap)
            assert reply.status_code == 429
            return str(reply.json()["error"]["message"])

        assert ask(stack, messages=[{"role": "user", "content": "word " * 300}], max_tokens=5).status_code == 200
        long = refused(600, 16)
        assert long.endswith("; a shorter prompt reserves less")
        capped = refused(5, 990)
        assert capped.endswith("; a smaller cap on its output (such as max_tokens) reserves less")
        assert "this request reserves " in long
        assert "this request reserves " in capped
        assert "may cost" not in long + capped


@given(st.integers(0, 2000), st.integers(0, 2000), st.integers(1, 3), st.integers(0, 2000), st.integers(0, 500))
def test_an_advice_helps(prompt: int, each: int, choices: int, left: int, request: int) -> None:
    """For tokens, and for money with a price of the request itself."""
    cost = Cost(prompt + choices * each, prompt=prompt, choices=choices, each=each)
    rates = Rates(input=2_000_000, output=3_000_000, request=request)
    for kind, asked in ((KINDS["tokens"], cost), (KINDS["cost"], cost.priced(rates))):
        one = Cost(prompt + choices, prompt=prompt, choices=choices, each=1)
        bare = Cost(choices * min(each, 1), choices=choices, each=min(each, 1))
        helps = [kind.reserves(smaller.priced(rates)) <= left for smaller in (one, bare)]
        advice = kind.advice(asked, left)
        if "cap" in advice:
            assert helps[0]
            assert each > 1
        elif "prompt" in advice:
            assert helps[1]
            assert prompt
        elif left and kind.reserves(asked) > left:
            assert not (helps[0] and each > 1), "nothing helps"


@pytest.mark.parametrize("dialect", REQUESTS)
def test_a_refusal_says_which_limit_how_much_is_left_and_when(
    limited: tuple[Stack, dict[str, str]], dialect: str
) -> None:
    stack, keys = limited
    good = ask(stack, keys[dialect], dialect)
    assert good.status_code == 200
    assert good.headers["x-ratelimit-limit-requests"] == "1"
    assert good.headers["x-ratelimit-remaining-requests"] == "0"
    assert good.headers["x-ratelimit-limit-tokens"] == "5000"
    assert "retry-after" not in good.headers
    before = stack.sim.ledger.received
    bad = ask(stack, keys[dialect], dialect)
    assert bad.status_code == 429
    assert "limit 'requests' reached: 1 requests a minute, 0 left; try again in " in bad.text
    assert 1 <= int(bad.headers["retry-after"]) <= 61, "a window and a slice of it"
    assert 0 < int(bad.headers["retry-after-ms"]) <= 60_600
    assert bad.headers["x-ratelimit-remaining-requests"] == "0"
    assert bad.headers["x-ratelimit-reset-requests"].endswith("s")
    assert ("x-amz-retry-after" in bad.headers) == (dialect == "sagemaker")
    assert stack.sim.ledger.received == before
    record = stack.records()[-1]
    assert (record["limit"], record["code"], record["outcome"]) == ("requests", "rate_limit_exceeded", "refused")
    if dialect == "sagemaker":
        assert bad.headers["x-amzn-errortype"] == "ThrottlingException"
    elif dialect == "azure_inference":
        assert bad.headers["x-ms-error-code"] == "rate_limit_exceeded"
    else:
        assert "rate_limit_exceeded" in bad.text


def test_a_key_without_limits_is_told_nothing(limited: tuple[Stack, dict[str, str]]) -> None:
    stack, keys = limited
    assert not [name for name in ask(stack, keys["free"]).headers if name.startswith("x-ratelimit")]


def test_a_stream_is_told_as_well_and_gives_its_slot_back_before_it_ends() -> None:
    key, keys = made("a", limits={"requests": 100, "concurrency": 1})
    with Stack(({"itl_ms": 1},), {"keys": keys}) as stack, httpx.Client() as client:
        for left in range(99, 79, -1):
            reply = client.post(
                stack.url + OPENAI, headers={"api-key": key}, json={"model": "m", **CHAT, "stream": True}
            )
            assert reply.status_code == 200, reply.text
            assert reply.headers["x-ratelimit-remaining-requests"] == str(left)
        assert limiter_of(stack).in_flight == 0


def test_a_request_that_can_never_fit_is_not_to_be_sent_again() -> None:
    limits = [{"name": "small", "kind": "tokens", "limit": 10, "scope": []}]
    with Stack(({},), {"limits": limits}) as stack:
        ids = {"model": "m", "prompt": [1] * 20, "max_tokens": 1}
        reply = httpx.post(stack.url + "/v1/completions", json=ids)
        assert (reply.status_code, reply.headers["x-should-retry"]) == (429, "false")
        assert "retry-after" not in reply.headers
        assert "at least 20 tokens" in reply.text
        assert ask(stack, max_tokens=5000).status_code == 200, "a cap above the limit still admits a call"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, b"0s"),
        (0.0204, b"20ms"),
        (1, b"1s"),
        (1.5, b"1.500s"),
        (59.9996, b"1m0s"),
        (360, b"6m0s"),
        (3661.25, b"1h1m1.250s"),
    ],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: bytes) -> None:
    assert duration(round(seconds * 1000)) == text


def test_limits_of_a_key_come_before_the_general_ones() -> None:
    text = """
    models: {m: {backend: vllm, workers: ["http://127.0.0.1:1"], aliases: [other]}}
    keys: {a: {hash: "sha256:%s", limits: {requests: 7}}}
    limits: [{name: requests, kind: requests, limit: 3, match: {model: [other]}}]
    """
    first, second = rules(load_text(text % ("0" * 64)))
    assert first == Limit(name="requests", kind="requests", limit=7, match={"key": ("a",)}, reserve="expected")
    assert second.match == {"model": ("m",)}


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        ("10.0.0.1", b"6.6.6.6, 1.2.3.4", "1.2.3.4"),
        ("10.0.0.1", b"1.2.3.4, 10.0.0.2", "1.2.3.4"),
        ("10.0.0.1", b"nonsense, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", b"2001:db8::1", "2001:db8::1"),
        ("10.0.0.1", b"6.6.6.6, 1.2.3.4:4711", "1.2.3.4"),
        ("10.0.0.1", b"[2001:db8::1]:4711, [::ffff:10.0.0.3]:80, 10.0.0.2:1", "2001:db8::1"),
        ("10.0.0.1", b"1.2.3.4:5:6", "10.0.0.1"),
        ("10.0.0.1", b"", "10.0.0.1"),
        ("::ffff:10.0.0.1", b"1.2.3.4", "1.2.3.4"),
        ("9.9.9.9", b"1.2.3.4", "9.9.9.9"),
        ("::ffff:9.9.9.9", b"", "9.9.9.9"),
        ("10.0.0.1", b"::ffff:1.2.3.4", "1.2.3.4"),
        ("10.0.0.1", b"unknown", None),
        ("10.0.0.1", b"1.2.3.4, Unknown, 10.0.0.2", None),
        ("10.0.0.1", b"unknown, 1.2.3.4", "1.2.3.4"),
    ],
)
def test_the_address_is_the_first_that_is_not_trusted(peer: str, forwarded: bytes, found: str | None) -> None:
    scope = {"client": (peer, 1), "headers": [(b"x-forwarded-for", forwarded)]}
    assert client_address(scope, [ip_network("10.0.0.0/8")]) == found
    assert client_address(scope, []) == peer.removeprefix("::ffff:")
    assert client_address({"client": None, "headers": []}, []) is None


def test_no_more_proxies_are_followed_than_there_can_be() -> None:
    """A header of 32 KB of trusted addresses would keep all others waiting for 20 ms."""
    written = b"6.6.6.6, 10.0.0.7, " + b", ".join([b"10.0.0.2"] * 15)
    scope = {"client": ("10.0.0.1", 1), "headers": [(b"x-forwarded-for", written)]}
    assert client_address(scope, [ip_network("10.0.0.0/8")]) == "10.0.0.7"


def test_an_address_is_matched_however_it_was_written() -> None:
    text = """
models: {m: {backend: vllm, workers: ['http://h:1']}}
limits: [{name: each, kind: requests, limit: 1, match: {address: ['2001:DB8:0::1', '::ffff:192.0.2.1']}}]
"""
    (rule,) = rules(load_text(text))
    assert rule.match == {"address": ("2001:db8::1", "192.0.2.1")}


def test_a_limit_per_address() -> None:
    limits = [{"name": "each", "kind": "requests", "limit": 1, "scope": ["address"]}]
    with Stack(({},), {"limits": limits, "listen": {"trusted_proxies": ["127.0.0.1"]}}) as stack:

        def come(address: str) -> int:
            headers = {"x-forwarded-for": address}
            return httpx.post(stack.url + OPENAI, headers=headers, json={"model": "m", **CHAT}).status_code

        assert [come("1.2.3.4"), come("1.2.3.4"), come("1.2.3.5")] == [200, 429, 200]


def test_reload_keeps_what_was_counted() -> None:
    limit = {"name": "rpm", "kind": "requests", "limit": 2, "scope": []}
    with Stack(({},), {"limits": [limit]}) as stack:
        assert ask(stack).status_code == 200
        before = stack.gateway.deployment.offers.limiter
        stack.run(stack.gateway.reload(stack.config({"limits": [{**limit, "limit": 1}]})))
        assert stack.gateway.deployment.offers.limiter is before
        assert ask(stack).status_code == 429
        stack.run(stack.gateway.reload(stack.config({"limits": None})))
        features = stack.gateway.deployment.runtime.way.features
        assert not any(isinstance(one, Charging) for one in features)
        assert ask(stack).status_code == 200
        without = stack.config({"limits": None})
        assert not Limits(without).any


@pytest.mark.parametrize("dialect", REQUESTS)
def test_what_a_key_may_not_do(dialect: str) -> None:
    good, keys = made("good", models=["m"])
    others = {}
    refused: dict[str, dict[str, Any]] = {
        "expired": {"expires": "2020-01-01"},
        "disabled": {"disabled": True},
        "elsewhere": {"dialects": ["openai" if dialect != "openai" else "azure_inference"]},
    }
    for name, options in refused.items():
        others[name], entry = made(name, **options)
        keys.update(entry)
    with Stack(({},), {**DEFAULTS, "keys": keys}) as stack:
        assert ask(stack, good, dialect).status_code == 200
        assert {name: ask(stack, key, dialect).status_code for name, key in others.items()} == {
            "expired": 403 if dialect == "sagemaker" else 401,
            "disabled": 403 if dialect == "sagemaker" else 401,
            "elsewhere": 403,
        }
        secret = {"backend": "vllm", "workers": [stack.sim.url]}
        stack.run(stack.gateway.reload(stack.config({"models": {"secret": secret}})))
        forbidden = ask(stack, good, dialect, model="secret")
        stack.run(stack.gateway.reload(stack.config()))
        absent = ask(stack, good, dialect, model="secret")

        def seen(reply: httpx.Response) -> tuple[int, bytes, list[tuple[str, str]]]:
            own = ("x-request-id", "request-id", "x-amzn-requestid", "apim-request-id", "date")
            headers = [pair for pair in reply.headers.items() if pair[0] not in own]
            return reply.status_code, reply.content.replace(reply.headers["x-request-id"].encode(), b""), headers

        assert seen(forbidden) == seen(absent)


@pytest.mark.parametrize("dialect", sorted({way.dialect for way in WAYS if way.operation == "count"}))
def test_the_page_of_a_dialect_that_counts_names_the_limits_that_count(dialect: str) -> None:
    page = (ROOT / "docs" / "dialects" / f"{dialect}.md").read_text()
    _, _, section = page.partition("## Counting tokens\n\n")
    assert "Limits of requests and of concurrency [count them](../limits.md#set-limits)." in " ".join(
        section.partition("\n## ")[0].split()
    )


QUESTIONS = [way for way in WAYS if way.operation in ("count", "tokenize", "detokenize")]


@pytest.mark.parametrize("way", QUESTIONS, ids=str)
def test_a_question_counts_as_a_request_and_uses_no_tokens(way: Way) -> None:
    key, keys = made("a", limits={"requests": 2, "tokens": 50})
    concurrency = {"name": "slots", "kind": "concurrency", "limit": 1, "scope": []}
    config = {"keys": keys, "limits": [concurrency], "dialects": {way.dialect: {"default_model": "m"}}}
    with Stack(config=config) as stack:
        headers = dict.fromkeys(("api-key", "x-api-key"), key)

        def send() -> httpx.Response:
            return httpx.post(stack.url + way.path("m"), headers=headers, json={**way.body(), "model": "m"})

        # Tokens are charged beyond the limit: a question needs none of them.
        lease = stack.run(limiter_of(stack).reserve(Subject(key="a", model="m"), Cost(50)))
        limiter_of(stack).settle(lease, Usage(0, 500))
        good = send()
        assert good.status_code == 200, good.text
        assert good.headers["x-ratelimit-remaining-requests"] == "0"
        assert standing(stack, key="a") == {"requests": 2, "tokens": 500, "slots": 0}
        before = stack.sim.ledger.received
        bad = send()
        assert bad.status_code == DIALECTS[way.dialect].errors[Kind.LIMITED][0]
        assert "limit 'requests' reached: 2 requests a minute, 0 left; try again in " in bad.text
        assert bad.headers.keys() & {"retry-after", "x-amz-retry-after"}
        assert stack.sim.ledger.received == before
        assert stack.records()[-1]["limit"] == "requests"


@pytest.mark.parametrize("way", QUESTIONS, ids=str)
def test_a_question_waits_for_a_slot_like_any_request(way: Way) -> None:
    key, keys = made("a", limits={"concurrency": 1})
    with Stack(config={"keys": keys, "dialects": {way.dialect: {"default_model": "m"}}}) as stack:
        lease = stack.run(limiter_of(stack).reserve(Subject(key="a", model="m")))
        body, headers = {**way.body(), "model": "m"}, dict.fromkeys(("api-key", "x-api-key"), key)
        bad = httpx.post(stack.url + way.path("m"), headers=headers, json=body)
        assert bad.status_code == DIALECTS[way.dialect].errors[Kind.LIMITED][0]
        assert "limit 'concurrency' reached" in bad.text
        limiter_of(stack).settle(lease, Usage(0, 0))
        assert httpx.post(stack.url + way.path("m"), headers=headers, json=body).status_code == 200
        assert standing(stack, key="a") == {"concurrency": 0}
