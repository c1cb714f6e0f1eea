"""Policies on requests: what workers get of them, in every dialect, and what clients and limits see."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway import backends
from gateway.cli import main
from gateway.config.request_policies import RequestPolicy
from gateway.core.messages import Chat
from gateway.core.ports import Capabilities
from gateway.features.request_policies import Rules
from gateway.translation import offline
from gateway.wire.openai.requests.members import Member
from tests.chaos import ruled
from tests.support.clients import DIALECTS, WAYS, Way, usual
from tests.support.harness import Stack, soon
from tests.unit.app.asking import CHAT, GONE, key
from tests.unit.kernel.asking import chat

URL = "/v1/chat/completions"
GENERATING = [way for way in WAYS if way.operation in ("chat", "complete") and way.example.route != "compact"]


def stack(*policies: dict[str, Any], **sections: Any) -> Stack:
    return Stack(config={"request_policies": {f"p{at}": one for at, one in enumerate(policies)}, **sections})


def got(running: Stack) -> dict[str, Any]:
    """The body of the last request to the worker."""
    found: dict[str, Any] = json.loads(running.sims[0].entries[-1].body)
    return found


def ask(running: Stack, way: Way, **members: Any) -> httpx.Response:
    stream = not way.answers(stream=False)
    body = {"model": "m", **way.body(stream=stream, **members)}
    return httpx.post(running.url + way.path("m"), json=body, timeout=30)


def test_every_dialect_gets_defaults_forced_values_and_caps() -> None:
    with stack(
        {"defaults": {"seed": 5}, "force": {"temperature": 0.5}, "caps": {"max_tokens": 40}},
    ) as running:
        for way in GENERATING:
            for members in ({}, {"max_tokens": 900}):
                reply = ask(running, way, **members)
                assert reply.status_code == 200, (str(way), reply.text)
                body = got(running)
                most = 40 if members else way.example.body.get("max_tokens", 40)
                assert (body["max_tokens"], body["seed"], body["temperature"]) == (most, 5, 0.5), (str(way), body)


def test_what_a_request_says_stands_before_defaults_and_below_caps() -> None:
    with stack({"defaults": {"seed": 5, "stop": ["x"], "max_tokens": 30}, "caps": {"max_tokens": 40}}) as running:
        reply = httpx.post(running.url + URL, json=chat(seed=6, max_tokens=20))
        assert "x-dragoman-policy" not in reply.headers
        assert {"seed": 6, "max_tokens": 20, "stop": ["x"]}.items() <= got(running).items()
        for name in ("max_tokens", "max_completion_tokens"):
            reply = httpx.post(running.url + URL, json={**chat(), name: 50})
            assert reply.headers["x-dragoman-policy"] == "max_tokens=40"
            assert got(running)["max_tokens"] == 40
            assert "max_completion_tokens" not in got(running)
        httpx.post(running.url + URL, json=chat(stop=None))
        assert got(running)["max_tokens"] == 30


def test_a_forced_value_that_replaces_another_one_is_named() -> None:
    with stack({"force": {"temperature": 0, "n": 1}}) as running:
        assert "x-dragoman-policy" not in httpx.post(running.url + URL, json=chat(temperature=0)).headers
        assert "x-dragoman-policy" not in httpx.post(running.url + URL, json=chat()).headers
        reply = httpx.post(running.url + URL, json=chat(temperature=1, n=3, max_tokens=3))
        assert reply.headers["x-dragoman-policy"] == "n, temperature"
        assert len(reply.json()["choices"]) == 1


def test_a_cap_that_refuses_does_so_in_every_dialect() -> None:
    with stack({"caps": {"max_tokens": 40}, "over_cap": "refuse"}) as running:
        for number, way in enumerate(GENERATING, 1):
            assert ask(running, way).status_code == 200, way
            assert "may be at most 40 here" in ask(running, way, max_tokens=41).text
            assert running.record()["outcome"] == "refused", way
            assert len(running.sims[0].entries) == number


def test_the_nearest_policy_counts() -> None:
    secret, entry = key("app", team="blue")
    other, entry_of_other = key("other")
    policies = (
        {"match": {"key": ["app"]}, "caps": {"max_tokens": 30}},
        {"defaults": {"seed": 1, "top_p": 0.5}, "caps": {"max_tokens": 60}, "system": "All."},
        {"match": {"team": ["blue"]}, "caps": {"max_tokens": 40}, "defaults": {"seed": 3}},
        {"match": {"model": ["alias"]}, "caps": {"max_tokens": 50}, "defaults": {"seed": 2}, "system": "Model."},
        {"match": {"model": ["m"], "key": ["stranger"]}, "force": {"seed": 9}},
    )
    with stack(*policies, keys=entry | entry_of_other | key("stranger")[1]) as running:
        for bearer, most, seed in ((secret, 30, 3), (other, 50, 2)):
            headers = {"authorization": f"Bearer {bearer}"}
            assert httpx.post(running.url + URL, json=chat(), headers=headers).status_code == 200
            body = got(running)
            assert (body["max_tokens"], body["seed"], body["top_p"]) == (most, seed, 0.5)
            assert body["messages"][0] == {"role": "system", "content": "Model."}


def test_limits_count_what_a_cap_leaves() -> None:
    limits = [{"name": "t", "kind": "tokens", "limit": 200, "scope": [], "reserve": "maximum"}]
    with stack({"caps": {"max_tokens": 20}}, limits=limits) as running:
        assert httpx.post(running.url + URL, json=chat(max_tokens=9000)).status_code == 200


RULED: dict[str, Any] = {**ruled.RULED, "top_logprobs": 2, "logprobs": True}
"""The members that clients ask for against the policy, by the names of vLLM's wire."""
DROPPED = (*ruled.DROPPED, "repetition_penalty", "logprobs")


