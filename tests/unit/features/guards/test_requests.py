"""What a guard is shown of requests in every dialect, what becomes of its answer, and whom it is asked for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from gateway.core.end_users import end_user
from tests.support.clients import Way
from tests.support.harness import Stack
from tests.support.ports import free_port
from tests.support.sampled import of_dialect, sampled
from tests.support.standins.guard import ALLOW, Guard
from tests.support.standins.web import web
from tests.unit.app.media import answer
from tests.unit.app.media import scripted as scripted_worker
from tests.unit.features.guards.asking import AFTERS, REFUSED, SECRET, USUAL, config_of, masking, refusing, send
from tests.unit.features.test_web_tools import FETCH, SEARCH, asked, call, post, tools
from tests.unit.kernel.asking import PATH, chat, scripted

MEDIA = ("speak", "draw")
SHOWN = [way for way in USUAL if way.operation in ("chat", "complete", "embed", "score", "rerank", *MEDIA)]


def sent(stack: Stack) -> str:
    """The last request that the worker got, without a seed that the gateway has drawn."""
    return re.sub(r'"seed":\d+', '"seed":0', all_sent(stack)[-1])


def all_sent(stack: Stack) -> list[str]:
    return [entry.body.decode() for entry in stack.sim.ledger.entries if entry.body]


@pytest.mark.parametrize("way", sampled(SHOWN, 3, of_dialect), ids=str)
def test_a_guard_sees_the_text_and_a_worker_the_one_that_replaces_it(fresh: tuple[Stack, Guard], way: Way) -> None:
    stack, running = fresh
    stream = not way.answers(stream=False)
    send(stack, way, "free", f"tell {SECRET} now", stream=stream)
    plain = sent(stack)
    allowed = send(stack, way, "m", f"tell {SECRET} now", stream=stream)
    assert sent(stack) == plain  # to allow changes no byte
    (question,) = running.asked
    assert (question["stage"], question["guard"], question["model"], question["dialect"]) == (
        "before", "in", "m", way.dialect,
    )  # fmt: skip
    assert any(SECRET in shown["text"] for shown in question["texts"])
    running.decide = masking
    replaced = send(stack, way, "m", f"tell {SECRET} now", stream=stream)
    served = 400 if way.operation in MEDIA else 200  # the tests' worker neither speaks nor draws
    assert (allowed.status_code, replaced.status_code) == (served, served), replaced.text
    assert json.loads(sent(stack)) == json.loads(plain.replace(SECRET, "****"))
    record = stack.record()
    assert record["guards"] == ["in before replaced"]
    assert record["guard_ms"] > 0


@pytest.mark.parametrize("way", sampled(SHOWN, 3, of_dialect), ids=str)
def test_a_refusal_is_an_error_of_the_dialect(fresh: tuple[Stack, Guard], way: Way) -> None:
    stack, running = fresh
    running.decide = refusing("now")
    before = len(all_sent(stack))
    reply = send(stack, way, "m", "tell it now", stream=not way.answers(stream=False))
    assert reply.status_code in REFUSED, reply.text
    assert "not here" in reply.text
    assert len(all_sent(stack)) == before
    record = stack.record()
    assert (record["model"], record["outcome"], record["attempts"], record["guards"]) == (
        "m", "refused", 0, ["in before refused"],
    )  # fmt: skip
    assert record["guard_ms"] > 0


def test_all_of_a_conversation_is_shown(fresh: tuple[Stack, Guard]) -> None:
    stack, running = fresh
    tool = {"name": "f", "description": "Finds.", "parameters": {"type": "object"}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    called = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "What?"}, image]},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "1", "content": "found"},
    ]
    body = {"model": "m", "messages": messages, "tools": [{"type": "function", "function": tool}], "user": "u1"}
    httpx.post(stack.url + PATH, json={**body, "documents": [{"text": "d"}]})
    (question,) = running.asked
    assert question["texts"] == [
        {"role": "system", "text": "Be short."},
        {"role": "user", "text": "What?", "name": "ann"},
        {"role": "assistant", "text": '{"x": 1}', "kind": "tool", "name": "f"},
        {"role": "tool", "text": "found"},
        {"role": "tools", "text": "Finds.", "name": "f"},
        {"role": "tools", "text": '{"type":"object"}', "kind": "schema", "name": "f"},
    ]
    assert question["others"] == ["documents", "image"]
    assert question["user"] == "u1"
    running.decide = masking
    httpx.post(stack.url + PATH, json=body)
    assert json.loads(sent(stack))["messages"] == messages


def test_a_guard_chooses_a_model(service: Guard) -> None:
    service.decide = lambda question: {"action": "allow", "model": "other"}
    keys = {"all": {"hash": "sha256:" + "0" * 64}, "narrow": {"hash": KEY_HASH, "models": ["m"]}}
    with Stack(({}, {})) as stack:
        model = {"backend": "vllm", "upstream_model": "sim"}
        models = {
            "m": {"workers": [stack.sims[0].url]},
            "other": {**model, "aliases": ["o"], "workers": [stack.sims[1].url]},
        }
        stack.run(stack.gateway.reload(stack.config({"models": models, **config_of(service)})))
        reply = httpx.post(stack.url + PATH, json=chat("hi"))
        assert reply.json()["model"] == "m"
        assert (reply.headers["x-dragoman-model"], reply.headers["x-dragoman-routed"]) == ("other", "chosen")
        record = stack.record()
        assert (record["model"], record["asked"], record["routed"], record["worker"]) == (
            "other", "m", "chosen", stack.sims[1].url,
        )  # fmt: skip
        assert len(service.asked) == 1
        service.decide = lambda question: {"action": "allow", "model": "o"}
        assert httpx.post(stack.url + PATH, json=chat("hi")).headers["x-dragoman-model"] == "other"
        stack.run(stack.gateway.reload(stack.config({"models": models, "keys": keys, **config_of(service)})))
        reply = httpx.post(stack.url + PATH, json=chat("hi"), headers={"authorization": f"Bearer {KEY}"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "guard_unavailable")
        service.decide = lambda question: {"action": "allow", "model": "none"}
        reply = httpx.post(stack.url + PATH, json=chat("hi"), headers={"authorization": f"Bearer {KEY}"})
        assert reply.json()["error"]["code"] == "guard_unavailable"
        assert [line["reason"] for line in stack.events("guard failed")] == ["model", "model"]


@pytest.mark.parametrize(("asked", "chosen"), [("m", "sql"), ("sql", "m"), ("sql", "sql")])
def test_an_adapter_is_a_model_of_its_own(service: Guard, asked: str, chosen: str) -> None:
    service.decide = lambda question: {"action": "allow", "model": chosen}
    config = {"models": {"m": {"adapters": True}}, "routing": {"scrape_s": 0}}
    guards = {"g": {"url": service.url}, "of-the-model": {"url": service.url, "models": ["m"]}}
    with Stack(({"adapters": ("sql",)},), config={**config, "guards": guards}) as stack:
        reply = httpx.post(stack.url + PATH, json=chat("hi") | {"model": asked})
        assert json.loads(sent(stack))["model"] == {"m": "sim", "sql": "sql"}[chosen]
        record = stack.record()
        assert (record["model"], record["adapter"]) == ("m", None if chosen == "m" else "sql")
        named = (asked, "chosen", chosen) if asked != chosen else (None, None, None)
        assert (record["asked"], record["routed"], reply.headers.get("x-dragoman-model")) == named
        assert [one["guard"] for one in service.asked] == ["g", "of-the-model"]


SECRET_OF_USERS = "0123456789abcdef0123456789abcdef"


@pytest.mark.feature("end_users")
@pytest.mark.parametrize(
    ("options", "header", "user"),
    [
        ({"header": "x-end-user"}, "ann", "ann"),
        ({"header": "x-end-user"}, None, "bob"),
        ({"header": "x-end-user", "body": False}, None, None),
        ({"header": "x-end-user", "secret_env": "USERS"}, "ann", end_user("ann", SECRET_OF_USERS)),
        ({}, "ann", "bob"),
    ],
    ids=["header", "body", "no body", "secret", "no header"],
)
def test_a_guard_is_shown_the_end_user(service: Guard, options: Any, header: str | None, user: str | None) -> None:
    config = {**config_of(service, after="whole"), "end_users": options, "listen": {"trusted_proxies": ["127.0.0.1"]}}
    with Stack(config=config, environ={"USERS": SECRET_OF_USERS}) as stack:
        headers = {} if header is None else {"x-end-user": header}
        assert httpx.post(stack.url + PATH, json=chat("hi", user="bob"), headers=headers).status_code == 200
        assert [(one["stage"], one["user"]) for one in service.asked] == [("before", user), ("after", user)]
        assert stack.record().get("end_user") == user


@pytest.mark.feature("end_users")
def test_a_request_without_the_end_user_that_it_must_name_reaches_no_guard(service: Guard) -> None:
    with Stack(config={**config_of(service), "end_users": {"required": True}}) as stack:
        assert httpx.post(stack.url + PATH, json=chat("hi")).status_code == 400
        assert (service.asked, stack.record()["model"]) == ([], "m")


KEY = "sk-guards-0123456789abcdef"
KEY_HASH = "sha256:14b704442c5a07bed612658e71a81bd8b8648e71e498ceae7c7d8d737d0499da"


def test_a_guard_is_asked_once_and_its_texts_stay_for_a_fallback(service: Guard) -> None:
    service.decide = masking
    with Stack(config={**config_of(service), "retry": {"min_per_second": 100}}) as stack:
        model = {"backend": "vllm", "upstream_model": "sim"}
        models = {
            "m": {"workers": [f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"], "fallback": ["b"]},
            "b": {**model, "workers": [stack.sim.url]},
        }
        guards = config_of(service)["guards"] | {"b-only": {"url": service.url, "models": ["b"]}}
        stack.run(stack.gateway.reload(stack.config({"models": models, "guards": guards})))
        assert httpx.post(stack.url + PATH, json=chat(f"tell {SECRET}")).status_code == 200
        assert [(one["guard"], one["model"]) for one in service.asked] == [("g", "m"), ("b-only", "b")]
        assert service.texts("before") == [[f"tell {SECRET}"], ["tell ****"]]
        assert "****" in sent(stack)
        assert SECRET not in sent(stack)


def test_keys_and_models_that_a_guard_has_nothing_to_do_with(service: Guard) -> None:
    other = {"hash": "sha256:" + sha256(b"sk-another-0123456789").hexdigest()}
    with Stack() as stack:
        model = {"backend": "vllm", "upstream_model": "sim", "workers": [stack.sim.url]}
        config = config_of(service, models=["alias"], keys=["one"], after="whole")
        config |= {"keys": {"one": {"hash": KEY_HASH}, "two": other}, "models": {"free": model}}
        stack.run(stack.gateway.reload(stack.config(config)))
        for key, name in ((KEY, "free"), ("sk-another-0123456789", "m"), (KEY, "m")):
            assert not service.asked
            body = {**chat("hi"), "model": name}
            reply = httpx.post(stack.url + PATH, json=body, headers={"authorization": f"Bearer {key}"})
            assert reply.status_code == 200
        assert [one["stage"] for one in service.asked] == ["before", "after"]


def test_limits_come_before_guards(service: Guard) -> None:
    limits = [{"name": "few", "kind": "requests", "limit": 2, "scope": ["address"]}]
    with Stack(config={**config_of(service), "limits": limits}) as stack:
        replies = [httpx.post(stack.url + PATH, json=chat("hi")) for _ in range(4)]
        assert [reply.status_code for reply in replies] == [200, 200, 429, 429]
        assert len(service.asked) == 2
        names = [name for name in replies[0].headers if "ratelimit" in name]
        assert len(names) == len(set(names))
        assert replies[1].headers["x-ratelimit-remaining-requests"] == "0"


def test_a_guarded_fallback_has_the_place_of_the_model_that_failed(service: Guard) -> None:
    """Under a limit of one request at a time; and a request that its guard refuses counts once."""
    limits = [
        {"name": "one", "kind": "concurrency", "limit": 1, "scope": ["key"]},
        {"name": "all", "kind": "requests", "limit": 2, "scope": ["key"]},
    ]
    with Stack(({"fault": "status:500"}, {})) as stack:
        failing, other = (sim.url for sim in stack.sims)
        models = {
            "m": {"workers": [failing], "fallback": ["other"]},
            "other": {"backend": "vllm", "upstream_model": "sim", "workers": [other]},
        }
        guards = config_of(service, models=["other"])
        stack.run(stack.gateway.reload(stack.config({"models": models, "limits": limits, **guards})))
        service.decide = refusing("never")
        found = [httpx.post(stack.url + PATH, json=chat(text)).status_code for text in ("never", "hi", "hi")]
        assert found == [502, 200, 429]


def test_the_texts_of_an_upload_are_shown(service: Guard) -> None:
    """And replaced in the worker's upload, once, after the limits that count it."""
    drawn = b'{"created":1,"data":[{"b64_json":"eA=="}]}'
    service.decide = masking
    limits = [{"name": "all", "kind": "requests", "limit": 5, "per_s": 3600}]
    with scripted_worker(lambda worker, asked, handler: answer(handler, drawn)) as worker:
        model = {"backend": "vllm", "upstream_model": "sim", "workers": [worker.url]}
        with Stack((), {"models": {"m": model}, "limits": limits, **config_of(service)}) as stack:
            for _ in range(2):
                form = {"model": "m", "prompt": f"a {SECRET}", "size": SECRET}
                sent = httpx.post(stack.url + "/v1/images/edits", data=form, files={"image": ("a.png", b"x")})
                assert sent.status_code == 200, sent.text
                fields = dict(worker.asked[-1].fields)
                assert (fields["prompt"], fields["size"]) == ("a ****", SECRET)
            said = {"model": "m", "input": SECRET, "voice": "v", "instructions": f"as {SECRET}"}
            httpx.post(stack.url + "/v1/audio/speech", json=said)
            told = json.loads(worker.asked[-1].body)
            assert told == {"model": "sim", "input": "****", "voice": "v", "instructions": "as ****"}
            odd = {"model": "m", "prompt": "a", "instructions": {"a": SECRET}, "negative_prompt": SECRET}
            httpx.post(stack.url + "/v1/images/generations", json=odd)
            heard = {"model": "m", "keywords[]": ["a", "b"], "known_speaker_names[]": SECRET, "language": "en"}
            httpx.post(stack.url + "/v1/audio/transcriptions", data=heard, files={"file": ("a.wav", b"x")})
    shown = [[(one["role"], one["text"]) for one in question["texts"]] for question in service.asked]
    spoken, drawn_by = [("input", SECRET), ("instructions", f"as {SECRET}")], [("prompt", "a")]
    speech = [("keywords", "a"), ("keywords", "b"), ("known_speaker_names", SECRET)]
    assert shown == [*[[("prompt", f"a {SECRET}")]] * 2, spoken, drawn_by, speech]
    unseen = ["instructions", "negative_prompt"]
    assert [question.get("others") for question in service.asked] == [["image"], ["image"], [], unseen, ["audio"]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", AFTERS)
def test_rounds_with_tools_of_the_gateway(service: Guard, after: str, stream: bool) -> None:
    service.decide = masking
    with web() as pages, Stack(config={**config_of(service, before=False, after=after), **tools(pages)}) as stack:
        rounds = (
            {"text": "Let me look.", "tool_calls": [call("web_search", query="weather")]},
            {"tool_calls": [call("web_fetch", url=f"{pages.url}/page")]},
            {"text": f"It rains, {SECRET}."},
        )
        message = post(stack, asked(*rounds, tools=(SEARCH, FETCH)), stream=stream)
        kinds = [block["type"] for block in message["content"] if block["type"] != "thinking"]
        assert kinds == [
            "text", "server_tool_use", "web_search_tool_result", "server_tool_use", "web_fetch_tool_result", "text",
        ]  # fmt: skip
        assert message["content"][-1]["text"] == "It rains, ****."
        assert message["stop_reason"] == "end_turn"
        service.decide = refusing(SECRET)
        reply = httpx.post(stack.url + "/v1/messages", json={**asked(*rounds), "stream": stream}, timeout=30)
        assert SECRET not in reply.text
        assert "not here" in reply.text
        assert stack.record()["outcome"] == "refused"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", AFTERS)
@pytest.mark.parametrize("dialect", ["anthropic", "responses"])
def test_what_a_tool_of_the_gateway_is_asked_is_shown_first(
    service: Guard, dialect: str, after: str, stream: bool
) -> None:
    """Else what the model wrote would reach a search service and the client unseen."""
    service.decide = masking
    with web() as pages, Stack(config={**config_of(service, before=False, after=after), **tools(pages)}) as stack:
        rounds = ({"tool_calls": [call("web_search", query=f"who is {SECRET}")]}, {"text": "Nobody."})
        body = asked(*rounds, tools=(SEARCH,)) | {"stream": stream}
        path = "/v1/messages"
        if dialect == "responses":
            path = "/v1/responses"
            body = {"model": "m", "input": body["messages"], "tools": [{"type": "web_search"}], "stream": stream}
        reply = httpx.post(stack.url + path, json=body, timeout=30)
        assert reply.status_code == 200, reply.text
        assert "who is ****" in reply.text
        assert stack.record()["tools"] == ["search"]
        assert SECRET not in reply.text
        assert [unquote(one) for one in pages.asked] == ["/search?q=who is ****&format=json"]
        (shown,) = service.asked[0]["texts"]
        assert shown == {"role": "assistant", "text": f"who is {SECRET}", "kind": "tool", "name": "web_search"}
        service.decide = refusing(SECRET)
        reply = httpx.post(stack.url + path, json=body, timeout=30)
        assert SECRET not in reply.text
        assert "not here" in reply.text
        assert stack.record()["outcome"] == "refused"
        assert [unquote(one) for one in pages.asked] == ["/search?q=who is ****&format=json"]


def test_no_secret_reaches_a_guard_and_none_of_its_own_a_log(service: Guard) -> None:
    own = {"Authorization": "Bearer guards-own-secret-0123456789"}
    config = config_of(service, headers=own, after="whole") | {"log": {"level": "debug"}}
    config["models"] = {"m": {"headers": {"x-worker": "workers-secret"}}}
    with Stack(config=config) as stack:
        headers = {"authorization": f"Bearer {KEY}", "cookie": "c=client-cookie", "x-request-id": "req-7"}
        httpx.post(stack.url + PATH, json=chat("hi"), headers=headers)
        service.decide = lambda question: {"action": "refuse", "reason": f"because of {KEY}"}
        reply = httpx.post(stack.url + PATH, json=chat("hi"), headers=headers)
        assert KEY not in reply.text
        assert service.headers[0]["authorization"] == own["Authorization"]
        said = json.dumps([service.asked, [{**one, "authorization": ""} for one in service.headers]])
        for secret in (KEY, "client-cookie", "workers-secret", stack.sim.url):
            assert secret not in said
        stack.gateway.log.flush()
        page = httpx.get(stack.url + "/metrics").text
        assert "guards-own-secret" not in stack.output.getvalue().decode() + page
        assert 'dragoman_guard_checks_total{guard="g",result="allowed",stage="after"} 1.0' in page
        assert 'dragoman_guard_checks_total{guard="g",result="refused",stage="before"} 1.0' in page
        assert 'dragoman_guard_seconds_count{guard="g",stage="before"} 2.0' in page
        assert [line["result"] for line in stack.events("guard asked")] == ["allowed", "allowed", "refused"]
        assert service.asked[0]["id"] == "req-7"


def test_large_requests_are_shown_too(service: Guard) -> None:
    service.decide = masking
    with Stack(({"max_model_len": 10_000_000},), config=config_of(service, max_bytes="8MiB")) as stack:
        text = f"{SECRET} " * 100_000
        reply = httpx.post(stack.url + PATH, json=chat(text, max_tokens=1), timeout=60)
        assert reply.status_code == 200
        assert SECRET not in sent(stack)
        stack.run(stack.gateway.reload(stack.config(config_of(service, max_bytes="1MiB"))))
        reply = httpx.post(stack.url + PATH, json=chat(text, max_tokens=1), timeout=60)
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "guard_unavailable")
        assert stack.events("guard failed")[-1]["reason"] == "too_large"


