"""Requests that another model answers than the one that they name: fallback and split, in every dialect."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
import pytest

from gateway.auth import ANONYMOUS, Principal
from gateway.config import SplitRule
from gateway.core.errors import Blame, Busy, GatewayError, Kind
from gateway.core.http import Response
from gateway.core.messages import ListModels, ModelCard
from gateway.kernel.models import list_models
from gateway.kernel.other_models import Split, reason_of
from tests.support.clients import WAYS, Way, usual
from tests.support.harness import Stack
from tests.support.ports import free_port
from tests.support.sampled import of_dialect, sampled
from tests.support.simulated import Entry, Simulated
from tests.support.standins.serving import Answering, serving
from tests.unit.kernel.asking import chat, raw_request, scripted

KEYS = {"one": "k-one", "narrow": "k-narrow"}
ONE, NARROW = ({"authorization": f"Bearer {key}"} for key in KEYS.values())
DIALECTS = sorted({way.dialect for way in WAYS})
GENERATING = [way for way in WAYS if way.operation in ("chat", "complete", "embed", "score")]


@contextlib.contextmanager
def fleet(config: dict[str, Any] | None = None, **models: dict[str, Any]) -> Iterator[Stack]:
    """A gateway whose model `m` answers. Of the others, `worker` says how theirs fails: its fault, "away", or
    "short" for a context of a few tokens."""
    faults = {name: options.pop("worker", "") for name, options in models.items()}
    present = [name for name, fault in faults.items() if fault != "away"]
    options = [
        {"max_model_len": 16, "strict_context": True} if faults[name] == "short" else {"fault": faults[name]}
        for name in present
    ]
    with Stack(({}, *options)) as stack:
        urls = {name: sim.url for name, sim in zip(present, stack.sims[1:], strict=True)}
        base = {"backend": "vllm", "upstream_model": "sim"}
        found: dict[str, Any] = {
            name: {**base, "workers": [urls.get(name, f"http://127.0.0.1:{free_port()}")], **models[name]}
            for name in models
        }
        found["m"] = {"workers": [stack.sim.url]}
        stack.run(stack.gateway.reload(stack.config({"models": found, **(config or {})})))
        yield stack


def ask(
    stack: Stack, way: Way, model: str, stream: bool = False, text: str = "hi", headers: Mapping[str, str] | None = None
) -> httpx.Response:
    body = {"model": model, **way.body(text, stream=stream, max_tokens=20)}
    return httpx.post(stack.url + way.path(model), json=body, headers=headers)


def answered(sim: Simulated) -> list[Entry]:
    """What it was sent, beside probes."""
    return [entry for entry in sim.ledger.entries if entry.method == "POST"]


WHYS = {"unavailable": "away", "overloaded": "status:429", "account": "status:401", "context_length": "short"}


@pytest.fixture(scope="module")
def falling() -> Iterator[Stack]:
    """For each reason a model with that trouble and a fallback for it, and one with no fallback for it."""
    models: dict[str, dict[str, Any]] = {}
    for why, worker in WHYS.items():
        others = [one for one in WHYS if one != why]
        models[why] = {"worker": worker, "fallback": ["m"], "fallback_on": [why]}
        models[f"not-{why}"] = {"worker": worker, "fallback": ["m"], "fallback_on": others}
    models["breaking"] = {"worker": "reset@3", "fallback": ["m"]}
    for other in ("broken-too", "unavailable"):
        models[f"broken-before-{other}"] = {"worker": "status:500", "fallback": [other]}
    models["broken-too"] = {"worker": "status:429"}
    with fleet({"breaker": {"failures": 1000}}, **models) as stack:
        yield stack


def test_a_worker_that_refuses_the_key_of_probes_is_a_failure_of_the_account() -> None:
    class Refusing(Answering):
        def do_GET(self) -> None:
            self.answer(200 if self.path == "/health" else 401)

        def do_POST(self) -> None:
            self.posted()
            self.answer(401)

    with serving(Refusing) as address:
        model = {"backend": "openai", "workers": [address], "fallback": ["m"]}
        models = {why: {**model, "fallback_on": [why]} for why in ("account", "transient")}
        with Stack(config={"models": models}) as stack:
            reply = ask(stack, usual("openai"), "account")
            assert (reply.status_code, reply.headers["x-dragoman-routed"]) == (200, "account")
            reply = ask(stack, usual("openai"), "transient")
            assert reply.status_code == 503
            assert "401" not in reply.text


@pytest.mark.parametrize("why", WHYS)
@pytest.mark.parametrize("way", sampled(GENERATING, 3, of_dialect), ids=str)
def test_a_fallback_answers_for_each_reason_by_choice(falling: Stack, way: Way, why: str) -> None:
    if why == "context_length" and way.operation in ("embed", "score"):
        pytest.skip("the simulated worker's embeddings and scores know no context")
    stream = not way.answers(stream=False)
    long = "word " * 60
    reply = ask(falling, way, why, stream, long)
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-dragoman-model"] == "m"
    assert reply.headers["x-dragoman-routed"] == why
    record = falling.record()
    assert (record["model"], record["asked"], record["routed"], record["outcome"]) == ("m", why, why, "ok")


@pytest.mark.parametrize("why", WHYS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_fallback_answers_for_another_reason(falling: Stack, dialect: str, why: str) -> None:
    way = usual(dialect)
    refused = ask(falling, way, f"not-{why}", not way.answers(stream=False), "word " * 60)
    assert refused.status_code >= 400
    assert "x-dragoman-model" not in refused.headers
    record = falling.record()
    assert (record["model"], record["asked"], record["routed"]) == (f"not-{why}", None, None)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_reply_keeps_the_name_that_its_client_sent(falling: Stack, dialect: str) -> None:
    """As it is where no fallback is asked: what names a model names the one that was asked for."""
    way = usual(dialect)
    stream = not way.answers(stream=False)
    plain, fallen = (ask(falling, way, model, stream).text for model in ("m", "unavailable"))
    assert ('"model"' in plain) == ('"model"' in fallen)
    if '"model"' in fallen:
        assert fallen.count('"unavailable"') == plain.count('"m"')
        assert '"sim"' not in fallen


@pytest.mark.feature("tracing")
@pytest.mark.parametrize("model", ["broken-before-broken-too", "broken-before-unavailable"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_where_no_fallback_answers_the_worker_that_is_told_is_the_models_own(
    falling: Stack, dialect: str, model: str
) -> None:
    way = usual(dialect)
    (worker,) = falling.gateway.deployment.pools[model].workers
    refused = ask(falling, way, model, not way.answers(stream=False), headers={"x-dragoman-explain": "1"})
    assert refused.status_code >= 400
    assert refused.headers["x-dragoman-worker"] == worker.address
    record = falling.record()
    assert (record["model"], record["worker"], record["picked"]) == (model, worker.address, "only")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_never_after_the_client_has_seen_a_byte(falling: Stack, dialect: str) -> None:
    way, before = usual(dialect), len(answered(falling.sim))
    if not way.answers(stream=True):
        pytest.skip("it streams nothing")
    with contextlib.suppress(httpx.RemoteProtocolError):
        ask(falling, way, "breaking", stream=True)
    record = falling.record()
    assert (record["model"], record["asked"], record["outcome"]) == ("breaking", None, "failed")
    assert len(answered(falling.sim)) == before


def test_the_next_fallback_is_asked_and_the_first_failure_is_told_at_last() -> None:
    models: dict[str, dict[str, Any]] = {
        "first": {"worker": "status:429", "fallback": ["gone", "poor", "m"]},
        "gone": {"worker": "away", "fallback": ["never"]},
        "poor": {"features": ["embeddings"]},
        "never": {},
        "lost": {"worker": "status:429", "fallback": ["gone", "poor"]},
    }
    with fleet(**models) as stack:
        way = usual("openai")
        reply = ask(stack, way, "first")
        assert (reply.status_code, reply.headers["x-dragoman-model"]) == (200, "m")
        reply = ask(stack, way, "lost")
        assert reply.json()["error"]["code"] == "overloaded", "what was wrong with the model that was asked for"
        assert "x-dragoman-model" not in reply.headers
        record = stack.record()
        assert (record["model"], record["asked"], record["attempts"]) == ("lost", None, 1)
        shown = httpx.get(stack.url + "/metrics").text
        assert 'dragoman_routed_total{asked="first",model="m",why="overloaded"} 1.0' in shown


def test_models_that_back_each_other_up_are_asked_once_each() -> None:
    models: dict[str, dict[str, Any]] = {
        "up": {"fallback": ["down"]},
        "down": {"worker": "away", "fallback": ["up"]},
        "busy": {"worker": "status:429", "fallback": ["full"]},
        "full": {"worker": "status:429", "fallback": ["busy"]},
    }
    with fleet({"retry": {"attempts": 1}}, **models) as stack:
        way = usual("openai")
        answer = ask(stack, way, "down")
        assert (answer.status_code, answer.headers["x-dragoman-model"]) == (200, "up")
        assert ask(stack, way, "busy").status_code in (429, 503)
        assert [len(answered(sim)) for sim in stack.sims[2:]] == [1, 1]


def test_what_a_model_cannot_do_is_done_by_its_fallback() -> None:
    """The request as it came: what the first model's abilities left out of it is there again."""
    models: dict[str, dict[str, Any]] = {"plain": {"worker": "status:429", "features": ["tools"], "fallback": ["m"]}}
    with fleet(**models) as stack:
        body = {
            "model": "plain",
            "max_tokens": 2000,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "messages": [{"role": "user", "content": "hi"}],
        }
        version = {"anthropic-version": "2023-06-01"}
        reply, alone = (
            httpx.post(stack.url + "/v1/messages", json={**body, "model": model}, headers=version)
            for model in ("plain", "m")
        )
        assert reply.status_code == 200, reply.text
        assert reply.headers.get("x-dragoman-dropped") == alone.headers.get("x-dragoman-dropped")
        sent = [json.loads(entry.body) for entry in answered(stack.sim)]
        assert sent[0] == sent[1]