@pytest.mark.parametrize("backend", backends.REGISTRY)
def test_no_client_evades_a_policy(backend: str) -> None:
    """Each member, by itself and beside the others, in capitals and not, in the words of every dialect and of vLLM,
    which all of them take: what a worker gets is what the policy says."""
    rules, worker = Rules(), backends.create(backend)
    force: dict[str, Any] = {"temperature": 0.5, "seed": 5}
    caps: dict[str, float] = {"max_tokens": 40, "top_k": 7, "n": 1}
    rules.add(RequestPolicy(force=force, caps=caps, drop=DROPPED))
    given = 0
    for way in GENERATING:
        asked = [{name: value} for name, value in RULED.items()]
        asked += [{name.upper(): value} for name, value in RULED.items()]
        asked += [{"\u017feed": 9}, {"max_to\u212aens": 900}, {"n": 3, "seed": [1, 7, 9]}, RULED]
        for members in asked:
            for body in ({**way.body(), **members}, way.body(**members)):
                try:
                    request, op = offline.read(
                        DIALECTS[way.dialect],
                        json.dumps(body).encode(),
                        route=way.example.route,
                        query=way.example.query,
                    )
                    dialect, can = DIALECTS[way.dialect], Capabilities("m")
                    crossing = offline.cross(dialect, request, op, worker, can, rules.apply)
                except offline.Refused:
                    continue
                given += 1
                assert not crossing.more, (str(way), members)
                flat = json.loads(crossing.outgoing.body)
                flat |= flat.get("parameters", {})
                most = [value for name, value in flat.items() if name.casefold() in MOST]
                assert most
                assert all(value is not None and value <= 40 for value in most), (str(way), members, flat)
                assert flat["temperature"] == 0.5, (str(way), members, flat)
                assert flat.get("seed", 5) == 5, (str(way), members, flat)
                assert (flat.get("n") or 1, flat.get("top_k") or 1) <= (1, 7), (str(way), members, flat)
                left = {name.casefold(): value for name, value in flat.items()}
                passed = [name for name in DROPPED if left.get(name) == RULED[name]]
                assert not passed, (str(way), members, flat)
                assert way.operation == "complete" or "top_logprobs" not in left, (str(way), members, flat)
    assert given > 500


