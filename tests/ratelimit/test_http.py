"""Limits before requests: what is refused and how it is said, what is given back, what survives a reload."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.app import KNOWN
from gateway.auth import new_key
from gateway.cli import main
from gateway.config import Limit, load
from gateway.core.errors import GatewayError, Kind
from gateway.core.estimate import Cost
from gateway.core.usage import Usage
from gateway.ratelimit import HttpRateLimiter, Limits, Subject, SubjectLimiter, rules
from gateway.ratelimit.addresses import client_address
from gateway.ratelimit.http import duration
from tests.clients import CHAT, DIALECTS, REQUESTS, WAYS, Way
from tests.harness import Stack, load_text
from tests.ports import free_port
from tests.redis.server import Server
from tests.repo.tree import ROOT

OPENAI = "/v1/chat/completions"
DEFAULTS = {"dialects": {name: {"default_model": "m"} for name in REQUESTS}}


def made(name: str, **options: Any) -> tuple[str, dict[str, Any]]:
    """(a key, the section `keys` with it alone)"""
    key, entry = new_key(name)
    return key, {name: {**yaml.safe_load(entry)[name], **options}}


def ask(stack: Stack, key: str = "", dialect: str = "openai", **body: Any) -> httpx.Response:
    path, chat = REQUESTS[dialect]
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if dialect == "sagemaker" and key:
        headers = {"x-api-key": key}
    return httpx.post(stack.url + path, headers=headers, json={"model": "m", **chat, **body}, timeout=20)


def limiter_of(stack: Stack) -> SubjectLimiter:
    limiting = stack.gateway.deployment.services.limiting
    assert limiting is not None
    return limiting.limiter


def standing(stack: Stack, **subject: Any) -> dict[str, int]:
    """limit -> what is used of it"""
    states = stack.run(limiter_of(stack).inspect(Subject(**{"model": "m", **subject})))
    return {state.rule.name: state.used for state in states}


async def until(met: Callable[[], bool]) -> None:
    """The limiter tells nobody when a slot is taken: it is looked at."""
    async with asyncio.timeout(30):
        while not met():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


# ---- what a client is told


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
        assert said.endswith(" s, or with a smaller cap on its output (such as max_tokens), which reserves less")
        assert ask(stack, max_tokens=5).status_code == 200


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
    elif dialect == "azure":
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


# ---- what is charged, on every exit


@pytest.fixture
def counted() -> Iterator[Stack]:
    limits = [
        {"name": "rpm", "kind": "requests", "limit": 50, "scope": []},
        {"name": "tpm", "kind": "tokens", "limit": 5000, "scope": []},
        {"name": "slots", "kind": "concurrency", "limit": 10, "scope": []},
    ]
    models = {"m": {"max_in_flight": 1}}
    with Stack(({"itl_ms": 1},), {**DEFAULTS, "limits": limits, "models": models}) as stack:
        yield stack


def said(**script: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "sim:" + json.dumps(script)}]}


@pytest.mark.parametrize("stream", [False, True])
def test_finished(counted: Stack, stream: bool) -> None:
    for dialect in REQUESTS:
        assert ask(counted, dialect=dialect, stream=stream).status_code == 200
    used = sum(record["usage"]["input"] + record["usage"]["output"] for record in counted.records())
    assert used > 0
    assert standing(counted) == {"rpm": len(REQUESTS), "tpm": used, "slots": 0}


def test_failed(counted: Stack) -> None:
    counted.sim.fault("status:400", count=1)
    assert ask(counted).status_code == 400
    assert standing(counted) == {"rpm": 1, "tpm": 0, "slots": 0}
    assert "[DONE]" not in str(counted.records())
    with pytest.raises(httpx.RemoteProtocolError):
        ask(counted, stream=True, **said(text="one two three four", fault="reset@2"))
    record = counted.records()[-1]
    assert record["outcome"] == "failed"
    assert record["usage"]["source"] == "estimated"
    assert standing(counted)["tpm"] == record["usage"]["input"] + record["usage"]["output"] > 0


def test_a_prompt_that_nobody_counted_is_estimated_without_limits_too() -> None:
    with Stack() as stack:
        with pytest.raises(httpx.RemoteProtocolError):
            ask(stack, stream=True, **said(text="one two three four", fault="reset@2"))
        usage = stack.record()["usage"]
        assert usage["source"] == "estimated"
        assert usage["input"] > 8
        assert usage["output"] == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_that_takes_too_long_is_charged_as_reserved(stream: bool) -> None:
    """Its client may have asked for so long a one."""
    config = {"limits": [{"name": "tpm", "kind": "tokens", "limit": 5000}], "deadlines": {"first_byte_s": 0.1}}
    with Stack(({},), config) as stack:
        body = {"max_tokens": 500, "stream": stream, **said(text="a b c", fault="stall@before")}
        assert ask(stack, **body).status_code == 504
        assert stack.record()["code"] == "timeout"
        assert 500 < standing(stack, key="anonymous")["tpm"] < 600


def test_a_reply_that_is_too_large_is_charged_as_reserved() -> None:
    """Its client may have asked for so large a one."""
    config = {"limits": [{"name": "tpm", "kind": "tokens", "limit": 50000}], "relay": {"max_reply_bytes": 1024}}
    with Stack(({},), config) as stack:
        assert ask(stack, n=10, max_tokens=100).status_code == 502
        assert stack.record()["code"] == "upstream_too_large"
        assert 1000 < standing(stack, key="anonymous")["tpm"] < 1100
        body = {"model": "m", "input": ["hello " * 100] * 20}
        assert httpx.post(stack.url + "/v1/embeddings", json=body).status_code == 502
        assert standing(stack, key="anonymous")["tpm"] > 1000 + 20 * 100


def test_refused_before_a_worker_burns_nothing(counted: Stack) -> None:
    assert ask(counted, messages=[]).status_code == 400
    assert ask(counted, model="absent").status_code == 404
    assert standing(counted) == {"rpm": 0, "tpm": 0, "slots": 0}


def test_cancelled_in_the_middle_of_a_stream(counted: Stack) -> None:
    body = {"model": "m", "stream": True, "max_tokens": 500, **said(text="a b c d e", fault="stall@2")}
    with httpx.stream("POST", counted.url + OPENAI, json=body) as reply:
        blocks = reply.iter_bytes()
        next(blocks)
        assert standing(counted)["slots"] == 1
        assert standing(counted)["tpm"] > 500
    counted.run(counted.sim.ledger.wait(aborted=1))
    counted.run(counted.gateway.deployment.runtime.active.empty(20))
    usage = counted.records()[-1]["usage"]
    assert usage["output"] in (1, 2)
    assert standing(counted) == {"rpm": 1, "tpm": usage["input"] + usage["output"], "slots": 0}


def test_cancelled_before_the_first_token_of_a_stream(counted: Stack) -> None:
    """Nothing was produced that nobody saw, so the room for the output is given back."""

    async def run() -> None:
        body = {"model": "m", "stream": True, "max_tokens": 500, **said(text="a b c", fault="stall@before")}
        async with httpx.AsyncClient(base_url=counted.url) as client:
            asking = asyncio.create_task(client.post(OPENAI, json=body))
            await until(lambda: counted.sim.ledger.received == 1)
            asking.cancel()
            await until(lambda: limiter_of(counted).in_flight == 0)

    asyncio.run(run())
    used = standing(counted)
    assert (used["rpm"], used["slots"]) == (1, 0)
    assert 0 < used["tpm"] < 100


def test_cancelled_while_waiting_for_a_worker_is_as_if_it_had_never_been(counted: Stack) -> None:
    async def run() -> None:
        # Without `max_tokens` each would reserve the rest of the context, which the worker tells.
        body = {"model": "m", "stream": True, "max_tokens": 16, **said(text="a b c", fault="stall@1")}
        async with httpx.AsyncClient(base_url=counted.url) as client, client.stream("POST", OPENAI, json=body):
            waiting = asyncio.create_task(client.post(OPENAI, json={"model": "m", "max_tokens": 16, **CHAT}))
            await until(lambda: limiter_of(counted).in_flight == 2)
            waiting.cancel()
            await until(lambda: limiter_of(counted).in_flight == 1)

    asyncio.run(run())
    counted.run(counted.gateway.deployment.runtime.active.empty(20))
    assert standing(counted)["rpm"] == 1
    assert standing(counted)["slots"] == 0


def test_a_bug_gives_its_slot_back(counted: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.wire.openai.streams.passthrough.Passthrough.whole", lambda *_: 1 / 0)
    assert ask(counted).status_code == 500
    assert standing(counted)["slots"] == 0
    assert limiter_of(counted).in_flight == 0


def test_shadow_limits_count_and_refuse_nothing() -> None:
    limits = [{"name": "soon", "kind": "requests", "limit": 1, "scope": [], "shadow": True}]
    with Stack(({},), {"limits": limits}) as stack:
        replies = [ask(stack) for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200] * 3
        assert not [name for name in replies[0].headers if "ratelimit" in name]
        assert 'dragoman_limits_shadowed_total{limit="soon"} 2.0' in httpx.get(stack.url + "/metrics").text


# ---- whom it counts


def test_limits_of_a_key_come_before_the_general_ones() -> None:
    text = """
    models: {m: {backend: vllm, workers: ["http://127.0.0.1:1"], aliases: [other]}}
    keys: {a: {hash: "sha256:%s", limits: {requests: 7}}}
    limits: [{name: requests, kind: requests, limit: 3, match: {model: [other]}}]
    """
    first, second = rules(load_text(text % ("0" * 64)))
    assert first == Limit(name="requests", kind="requests", limit=7, match={"key": ("a",)})
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
        before = stack.gateway.deployment.services.limiting
        stack.run(stack.gateway.reload(stack.config({"limits": [{**limit, "limit": 1}]})))
        assert stack.gateway.deployment.services.limiting is before
        assert ask(stack).status_code == 429
        stack.run(stack.gateway.reload(stack.config({"limits": None})))
        assert stack.gateway.deployment.runtime.stages.limits is None
        assert ask(stack).status_code == 200
        without = stack.config({"limits": None})
        assert not Limits(without).any


# ---- Redis


@pytest.mark.parametrize(
    ("mode", "statuses"),
    [("closed", [503, 503]), ("open", [200, 200]), ("local", [200, 429])],
    ids=lambda one: str(one),
)
def test_without_redis_each_limit_does_as_it_says(mode: str, statuses: list[int]) -> None:
    limits = [{"name": "rpm", "kind": "requests", "limit": 1, "scope": ["model"], "on_redis_failure": mode}]
    redis = {"addresses": [f"127.0.0.1:{free_port()}"]}
    with Stack(({},), {**DEFAULTS, "limits": limits, "redis": redis}) as stack:
        for dialect in REQUESTS if mode == "closed" else ("openai",):
            replies = [ask(stack, dialect=dialect) for _ in range(2)]
            own = {503: 529} if dialect == "anthropic" else {}
            assert [reply.status_code for reply in replies] == [own.get(status, status) for status in statuses]
            if mode == "closed":
                assert replies[0].headers["retry-after"] == "5"
                assert stack.records()[-1]["code"] == "limits_unavailable"
        assert httpx.get(stack.url + "/readyz").status_code == httpx.get(stack.url + "/livez").status_code == 200
        assert "dragoman_limits_strict 0.0" in httpx.get(stack.url + "/metrics").text
        stack.gateway.log.flush()
        assert [line["event"] for line in stack.output.lines() if "limits" in line["event"]] == ["limits degraded"]


def test_redis_frozen_and_back(tmp_path: Path) -> None:
    limits = [{"name": "rpm", "kind": "requests", "limit": 2, "scope": []}]
    with Server(tmp_path) as server:
        config = {"limits": limits, "redis": {"addresses": [server.address], "timeout_s": 0.3}}
        with Stack(({},), config) as stack:
            changed = asyncio.Event()
            limiter, log = limiter_of(stack), limiter_of(stack)._on_change

            def noted(state: str, reason: str) -> None:
                assert log is not None
                log(state, reason)
                changed.set()

            limiter._on_change = noted
            assert ask(stack).status_code == 200
            server.send(signal.SIGSTOP)
            try:
                assert [ask(stack).status_code for _ in range(4)] == [200, 200, 429, 429], "2 more, counted here alone"
                assert limiter.state == "degraded"
                changed.clear()
            finally:
                server.send(signal.SIGCONT)
            stack.run(changed.wait())
            assert limiter.state == "strict"
            assert ask(stack).headers["x-ratelimit-remaining-requests"] == "0"
            stack.gateway.log.flush()
            lines = [line["event"] for line in stack.output.lines() if line["event"].startswith("limits")]
            assert lines == ["limits strict", "limits degraded", "limits strict"]


def test_usage_goes_to_a_stream_and_the_command_shows_and_forgets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, keys = made("a", team="red", limits={"requests": 5})
    with Server(tmp_path) as server:
        redis = {"addresses": [server.address], "timeout_s": 10}
        limits = [{"name": "team", "kind": "tokens", "limit": 900, "scope": ["team", "model"], "shadow": True}]
        config = {"keys": keys, "redis": redis, "limits": limits, "accounting": {"redis_stream": "usage"}}
        with Stack(({},), config) as stack:
            used = [ask(stack, key).json()["usage"]["total_tokens"] for _ in range(3)]
            text = stack.config().model_dump_json(exclude_defaults=True)
        entries = [json.loads(fields[b"record"]) for _, fields in server.command("XRANGE", "dragoman:usage", "-", "+")]
        found = list({one["id"]: one for one in entries}.values())  # a batch whose answer was late is sent again
        assert [one["usage"]["input"] + one["usage"]["output"] for one in found] == used
        assert {(one["key"], one["team"], one["status"], one["outcome"]) for one in found} == {("a", "red", 200, "ok")}
        (tmp_path / "gateway.yaml").write_text(text)
        shown = ["limits", "show", "--config", str(tmp_path / "gateway.yaml"), "--key", "a"]
        assert main(shown) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert lines[1][:5] == ["requests", "key", "a", "3", "2"]
        assert lines[2][:8] == ["team", "(shadow)", "team", "red,", "model", "m", str(sum(used)), str(900 - sum(used))]
        assert main(shown[:-2]) == 0
        said = capsys.readouterr()
        assert said.out == "no limit applies to requests of whom nothing is known\n"
        assert said.err.splitlines() == [
            "dragoman: limit 'requests' counts by key: to see it, give --key",
            "dragoman: limit 'team' counts by team, model: to see it, give --team",
        ]
        assert main([*shown[:-2], "--team", "red"]) == 0
        said = capsys.readouterr()
        assert said.out.splitlines()[1].split()[:4] == ["team", "(shadow)", "team", "red,"]
        assert said.err.splitlines() == ["dragoman: limit 'requests' counts by key: to see it, give --key"]
        assert main([*shown[:-2], "--team", "blue", "--address", "10.0.0.1"]) == 0
        assert main(["limits", "reset", *shown[2:]]) == 0
        assert capsys.readouterr().out.splitlines()[-2].split()[3:5] == ["0", "5"]
        assert main([*shown[:-1], "nobody"]) == 2
        assert capsys.readouterr().err == "dragoman: there is no key nobody\n"
        assert main([*shown, "--model", "small"]) == 2
        assert capsys.readouterr().err == "dragoman: there is no model small\n"
        server.kill()
        assert main(shown) == 1
        assert "unavailable" in capsys.readouterr().err


def test_only_known_callers_are_accounted_for(tmp_path: Path) -> None:
    """Strangers cannot push the records of others out of a stream that keeps so many and no more."""
    key, keys = made("a")
    with Server(tmp_path) as server:
        config = {"redis": {"addresses": [server.address], "timeout_s": 10}, "accounting": {"redis_stream": "usage"}}
        with Stack(({},), {**config, "keys": keys}) as stack:
            for path in ("/v1/models", "/nowhere", "/ping"):
                httpx.get(stack.url + path)
            assert ask(stack, "wrong").status_code == 401
            assert ask(stack, key, model="none").status_code == 404
            assert ask(stack, key).status_code == 200
        with Stack(({},), config) as stack:
            httpx.get(stack.url + "/nowhere")
            assert ask(stack).status_code == 200
        entries = [json.loads(fields[b"record"]) for _, fields in server.command("XRANGE", "dragoman:usage", "-", "+")]
    found = {one["id"]: (one["key"], one["status"]) for one in entries}
    assert list(found.values()) == [("a", 404), ("a", 200), ("anonymous", 200)]


def test_the_command_shows_what_was_used_of_a_limit_with_a_burst(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, keys = made("bob")
    with Server(tmp_path) as server:
        path = tmp_path / "gateway.yaml"
        limits = [
            {"name": "paced", "kind": "requests", "limit": 60, "burst": 5},
            {"name": "teams", "kind": "requests", "limit": 9, "scope": ["team"]},
        ]
        section = {"issuer": "https://id.example", "audience": "d", "jwks_url": "https://id.example/keys"}
        config = {"keys": keys, "limits": limits, "redis": {"addresses": [server.address], "timeout_s": 10}}
        models = {"m": {"backend": "vllm", "workers": ["http://127.0.0.1:1"]}}
        path.write_text(json.dumps({**config, "models": models, "jwt": section}))

        def run(*words: str) -> tuple[list[list[str]], list[str]]:
            assert main(["limits", words[0], "--config", str(path), *words[1:]]) == 0
            said = capsys.readouterr()
            return [line.split()[:5] for line in said.out.splitlines()[1:]], said.err.splitlines()

        alone = "dragoman: limit 'teams' counts by team: it does not apply to key bob, which has no team"
        whole = (["paced", "key", "bob", "0", "5"], [alone])
        assert run("show", "--key", "bob") == ([whole[0]], whole[1])
        assert run("reset", "--key", "bob") == ([whole[0]], whole[1])

        async def two() -> None:
            found = load(path, KNOWN, {})
            limiter = HttpRateLimiter(found, Limits(found)).limiter
            await limiter.start(beats=False)
            for _ in range(2):
                await limiter.reserve(Subject("jwt:alice", model="m"))
            await limiter.close()

        asyncio.run(two())
        (row,), said = run("show", "--key", "jwt:alice")
        assert row[:4] == ["paced", "key", "jwt:alice", "2"]
        assert said == ["dragoman: limit 'teams' counts by team: to see it, give --team"]
        assert run("reset", "--key", "jwt:alice")[0] == [["paced", "key", "jwt:alice", "0", "5"]]


@pytest.mark.parametrize("trouble", ["gone", "no password", "wrong password"])
def test_the_command_says_why_redis_cannot_be_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trouble: str
) -> None:
    with Server(tmp_path, *(["--requirepass", "canary"] if trouble != "gone" else [])) as server:
        redis: dict[str, Any] = {"addresses": [server.address], "timeout_s": 10}
        if trouble == "wrong password":
            (tmp_path / "password").write_text("canary-not")
            redis["password_file"] = "password"
        if trouble == "gone":
            server.kill()
        path = tmp_path / "gateway.yaml"
        models = {"m": {"backend": "vllm", "workers": ["http://127.0.0.1:1"]}}
        limits = [{"name": "rpm", "kind": "requests", "limit": 6, "scope": ["model"]}]
        path.write_text(json.dumps({"models": models, "limits": limits, "redis": redis}))
        assert main(["limits", "show", "--config", str(path)]) == 1
        said = capsys.readouterr().err
    reason = {
        "gone": "ConnectionError (Connection refused)",
        "no password": "NOAUTH Authentication required.",
        "wrong password": "WRONGPASS invalid username-password pair or user is disabled.",
    }[trouble]
    assert said == f"dragoman: the limit store is unavailable: {server.address}: {reason}\n"


def test_without_redis_there_is_nothing_to_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("models: {m: {backend: vllm, workers: ['http://127.0.0.1:1']}}")
    assert main(["limits", "show", "--config", str(path), "--key", "a"]) == 2
    assert "without redis" in capsys.readouterr().err


# ---- keys, end to end


@pytest.mark.parametrize("dialect", REQUESTS)
def test_what_a_key_may_not_do(dialect: str) -> None:
    good, keys = made("good", models=["m"])
    others = {}
    refused: dict[str, dict[str, Any]] = {
        "expired": {"expires": "2020-01-01"},
        "disabled": {"disabled": True},
        "elsewhere": {"dialects": ["openai" if dialect != "openai" else "azure"]},
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


# ---- questions, which no model answers


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


# ---- heavy requests


HEAVY = "word " * 60_000


@pytest.fixture(scope="module")
def heavy() -> Iterator[tuple[Stack, dict[str, str]]]:
    keys, entries = {}, {}
    for name in REQUESTS:
        keys[name], entry = made(name, limits={"requests": 2, "tokens": 10_000_000, "concurrency": 1})
        entries.update(entry)
    of_model = {"name": "of-model", "kind": "requests", "limit": 100, "scope": ["model"]}
    with Stack(({"max_model_len": 1 << 20},), {**DEFAULTS, "keys": entries, "limits": [of_model]}) as stack:
        yield stack, keys


@pytest.mark.parametrize("dialect", REQUESTS)
def test_a_heavy_request_passes_the_limits_before_it_is_read(
    heavy: tuple[Stack, dict[str, str]], dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, keys = heavy
    way = next(way for way in WAYS if way.dialect == dialect and way.path() == REQUESTS[dialect][0])
    read: list[int] = []
    made_dialect = type(DIALECTS[dialect])
    reads = made_dialect.read

    def reading(self: Any, request: Any) -> Any:
        read.append(len(request.body))
        return reads(self, request)

    monkeypatch.setattr(made_dialect, "read", reading)
    headers = {"x-api-key" if dialect == "sagemaker" else "api-key": keys[dialect], "content-type": "application/json"}

    def send(body: bytes) -> httpx.Response:
        return httpx.post(stack.url + way.path("m"), content=body, headers=headers, timeout=30)

    whole = json.dumps({**way.body(HEAVY, stream=False, max_tokens=5), "model": "m"}).encode()
    assert send(whole[:-1]).status_code in (400, 422, 424)
    assert standing(stack, key=dialect)["requests"] == 1, "what was read counts, malformed or not"
    served = send(whole)
    assert served.status_code == 200, served.text[:300]
    assert served.headers["x-ratelimit-limit-requests"] == "2"
    assert served.headers["x-ratelimit-remaining-requests"] == "0"
    assert served.headers["x-ratelimit-limit-tokens"] == "10000000"
    assert len([name for name in served.headers.raw if name[0] == b"x-ratelimit-limit-requests"]) == 1
    left = standing(stack, key=dialect)
    assert (left["requests"], left["concurrency"]) == (2, 0), "once each"
    before = len(read)
    refused = send(whole)
    assert (refused.status_code, len(read)) == (429, before)
    assert refused.headers["retry-after"]
    assert "limit 'requests' reached" in refused.text
    assert stack.records()[-1]["limit"] == "requests"
    assert standing(stack, key=dialect)["concurrency"] == 0


def test_a_heavy_request_that_a_model_has_its_own_limit_for_is_counted_once() -> None:
    """Which of the limits of that name applies is known only when the body was read."""
    limits = [
        {"name": "requests", "kind": "requests", "limit": 5, "match": {"model": ["m"]}},
        {"name": "requests", "kind": "requests", "limit": 1},
        {"name": "others", "kind": "requests", "limit": 9, "scope": []},
    ]
    with Stack(({"max_model_len": 1 << 20},), {"limits": limits}) as stack:
        for count in (1, 2, 3):
            assert ask(stack, messages=[{"role": "user", "content": HEAVY}]).status_code == 200
            assert standing(stack, key="anonymous") == {"requests": count, "others": count}
        refused = ask(stack, messages=[{"role": "user", "content": HEAVY}], model="nobody")
        assert refused.status_code == 404
        assert standing(stack, key="anonymous") == {"requests": 3, "others": 4}


# ---- outputs that are asked for together, and what is used beyond a reservation


MULTIPLIERS = ("n", "best_of", "num_beams", "n_cmpl", "beam_width")


@pytest.fixture(scope="module")
def narrow() -> Iterator[Stack]:
    """One output fits the limit, two do not."""
    limits = [{"name": "tpm", "kind": "tokens", "limit": 2000}, {"name": "rpm", "kind": "requests", "limit": 10**6}]
    config = {"limits": limits, "models": {"m": {"max_context": 1500}}}
    with Stack(({"itl_ms": 0},), {**config, "dialects": {name: {"default_model": "m"} for name in DIALECTS}}) as stack:
        yield stack


@pytest.mark.parametrize("way", [way for way in WAYS if way.operation in ("chat", "complete")], ids=str)
def test_several_outputs_that_do_not_fit_the_limit_are_refused_by_their_name(narrow: Stack, way: Way) -> None:
    """Or they are refused or left out by the dialect: no member makes a worker produce more than the limit."""
    nested = next((field.name for field in DIALECTS[way.dialect].fields[way.operation] if "." in field.name), "")
    holder = nested.partition(".")[0] if nested.startswith("parameters.") else ""
    for name in MULTIPLIERS:
        member: dict[str, Any] = {"do_sample": True, name: 2} if holder else {name: 2}
        body = {**way.body(stream=False), "model": "m", **({holder: member} if holder else member)}
        reply = httpx.post(narrow.url + way.path("m"), json=body)
        narrow.run(limiter_of(narrow).reset(Subject(key="anonymous", model="m")))
        if reply.status_code == DIALECTS[way.dialect].errors[Kind.LIMITED][0]:
            own = f"{holder}.{name}" if holder else name
            assert f"'{own}' asks for 2 outputs of up to 1500 tokens each" in reply.text
            assert "limit 'tpm' of 2000 tokens a minute" in reply.text
            assert reply.headers.get("x-should-retry", "false") == "false"
        elif reply.status_code == 200:
            sent = next(one.body for one in reversed(narrow.sim.ledger.entries) if one.method == "POST")
            assert json.loads(sent).get(name, 1) == 1


def test_several_prompts_that_do_not_fit_the_limit_are_refused_by_their_name(narrow: Stack) -> None:
    body = {"model": "m", "prompt": ["a", "b"]}
    reply = httpx.post(narrow.url + "/v1/completions", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (429, "prompt")
    assert "'prompt' asks for 2 outputs of up to 1500 tokens each" in reply.text
    assert httpx.post(narrow.url + "/v1/completions", json={**body, "max_tokens": 900}).status_code == 200
    narrow.run(limiter_of(narrow).reset(Subject(key="anonymous", model="m")))


@pytest.mark.parametrize("shared", [False, True], ids=["memory", "redis"])
def test_a_worker_that_uses_the_most_it_may_is_held_to_the_limit(tmp_path: Path, shared: bool) -> None:
    """In a time T at most limit x (T / window + 1) tokens are used, and what one request, the only one in flight, used
    beyond its reservation. Each request asks for what it can get."""
    limit, window, most = 100, 0.5, 300
    config: dict[str, Any] = {
        "limits": [{"name": "tpm", "kind": "tokens", "limit": limit, "per_s": window}],
        "models": {"m": {"max_context": most}},
    }
    asks: list[dict[str, Any]] = [
        {},
        {"n": 128, "temperature": 1},
        {"n": 128, "max_tokens": 100, "temperature": 1},
        {"n": 9, "max_tokens": 10, "temperature": 1},
        {"max_tokens": 250},
        {"stream": True},
    ]
    with contextlib.ExitStack() as held:
        if shared:
            server = held.enter_context(Server(tmp_path))
            config["redis"] = {"addresses": [server.address], "timeout_s": 10}
        stack = held.enter_context(Stack(({"itl_ms": 0, "max_model_len": most},), config))
        began = time.monotonic()
        for number in range(18):
            reply = ask(stack, **said(text="word ", repeat=400), **asks[number % len(asks)])
            if reply.status_code == 429 and "retry-after-ms" in reply.headers:
                time.sleep(int(reply.headers["retry-after-ms"]) / 1000)
        took = time.monotonic() - began
        used = [one["usage"] for one in stack.records() if one["outcome"] == "ok"]
    total = sum(one["input"] + one["output"] for one in used)
    assert len(used) >= 4
    assert total > 2 * limit
    assert total <= limit * (took / window + 1) + most


@pytest.mark.parametrize("shared", [False, True], ids=["memory", "redis"])
def test_a_limit_refuses_before_what_cannot_be_written(shared: bool, tmp_path: Path) -> None:
    """A shared store is asked before the request is written for its worker; its answer counts first."""
    with contextlib.ExitStack() as stack:
        config: dict[str, Any] = {"limits": [{"name": "rpm", "kind": "requests", "limit": 1, "scope": []}]}
        if shared:
            server = stack.enter_context(Server(tmp_path))
            config["redis"] = {"addresses": [server.address], "timeout_s": 10}
        gateway = stack.enter_context(Stack(({},), {**DEFAULTS, **config}))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gateway.pipeline.outgoing.Outgoing.write", _unwritable)
            assert ask(gateway).status_code == 400
            assert standing(gateway) == {"rpm": 0}, "no worker has seen it"
            patch.undo()
            assert ask(gateway).status_code == 200
            patch.setattr("gateway.pipeline.outgoing.Outgoing.write", _unwritable)
            refused = ask(gateway)
        assert refused.status_code == 429
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"


def _unwritable(*_: Any) -> None:
    raise GatewayError(Kind.BAD_REQUEST, "no worker reads this")