LIMITS = [
    {"name": "each", "kind": "requests", "limit": 3, "per_s": 3600, "scope": ["key"]},
    {"name": "full", "kind": "tokens", "limit": 1000, "per_s": 3600, "scope": ["model"], "match": {"model": ["full"]}},
    {"name": "m", "kind": "requests", "limit": 2, "per_s": 3600, "scope": ["model"], "match": {"model": ["m"]}},
    {"name": "slots", "kind": "concurrency", "limit": 1},
]


def hashes(**more: dict[str, Any]) -> dict[str, Any]:
    from hashlib import sha256

    return {
        name: {"hash": "sha256:" + sha256(key.encode()).hexdigest(), **more.get(name, {})} for name, key in KEYS.items()
    }


@pytest.mark.feature("limits")
def test_the_model_that_answers_is_charged_and_the_request_once() -> None:
    config = {"keys": hashes(), "limits": LIMITS}
    with fleet(config, full={"worker": "status:429", "fallback": ["m"]}) as stack:
        way = usual("openai")
        for left in ("1", "0"):
            reply = ask(stack, way, "full", headers=ONE)
            assert reply.status_code == 200
            assert reply.headers["x-ratelimit-remaining-requests"] == left, "those of the model that answered"
            assert "x-ratelimit-remaining-tokens" not in reply.headers
        assert ask(stack, way, "m", headers=ONE).status_code == 429, "two requests were the model's"
        reply = ask(stack, way, "full", headers=ONE)
        assert reply.json()["error"]["code"] == "overloaded", "its fallback's limit is reached: its own trouble is told"
        assert "x-ratelimit-remaining-tokens" in reply.headers
        record = stack.record()
        assert (record["model"], record["asked"], record["limit"]) == ("full", None, None)