MOST = ("max_tokens", "max_completion_tokens", "max_new_tokens", "n_predict", "num_predict")


def test_models_that_reason_get_what_they_take() -> None:
    with stack({"preset": "openai-reasoning"}, {"defaults": {"temperature": 0.2}}) as running:
        for way in (way for way in GENERATING if way.operation == "chat"):
            reply = ask(running, way, max_tokens=50, temperature=0.3, top_p=0.5)
            assert reply.status_code == 200, way
            body = got(running)
            assert body["max_completion_tokens"] == 50
            assert body.keys().isdisjoint({"max_tokens", "temperature", "top_p"})
            assert "temperature" in reply.headers["x-dragoman-dropped"]


def test_a_system_message_stands_in_front_and_nothing_else_is_lost() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "hi", "x": 1}], "y": 2}
    with stack({"system": "Be brief."}) as running:
        body = {"model": "m", "messages": [{"role": "system", "content": "A."}, message], "custom": {"a": 1}}
        assert httpx.post(running.url + URL, json=body).status_code == 200
        sent = got(running)
        assert "Be brief." in json.dumps(sent["messages"][0])
        assert "A." in json.dumps(sent["messages"][:2])
        assert (sent["messages"][-1], sent["custom"]) == (message, {"a": 1})
        plain = {"model": "m", "messages": CHAT["messages"]}
        counted = httpx.post(running.url + "/v1/messages/count_tokens", json=plain).json()["input_tokens"]
    with Stack() as running:
        alone = httpx.post(running.url + "/v1/messages/count_tokens", json=plain).json()["input_tokens"]
    assert counted > alone


def test_members_of_the_engine_s_own_are_set_and_dropped() -> None:
    values = {"chat_template_kwargs": {"enable_thinking": False}}
    with stack({"defaults": values, "drop": ["custom", "logit_bias"]}) as running:
        reply = httpx.post(running.url + URL, json=chat(custom=1, logit_bias={"5": 1}))
        assert got(running)["chat_template_kwargs"] == {"enable_thinking": False}
        assert got(running).keys().isdisjoint({"custom", "logit_bias"})
        assert reply.headers["x-dragoman-dropped"] == "custom, logit_bias"
        ask(running, usual("anthropic"))
        assert got(running)["chat_template_kwargs"] == {"enable_thinking": False}
        httpx.post(running.url + URL, json=chat(chat_template_kwargs={"a": 1}))
        assert got(running)["chat_template_kwargs"] == {"a": 1}


def test_workers_get_headers_of_the_policy_and_those_that_may_pass() -> None:
    with stack({"headers": {"x-tenant": "blue"}, "pass_headers": ["X-Feature"]}) as running:
        given = {"x-feature": "on", "x-other": "1", "x-tenant": "red", "authorization": "Bearer none"}
        assert httpx.post(running.url + URL, json=chat(), headers=given).status_code == 200
        entry = running.sims[0].entries[-1]
        assert [entry.header(name) for name in ("x-tenant", "x-feature", "x-other")] == ["blue", "on", None]
        assert entry.header("authorization") is None


def test_a_fallback_has_its_own_policy_alone() -> None:
    policies = ({"match": {"model": ["gone"]}, "force": {"temperature": 1.5}, "system": "Gone.", "drop": ["stop"]},)
    with stack(*policies, models={"gone": {**GONE, "fallback": ["m"]}}) as running:
        reply = httpx.post(running.url + URL, json={**chat(temperature=0.5, stop=["z"]), "model": "gone"}, timeout=30)
        assert reply.status_code == 200
        body = got(running)
        assert (body["temperature"], body["stop"], len(body["messages"])) == (0.5, ["z"], 1)
        assert reply.headers.keys().isdisjoint({"x-dragoman-policy", "x-dragoman-dropped"})