def test_the_guard_of_the_page(tmp_path: Path) -> None:
    """The program of docs/guards.md, as it stands there, between a client and a worker."""
    page = (Path(__file__).parents[4] / "docs" / "guards.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(program.splitlines()) <= 50
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-c", program.replace("9000", str(port))], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "guarding\n"
            guards = {"personal-data": {"url": f"http://127.0.0.1:{port}/", "after": "windows"}}
            with Stack(config={"guards": guards}) as stack:
                httpx.post(stack.url + PATH, json=chat("Write to ann@example.com"))
                assert json.loads(sent(stack))["messages"][0]["content"] == "Write to [mail]"
                answer = chat(scripted(text="The address is bob@example.com, I think."), stream=True)
                assert "bob@" not in httpx.post(stack.url + PATH, json=answer).text
                reply = httpx.post(stack.url + PATH, json=chat("this is forbidden"))
                assert reply.json()["error"]["message"] == "this gateway does not talk about that"
        finally:
            process.kill()


def test_arguments_are_shown_as_all_read_them(fresh: tuple[Stack, Guard]) -> None:
    stack, running = fresh
    running.decide = lambda question: ALLOW
    written = r'{"a": "\u0034711-\u0073ecret\n\u0022 \ud83d\ude00 \\u0041 \u0000", "b": 1.50}'
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": written}}]
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "found"},
    ]
    httpx.post(stack.url + PATH, json={"model": "m", "messages": messages})
    (shown,) = [one["text"] for one in running.asked[-1]["texts"] if one.get("kind") == "tool"]
    assert shown == rf'{{"a": "{SECRET}\n\u0022 😀 \\u0041 \u0000", "b": 1.50}}'
    assert json.loads(shown) == json.loads(written)
    assert json.loads(sent(stack))["messages"][1]["tool_calls"][0]["function"]["arguments"] == written
    running.decide = refusing(SECRET)
    assert httpx.post(stack.url + PATH, json={"model": "m", "messages": messages}).status_code in REFUSED