def test_a_key_falls_back_to_its_own_models_only() -> None:
    config = {"keys": hashes(narrow={"models": ["full"]})}
    models: dict[str, dict[str, Any]] = {
        "full": {"worker": "status:429", "fallback": ["m"], "split": [{"model": "m", "share": 0.5}]}
    }
    with fleet(config, **models) as stack:
        for _ in range(4):
            assert ask(stack, usual("openai"), "full", headers=NARROW).status_code == 503
        assert ask(stack, usual("openai"), "full", headers=ONE).status_code == 200
        assert len(answered(stack.sim)) == 1


def test_a_model_is_ready_where_its_fallback_is() -> None:
    models: dict[str, dict[str, Any]] = {
        "away": {"worker": "away", "fallback": ["m"]},
        "busy": {"worker": "away", "fallback": ["m"], "fallback_on": ["overloaded"]},
    }

    def listed(stack: Stack, *allowed: str) -> dict[str, bool]:
        cards: list[ModelCard] = []

        def write(found: Sequence[ModelCard]) -> Response:
            cards.extend(found)
            return Response(200)

        who = Principal("k", models=frozenset(allowed))
        runtime = stack.gateway.deployment.runtime
        list_models(runtime.models, runtime.patterns, ListModels(write=write), None, who, False)
        return {card.name: card.ready for card in cards}

    with fleet(**models) as stack:
        assert listed(stack, "away", "busy", "m") == {"m": True, "alias": True, "away": True, "busy": False}
        assert listed(stack, "away") == {"away": False}
        shown = httpx.get(stack.url + "/v1/models").json()["data"]
        assert {card["id"] for card in shown} == {"m", "alias", "away", "busy"}