COUNTED = ("/v1/messages/count_tokens", "/v1beta/models/{}:countTokens", "/v1/responses/input_tokens")


def count_of(running: Stack, path: str, model: str, **members: Any) -> int:
    """The reply that a client gets for a prompt of a word."""
    contents = [{"role": "user", "parts": [{"text": "hi"}]}]
    body: dict[str, Any] = {**chat("hi"), "input": "hi"} if "{" not in path else {"contents": contents}
    body = {name: value for name, value in body.items() if name in ("messages", "contents", "input")} | members
    if "input_tokens" in path:
        del body["messages"]
    reply = httpx.post(running.url + path.format(model), json={"model": model, **body}, timeout=30)
    assert reply.status_code == 200, reply.text
    found = reply.json()
    return int(found.get("input_tokens") or found["totalTokens"])


def asked_of(running: Stack) -> dict[str, Any]:
    """The body of the last question to the worker."""
    found: dict[str, Any] = json.loads(
        [one for one in running.sims[0].ledger.entries if "tokenize" in one.path][-1].body
    )
    return found


@pytest.mark.parametrize("path", COUNTED)
def test_a_prompt_is_counted_as_its_worker_would_get_it(path: str) -> None:
    """By the policies of the model that counts, once: not also by those of a model that could not."""
    kwargs = {"chat_template_kwargs": {"enable_thinking": False}}
    gone = {"match": {"model": ["gone"]}, "system": "Gone."}
    with stack(
        {"match": {"model": ["m"]}, "system": "Be brief.", "force": kwargs}, gone, models={"gone": fallback()}
    ) as running:
        plain = count_of(running, path, "m")
        assert asked_of(running)["chat_template_kwargs"] == kwargs["chat_template_kwargs"]
        assert [one["content"] for one in asked_of(running)["messages"]][:1] == ["Be brief."]
        assert count_of(running, path, "gone") == plain
        assert "Gone." not in json.dumps(asked_of(running))
        assert json.dumps(asked_of(running)).count("Be brief.") == 1


def fallback() -> dict[str, Any]:
    return {**GONE, "fallback": ["m"]}


def test_a_queue_s_bound_counts_what_policies_add() -> None:
    """A stranger's short requests must not hold long texts without a bound."""
    models = {"m": {"max_in_flight": 1}}

    async def ask(running: Stack) -> int:
        async with httpx.AsyncClient(timeout=30) as client:
            pool = running.gateway.deployment.pools["m"]
            tasks = [asyncio.create_task(client.post(running.url + URL, json=chat()))]
            await running.sim.ledger.wait(running=1)
            tasks.append(asyncio.create_task(client.post(running.url + URL, json=chat())))
            await soon(lambda: pool.waiting == 1)
            refused = await client.post(running.url + URL, json=chat())
            for task in tasks:
                task.cancel()
            return refused.status_code

    policies = {"long": {"system": "word " * 1000}}
    sections = {"request_policies": policies, "queue": {"max_bytes": 8000, "timeout_s": 20}, "models": models}
    with Stack(({"fault": "stall@before"},), sections) as running:
        assert running.run(ask(running)) == 429
        assert [one["code"] for one in running.records() if one["outcome"] == "refused"] == ["queue_full"]


def test_a_model_without_a_policy_has_no_layer() -> None:
    with stack({"match": {"model": ["other"]}, "system": "x"}, models={"other": dict(GONE)}) as running:
        models = running.gateway.deployment.runtime.models
        layers = {name: [type(one).__name__ for one in models[name].way.features] for name in ("m", "other")}
        assert ["RequestPolicies" in layers[name] for name in ("m", "other")] == [False, True]


def test_tools_are_chosen_only_where_there_are_some() -> None:
    op = Chat(model="m", messages=(), raw={})
    assert not Member("tool_choice", "none").put(op)
    assert op.raw == {}


