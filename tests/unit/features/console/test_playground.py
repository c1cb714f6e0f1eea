"""The playground: one request through the pipeline in every dialect, with the wire of both sides, bounded."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.auth import find_key
from gateway.core.http import Headers
from gateway.features.console.playground import MOST_BYTES
from gateway.features.console.routes import MOST_PLAYING
from gateway.features.console.transcript import SHOWN_BYTES
from tests.support.clients import DIALECTS, WAYS, Way
from tests.support.harness import Stack, until
from tests.unit.app.asking import CHAT
from tests.unit.features.console.opened import CONSOLE_KEY, ENVIRON, KEYED, OPEN, SECRET, SHOWN

CHATS = "/v1/chat/completions"

Lines = list[dict[str, Any]]


def post(stack: Stack, headers: dict[str, str] | None = None, **asked: Any) -> httpx.Response:
    asked = {"path": CHATS, "body": json.dumps(CHAT), **asked}
    return httpx.post(stack.admin_url + "/console/play", json=asked, headers=headers, timeout=30)


def play(stack: Stack, headers: dict[str, str] | None = None, **asked: Any) -> Lines:
    reply = post(stack, headers, **asked)
    assert reply.status_code == 200, reply.text
    return [json.loads(line) for line in reply.content.splitlines()]


def text(lines: Lines, side: str) -> str:
    return "".join(line["text"] for line in lines if (line["side"], line["what"]) == (side, "data"))


def some(lines: Lines, side: str, what: str) -> Lines:
    return [line for line in lines if (line["side"], line["what"]) == (side, what)]


def known(way: Way) -> tuple[str, str, str]:
    path, _, query = way.path("m").partition("?")
    body = way.body("What is red?", max_tokens=5)
    fields = DIALECTS[way.dialect].fields[way.operation]
    for field in [one.name for one in fields if one.names_model and one.where == "body"][:1]:
        body[field] = "m"
    return path, query, json.dumps(body)


# -- every dialect ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_it_shows_what_a_client_of_any_dialect_sees_and_what_the_worker_does(local: Stack, way: Way) -> None:
    """Side by side with the same request on the port of clients."""
    path, query, body = known(way)
    target = f"{local.url}{path}?{query}" if query else local.url + path
    real = httpx.post(target, content=body, headers={"content-type": "application/json"}, timeout=30)
    lines = play(local, path=path, query=query, body=body)
    (head,) = some(lines, "client", "head")
    assert head["status"] == real.status_code
    assert dict(head["headers"])["content-type"] == real.headers["content-type"]
    assert bool(text(lines, "client")) == bool(real.content)
    if real.status_code == 200:
        sent = json.loads(some(lines, "worker", "request")[-1]["text"])
        assert sent["model"] == "sim"
        assert text(lines, "worker")
        assert "text" not in some(lines, "client", "end")[0]


def test_the_page_offers_every_way_of_every_dialect(local: Stack) -> None:
    found = httpx.get(local.admin_url + "/console/ways.json").json()
    assert found["models"] == ["m"]
    assert found["needs_key"] is False
    offered = {(one["dialect"], one["operation"], one["path"].replace("{model}", "ep")) for one in found["ways"]}
    assert offered >= {(way.dialect, way.operation, way.path().partition("?")[0]) for way in WAYS}
    for one in found["ways"]:
        body = {**one["body"], **({one["model"]: "m"} if one["model"] else {})}
        path = one["path"].replace("{model}", "m")
        assert some(
            play(local, path=path, query=one["query"], body=json.dumps(body), model="m", send=False),
            "worker",
            "request",
        )


def test_both_streams_arrive_as_they_go() -> None:
    with Stack(workers=({"itl_ms": 20},), config=OPEN) as stack:
        lines = play(stack, body=json.dumps({**CHAT, "stream": True, "max_tokens": 5}))
    assert text(lines, "client").rstrip().endswith("data: [DONE]")
    assert text(lines, "worker").rstrip().endswith("data: [DONE]")
    assert len(some(lines, "client", "data")) > 1
    assert len(some(lines, "worker", "data")) > 1
    order = [(line["side"], line["what"]) for line in lines]
    assert order.index(("worker", "head")) < order.index(("client", "head"))


def test_it_is_logged_and_counted_as_any_request(local: Stack) -> None:
    before = len(local.records())
    play(local, body=json.dumps({**CHAT, "messages": [{"role": "user", "content": "unheard-of words"}]}))
    records = local.records()
    assert len(records) == before + 1
    assert records[-1]["model"] == "m"
    assert b"unheard-of" not in local.output.getvalue()


IN_TURN = {"models": {"m": {"policy": "round_robin"}}}


def test_a_failed_attempt_is_shown_beside_the_one_that_worked() -> None:
    with Stack(config={**OPEN, "models": {"m": {"workers": ["http://127.0.0.1:9"]}}}) as stack:
        lines = play(stack)
    assert some(lines, "client", "head")[0]["status"] >= 500
    with Stack(workers=({"fault": "status:500"}, {}), config={**OPEN, **IN_TURN}) as stack:
        found = [play(stack) for _ in range(2)]
    requests = [[line["address"] for line in some(lines, "worker", "request")] for lines in found]
    assert max(map(len, requests)) == 2


# -- keys and secrets -------------------------------------------------------------------------------------------------


def test_with_keys_on_the_request_needs_a_client_s_key_and_no_secret_is_shown() -> None:
    config = {
        **KEYED,
        "cache_salt": {"secret_env": "SALT"},
        "models": {"m": {"api_key_env": "WORKER_KEY", "headers": {"x-inner": "inner-secret"}}},
    }
    environ = {**ENVIRON, "SALT": "s" * 40, "WORKER_KEY": "worker-secret"}
    with Stack(config=config, environ=environ) as stack:
        refused = play(stack, SHOWN)
        as_client = play(stack, SHOWN, key=CONSOLE_KEY)
        served = post(stack, SHOWN, key=SECRET)
        record = stack.record()
    for lines in (refused, as_client):
        assert some(lines, "client", "head")[0]["status"] == 401
        assert some(lines, "worker", "request") == []
    lines = [json.loads(line) for line in served.content.splitlines()]
    assert some(lines, "client", "head")[0]["status"] == 200
    assert json.loads(some(lines, "worker", "request")[0]["text"])["cache_salt"] == "..."
    for secret in (SECRET, CONSOLE_KEY, "worker-secret", "inner-secret"):
        assert secret not in served.text
    assert (record["key"], record["team"]) == ("team-a", "blue")


def test_limits_hold_here_too() -> None:
    config = {**OPEN, "limits": [{"name": "few", "kind": "requests", "limit": 1, "per_s": "1h"}]}
    with Stack(config=config) as stack:
        statuses = [some(play(stack), "client", "head")[0]["status"] for _ in range(2)]
        state = httpx.get(stack.admin_url + "/status.json").json()
    assert statuses == [200, 429]
    assert state["limits"]["refused"] == {"few": 1}


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_what_no_client_can_send_is_refused(local: Stack) -> None:
    wrong: list[dict[str, Any]] = [
        *({"path": path} for path in ("v1/chat/completions", "/v1/x?y", "/v1/\r\nx: y", "/" + "a" * 3000)),
        *({"query": query} for query in ("a b", "a\nb")),
        *({"key": key} for key in ("a\r\nx: y", "a b", "ä")),
        *({"client": "1.2.3.4"}, {"body": 3}),
        *({"send": False, "model": "nowhere"}, {"send": False, "model": "m", "path": "/nowhere/at/all"}),
    ]
    for asked in wrong:
        refused = post(local, **asked)
        assert refused.status_code == 400, asked
        assert refused.json()["error"]


def test_what_is_no_request_of_the_page_is_refused(local: Stack) -> None:
    url, kind = local.admin_url + "/console/play", {"content-type": "application/json"}
    for body in (b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"path": "/"}'):
        assert httpx.post(url, content=body, headers=kind).status_code == 400


def test_a_body_above_the_bound_is_refused(local: Stack) -> None:
    assert post(local, body="x" * (MOST_BYTES - 200)).status_code == 200
    assert post(local, body="x" * MOST_BYTES).status_code == 413


def test_a_reply_above_the_bound_is_shown_in_part_and_counted() -> None:
    with Stack(workers=({"output_tokens": 3000},), config=OPEN) as stack:
        lines = play(stack, body=json.dumps({**CHAT, "stream": True, "max_tokens": 3000}))
    for side in ("client", "worker"):
        assert len(text(lines, side)) <= SHOWN_BYTES
        assert some(lines, side, "end")[-1]["unshown"] > 0


def test_only_so_many_run_at_once_and_leaving_ends_one() -> None:
    with Stack(workers=({"itl_ms": 50, "output_tokens": 2000},), config=OPEN) as stack:
        body, short = json.dumps({**CHAT, "stream": True, "max_tokens": 2000}), json.dumps({**CHAT, "max_tokens": 1})
        asked = {"path": CHATS, "body": body}
        replies = []
        with httpx.Client(timeout=30) as client:
            for _ in range(MOST_PLAYING):
                request = client.build_request("POST", stack.admin_url + "/console/play", json=asked)
                reply = client.send(request, stream=True)
                pieces = reply.iter_bytes()
                next(pieces)
                replies.append((reply, pieces))  # an iterator that is dropped closes its connection
            assert post(stack, body=short).status_code == 429
            for reply, _ in replies:
                reply.close()
        until(lambda: len(stack.events("request")) == MOST_PLAYING)
        assert {record["outcome"] for record in stack.records()} == {"cancelled"}
        until(lambda: post(stack, body=short).status_code == 200)


# -- only translated --------------------------------------------------------------------------------------------------


def test_a_translation_reaches_no_worker(local: Stack) -> None:
    before = len(local.records())
    (request, end) = play(local, model="m", send=False)
    assert json.loads(request["text"])["model"] == "sim"
    assert end["what"] == "end"
    (head, data, _) = play(local, model="m", send=False, body='{"messages": 3}')
    assert head["status"] == 400
    assert "messages" in data["text"]
    assert len(local.records()) == before


@pytest.mark.feature("request_policies")
def test_a_translation_shows_what_policies_make_of_it() -> None:
    policies = {
        "all": {"caps": {"max_tokens": 5}, "rename": {"max_tokens": "max_completion_tokens"}},
        "one": {"match": {"key": ["team-a"]}, "system": "Be brief."},
    }
    with Stack(config={**KEYED, "request_policies": policies}, environ=ENVIRON) as stack:
        for given, roles in (("", ["user"]), (SECRET, ["system", "user"])):
            (request, _) = play(stack, SHOWN, model="m", send=False, key=given)
            text = json.loads(request["text"])
            assert (text["max_completion_tokens"], [one["role"] for one in text["messages"]]) == (5, roles)
        (head, *_) = play(stack, SHOWN, model="m", send=False, key="another")
        assert head["status"] == 401


@pytest.mark.parametrize("name", DIALECTS)
def test_the_key_goes_where_clients_of_that_api_send_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In headers of their own in Azure's, Anthropic's and Google's clients; everywhere the gateway finds it."""
    seen: list[Any] = []

    def noting(headers: Headers) -> bytes | None:
        seen.append(headers)
        return find_key(headers)

    monkeypatch.setattr("gateway.auth.keyring.find_key", noting)
    with Stack(config=KEYED, environ=ENVIRON) as stack:
        for way in (one for one in WAYS if one.dialect == name):
            path, query, body = known(way)
            (head,) = some(play(stack, SHOWN, path=path, query=query, body=body, key=SECRET), "client", "head")
            assert head["status"] != 401, way
            (found,) = [(key, value.decode()) for key, value in seen.pop() if SECRET.encode() in value]
            own = {"anthropic": b"x-api-key", "gemini": b"x-goog-api-key"}.get(name, b"authorization")
            own = b"api-key" if "azure" in name else own
            assert found[0] == DIALECTS[name].key_header == own, way
            assert found[1] == (f"Bearer {SECRET}" if found[0] == b"authorization" else SECRET)