LISTS = ("/v1/models", "/anthropic/v1/models", "/v1beta/models", "/api/tags")


def test_a_model_that_is_not_listed_may_be_called() -> None:
    with fleet(quiet={"listed": False, "aliases": ["also-quiet"], "worker": ""}) as stack:
        for path in LISTS:
            shown = httpx.get(stack.url + path)
            assert shown.status_code == 200, path
            assert '"m"' in shown.text or "models/m" in shown.text or "m:latest" in shown.text, path
            assert "quiet" not in shown.text, path
        for name in ("quiet", "also-quiet"):
            assert httpx.get(f"{stack.url}/v1/models/{name}").json()["id"] == name
            assert ask(stack, usual("openai"), name).status_code == 200


@pytest.mark.parametrize(
    ("dialect", "first", "last"),
    [("openai", b"\n", b"data: [DONE]"), ("anthropic", b"event: message_start\n", b'data: {"type":"message_stop"}')],
)
def test_a_head_that_went_out_with_a_keepalive_commits_to_no_model(dialect: str, first: bytes, last: bytes) -> None:
    config = {"relay": {"keepalive_s": 0.05}, "queue": {"timeout_s": 0.3}}
    with fleet(config, slow={"max_in_flight": 1, "fallback": ["m"]}) as stack:
        stalled = raw_request(stack, chat(scripted(text="a", fault="stall@before"), model="slow"))
        stack.run(stack.sims[1].ledger.wait(running=1))
        body = {**usual(dialect).body(stream=True), "model": "slow"}
        with httpx.stream("POST", stack.url + usual(dialect).path(), json=body) as reply:
            text = b"".join(reply.iter_bytes())
        stalled.close()
        assert reply.status_code == 200
        assert text.startswith(first), "it was kept waiting"
        assert text.rstrip().endswith(last)
        assert text.count(b"event: message_start") == (dialect == "anthropic")
        assert {record["model"] for record in stack.records()} == {"slow", "m"}