@pytest.mark.parametrize(("name", "value"), [("stream", True), ("best_of", 2), ("temperature", 9), ("model", "x")])
def test_no_policy_sets_what_no_request_may_have(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"^is "):
        Member(name, value)


COMMAND_CONFIG = """
models:
  m: {backend: openai, workers: ["http://a:1"]}
keys:
  k: {hash: "sha256:%s"}
request_policies:
  all: {caps: {max_tokens: 40}, headers: {x-house: a}}
  one: {match: {key: [k]}, drop: [temperature], rename: {max_tokens: max_completion_tokens}}
  two: {match: {key: [other]}, caps: {max_tokens: 40}, over_cap: refuse}
""" % ("ab" * 32)


@pytest.mark.parametrize(("words", "refused"), [(["--key", "k"], False), ([], False), (["--key", "other"], True)])
def test_commands_show_changes(
    words: list[str], refused: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, body = tmp_path / "gateway.yaml", tmp_path / "body.json"
    config.write_text(COMMAND_CONFIG.replace("request_pol", '  other: {hash: "sha256:%s"}\nrequest_pol' % ("cd" * 32)))
    body.write_text(json.dumps(chat(max_tokens=90, temperature=1)))
    status = main(["explain", "--config", str(config), "--body", str(body), *words])
    out, err = capsys.readouterr()
    translated = ["translate", "--from", "openai", "--to", "openai", "--model", "m", "--policies", str(config)]
    assert main([*translated, "--body", str(body), *words]) == refused
    written, names = capsys.readouterr()
    if refused:
        assert "may be at most 40 here" in err
        assert (status, "may be at most 40 here" in written) == (1, True)
        return
    changes = "max_tokens=40, temperature dropped" if words else "max_tokens=40"
    assert f"policies: all{', one' * bool(words)}\nchanged: {changes}\n" in out
    assert changes in names
    sent = json.loads(written.partition("\n\n")[2])
    assert sent["max_completion_tokens" if words else "max_tokens"] == 40
    assert ("temperature" in sent) is not bool(words)


def test_two_names_of_one_member_are_no_way_around() -> None:
    for policy in ({"caps": {"max_tokens": 100}}, {"force": {"max_completion_tokens": 50}}):
        with stack(policy) as running:
            httpx.post(running.url + URL, json=chat(max_tokens=99999, max_completion_tokens=50))
            body = got(running)
            assert {body.get("max_tokens", 0), body.get("max_completion_tokens", 0)} <= {0, 50}
    with stack({"drop": ["max_tokens"]}, {"caps": {"max_completion_tokens": 50}}) as running:
        httpx.post(running.url + URL, json=chat(max_completion_tokens=60))
        assert got(running).keys().isdisjoint({"max_tokens", "max_completion_tokens"})


def test_a_cap_bounds_what_means_all_and_the_least_beside_the_most() -> None:
    with stack({"caps": {"top_k": 50, "max_tokens": 100}}) as running:
        for given in (-1, 0, 60):
            httpx.post(running.url + URL, json=chat(top_k=given, min_tokens=500, max_tokens=900))
            body = got(running)
            assert (body["top_k"], body["min_tokens"], body["max_tokens"]) == (50, 100, 100)


def test_uploads_are_not_renamed() -> None:
    with stack({"preset": "openai-reasoning"}) as running:
        files = {"file": ("a.wav", b"RIFF" + b"\0" * 60, "audio/wav")}
        reply = httpx.post(running.url + "/v1/audio/transcriptions", data={"model": "m"}, files=files)
        assert reply.status_code != 500


@pytest.mark.parametrize("name", ["top_logprobs", "logprobs", "stop"])
def test_only_numbers_are_bounded(name: str) -> None:
    value: Any = ["x"] if name == "stop" else 3
    assert not Member(name, value).bounded