# -- why another model --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_error_is_a_reason_or_none(kind: Kind) -> None:
    reasons = {
        Kind.CONTEXT_LENGTH: "context_length",
        Kind.OVERLOADED: "overloaded",
        Kind.NO_WORKER: "unavailable",
        Kind.UPSTREAM: "unavailable",
        Kind.TRUNCATED: "unavailable",
        Kind.TIMEOUT: "unavailable",
    }
    assert reason_of(GatewayError(kind, "x")) == reasons.get(kind)


def test_a_full_queue_is_an_overload_and_a_reached_limit_is_none() -> None:
    assert reason_of(Busy("x", "queue_full", 1.0)) == "overloaded"
    assert reason_of(GatewayError(Kind.LIMITED, "x")) is None


def test_what_no_worker_would_do_better_is_no_reason() -> None:
    assert reason_of(GatewayError(Kind.UPSTREAM, "x", retryable=False)) is None
    assert reason_of(GatewayError(Kind.TIMEOUT, "x", blame=Blame.US)) is None


# -- split ---------------------------------------------------------------------------------------------------------


def test_a_split_is_named_and_falls_back() -> None:
    models: dict[str, dict[str, Any]] = {
        "stable": {"split": [{"model": "m", "headers": {"x-canary": "1"}}, {"model": "bad", "keys": ["one"]}]},
        "bad": {"worker": "status:500", "fallback": ["m"]},
    }
    with fleet({"keys": hashes()}, **models) as stack:
        way = usual("openai")
        reply = ask(stack, way, "stable", headers={**NARROW, "x-canary": "1"})
        assert (reply.headers["x-dragoman-model"], reply.headers["x-dragoman-routed"]) == ("m", "split")
        assert reply.json()["model"] == "stable", "the name stands for all of its models"
        record = stack.record()
        assert (record["model"], record["asked"], record["routed"]) == ("m", "stable", "split")
        reply = ask(stack, way, "stable", headers=ONE)
        assert reply.headers.get_list("x-dragoman-model") == ["m"]
        record = stack.record()
        assert (record["model"], record["asked"], record["routed"]) == ("m", "stable", "unavailable")
        reply = ask(stack, way, "stable", headers={**NARROW, "x-canary": "2"})
        assert "x-dragoman-model" not in reply.headers
        assert stack.record()["model"] == "stable"


SESSIONS = frozenset((b"x-session-id",))


def test_shares_of_chance_add_up_in_order() -> None:
    at = iter([0.0, 0.09, 0.11, 0.29, 0.31, 0.99])
    split = Split("m", (SplitRule(model="a", share=0.1), SplitRule(model="b", share=0.2)), SESSIONS, lambda: next(at))
    assert [split.choose([], ANONYMOUS) for _ in range(6)] == ["a", "a", "b", "b", None, None]


@pytest.mark.parametrize("by", ["session", "key"])
def test_what_belongs_together_stays_together_and_the_share_holds(by: str) -> None:
    split = Split("m", (SplitRule(model="a", share=0.3),), SESSIONS if by == "session" else None)
    found: Counter[str | None] = Counter()
    for number in range(1000):
        headers = [(b"x-session-id", b"%d" % number)] if by == "session" else []
        who = Principal(f"key {number}") if by == "key" else ANONYMOUS
        chosen = {split.choose(headers, who) for _ in range(3)}
        assert len(chosen) == 1
        found.update(chosen)
    assert 230 < found["a"] < 370
    other = Split("n", (SplitRule(model="a", share=0.3),), split.sessions)
    differ = sum(
        split.choose([(b"x-session-id", b"%d" % one)], Principal(f"key {one}"))
        != other.choose([(b"x-session-id", b"%d" % one)], Principal(f"key {one}"))
        for one in range(200)
    )
    assert differ > 20, "two models' splits are drawn apart"
