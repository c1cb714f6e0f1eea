"""Clients that send no key in a header: it is in the path of their base URL, or their network has one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.clients import DIALECTS, MEDIA, WAYS, Way, usual
from tests.support.harness import Stack
from tests.support.redis_server import Server
from tests.support.sampled import of_dialect, sampled
from tests.unit.dialects.responses.talking import Talk

OWN, ADMIN, WRONG = (
    "0f8c2b7a91d34e65b8a07c1d2e3f4a5b",
    "the-admins.key-of-no-vendor",
    "f00c2b7a91d34e65b8a07c1d2e3f4aaa",
)
ODD = "odd/key %of+a=vendor"
IN_PATH = {"path_keys": True}
EVERY = sampled(WAYS, 12, of_dialect)


def hashed(key: str) -> str:
    return "sha256:" + sha256(key.encode()).hexdigest()


KEYS = {"own": {"hash": hashed(OWN), "team": "red"}, "odd": {"hash": hashed(ODD)}}
NEAR = {"near": {"match": {"address": ["10.0.0.0/8", "127.0.0.0/8"]}, "team": "blue"}}
CONFIG: dict[str, Any] = {
    "dialects": {name: {"default_model": "m"} for name in DIALECTS},
    "metrics": {"listen": "127.0.0.1:9"},
    "log": {"level": "debug"},
    "cors": {"origins": ["https://page.example"]},
}


def stack_of(keys: Mapping[str, Any], **more: Any) -> Stack:
    return Stack(config={**CONFIG, "keys": keys, **more})


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with stack_of({**KEYS, **NEAR}, **IN_PATH) as running:
        yield running


def ask(stack: Stack, way: Way, before: str = "", **headers: str) -> httpx.Response:
    return httpx.post(stack.url + before + way.path("m"), json=way.body(model="m"), headers=headers)


def seen(stack: Stack) -> str:
    """All that the gateway shows of the requests: its log, its metrics, and what workers got."""
    upstream = [f"{one.path} {one.headers}" for one in stack.sim.ledger.entries]
    metrics = httpx.get(stack.admin_url + "/metrics").text
    return "\n".join((stack.output.getvalue().decode(), metrics, *upstream))


@pytest.mark.parametrize("way", EVERY, ids=str)
def test_each_dialect_is_served_by_a_key_in_the_path(stack: Stack, way: Way) -> None:
    expected = ask(stack, way, authorization=f"Bearer {OWN}")
    record = stack.record()
    reply = ask(stack, way, f"/k/{OWN}")
    assert reply.status_code == expected.status_code == (400 if way.operation in MEDIA else 200), reply.text
    found = stack.record()
    assert [found[one] for one in ("key", "team", "dialect", "operation")] == [
        "own",
        "red",
        record["dialect"],
        record["operation"],
    ]
    assert OWN not in reply.text + str(reply.headers.raw) + seen(stack)


@pytest.mark.parametrize("way", EVERY, ids=str)
def test_each_dialect_is_served_by_the_clients_network(stack: Stack, way: Way) -> None:
    reply = ask(stack, way)
    assert reply.status_code == (400 if way.operation in MEDIA else 200), reply.text
    assert (stack.record()["key"], stack.record()["team"]) == ("near", "blue")


@pytest.mark.parametrize("way", EVERY, ids=str)
def test_a_wrong_key_in_the_path_is_refused_as_in_a_header(stack: Stack, way: Way) -> None:
    """Also where the client's network has a key: a key that is sent is the one that counts."""
    expected, reply = ask(stack, way, authorization=f"Bearer {WRONG}"), ask(stack, way, f"/k/{WRONG}")
    assert reply.status_code == expected.status_code
    assert reply.status_code in (401, 403), reply.text
    assert reply.content.replace(stack.records()[-1]["id"].encode(), b"") == expected.content.replace(
        stack.records()[-2]["id"].encode(), b""
    )
    assert WRONG not in reply.text + str(reply.headers.raw) + seen(stack)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_key_in_the_path_and_another_one_in_a_header_are_refused(stack: Stack, dialect: str) -> None:
    way = usual(dialect)
    assert ask(stack, way, f"/k/{OWN}", **{"api-key": OWN}).status_code == 200
    for name in ("api-key", "x-api-key", "x-goog-api-key", "authorization"):
        reply = ask(stack, way, f"/k/{OWN}", **{name: f"Bearer {WRONG}" if name == "authorization" else WRONG})
        assert reply.status_code in (401, 403)
        assert "different API keys" in reply.text
        assert "placeholder" in reply.text
    assert OWN not in seen(stack)


@pytest.mark.parametrize("before", [f"/k/{OWN}/", f"//k/{OWN}", f"/k//{OWN}//", f"/%6b/{OWN}", f"/k/%30{OWN[1:]}"])
def test_forms_of_the_path(stack: Stack, before: str) -> None:
    assert ask(stack, usual("ollama"), before).status_code == 200
    assert stack.record()["key"] == "own"
    assert OWN not in seen(stack)


def test_a_key_may_hold_any_letter(stack: Stack) -> None:
    assert ask(stack, usual("openai"), "/k/odd%2Fkey%20%25of+a=vendor").status_code == 200
    assert stack.record()["key"] == "odd"
    assert ODD not in seen(stack)


def test_paths_that_are_not_there(stack: Stack) -> None:
    """The advice is about what follows the key."""
    reply = httpx.post(f"{stack.url}/k/{OWN}/chat/completions", json={})
    assert reply.status_code == 404
    advice = 'POST /chat/completions; it is at /v1/chat/completions: the base URL of this client must end in "/v1"'
    assert advice in reply.json()["error"]["message"]
    assert httpx.get(f"{stack.url}/k/{OWN}/livez").status_code == 200
    assert httpx.get(f"{stack.url}/k/{OWN}").status_code == httpx.get(stack.url, headers={"api-key": OWN}).status_code
    assert httpx.post(f"{stack.url}/v1/k/{OWN}/chat/completions", json={}).status_code == 404
    assert OWN not in seen(stack) + reply.text


def test_a_page_of_another_origin_may_call_such_a_path(stack: Stack) -> None:
    headers = {"origin": "https://page.example", "access-control-request-method": "POST"}
    reply = httpx.options(f"{stack.url}/k/{OWN}/v1/chat/completions", headers=headers)
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (204, "https://page.example")
    assert OWN not in str(reply.headers.raw) + seen(stack)


@pytest.mark.parametrize(("path", "key"), [(f"/k/{OWN}/v1/responses", "own"), ("/v1/responses", "near")])
def test_web_sockets(stack: Stack, path: str, key: str) -> None:
    with Talk(stack, path) as talk:
        assert talk.turn(input="hello")["status"] == "completed"
    assert stack.record()["key"] == key
    assert OWN not in seen(stack)


@pytest.mark.parametrize("headers", [{}, {"connection": "upgrade", "upgrade": "websocket"}], ids=["plain", "upgrade"])
def test_one_key_is_taken_from_a_path(stack: Stack, headers: dict[str, str]) -> None:
    """Also where a request would open a web socket, if there were one."""
    socket = {"sec-websocket-version": "13", "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==", **headers}
    replies = [httpx.get(f"{stack.url}{f'/k/{OWN}' * times}/v1/models", headers=socket) for times in (1, 2)]
    assert [one.status_code for one in replies] == [200, 404]
    assert OWN not in seen(stack) + replies[1].text


def test_requests_on_one_connection(stack: Stack) -> None:
    """A head that is known is not read again: it means the same key, and others another one."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    with httpx.Client(base_url=stack.url) as client:
        before = len(stack.records())
        for place in (f"/k/{OWN}", f"/k/{OWN}", "", "", f"/k/{WRONG}", f"/k/{OWN}"):
            client.post(f"{place}/v1/chat/completions", json=body)
    keys = [one["key"] for one in stack.records()[before:]]
    assert keys == ["own", "own", "near", "near", "", "own"]
    assert OWN not in seen(stack)


def test_neither_opens_the_admins_address(tmp_path: Path) -> None:
    keys, admins = {**KEYS, **NEAR}, {"root": {"hash": hashed(ADMIN)}}
    with contextlib.ExitStack() as stop:
        redis = {"addresses": [stop.enter_context(Server(tmp_path)).address]}
        stack = stop.enter_context(stack_of(keys, **IN_PATH, keys_store="redis", redis=redis, admins=admins))
        place = stack.admin_url + "/admin/v1/keys"
        assert httpx.get(place, headers={"authorization": f"Bearer {ADMIN}"}).status_code == 200
        assert httpx.get(place).status_code == 401
        for base in (stack.url, stack.admin_url):
            for key in (ADMIN, OWN):
                assert httpx.get(f"{base}/k/{key}/admin/v1/keys").status_code in (401, 404)
        assert httpx.get(f"{stack.admin_url}/k/{OWN}/metrics").status_code == 404
        assert ADMIN not in stack.output.getvalue().decode()
        assert OWN not in stack.output.getvalue().decode()


def test_keys_in_paths_are_off_by_default() -> None:
    with stack_of(KEYS) as stack:
        for way in map(usual, DIALECTS):
            replies = ask(stack, way, f"/k/{OWN}"), ask(stack, way, f"/k/{OWN}", authorization=f"Bearer {OWN}")
            # A dialect may have all paths with some end, whatever stands before that.
            assert replies[0].status_code in (401, 403, 404)
            assert replies[1].status_code == 404
            assert all(OWN not in reply.text + str(reply.headers.raw) for reply in replies)
            assert ask(stack, way).status_code in (401, 403)
        assert OWN not in seen(stack)


def test_a_reload_turns_them_on_and_off() -> None:
    with stack_of(KEYS) as stack:
        way = usual("openai")
        for on, keys in ((True, {**KEYS, **NEAR}), (False, KEYS), (True, {**KEYS, **NEAR})):
            config = stack.config({"keys": keys, "path_keys": on})
            stack.run(stack.gateway.reload(config))
            assert ask(stack, way, f"/k/{OWN}").status_code == (200 if on else 401)
            assert ask(stack, way).status_code == (200 if on else 401)


PROXIES = {"trusted_proxies": ["127.0.0.1", "10.1.0.0/16"]}


FORWARDED: dict[bool, dict[str | None, bool]] = {
    True: {
        "10.2.3.4": True,
        "10.2.3.4:4711": True,
        "10.2.3.4, 10.1.0.9": True,
        "192.0.2.7": False,
        None: False,  # the proxy's own address is no client's
        "10.1.0.9": False,
        "192.0.2.7, 10.2.3.4": False,  # somebody there forwards for others
        "10.2.3.4, 192.0.2.7, 10.2.3.4": False,  # and the other one has claimed to be the one there
        "unknown": False,
        "nonsense": False,
        "nonsense, 10.2.3.4": False,
    },
    # A proxy that is not trusted stands in between. Its clients may know its address, and write that first.
    False: {None: True, "192.0.2.7": False, "10.2.3.4": False, "127.0.0.1": False, "127.0.0.1, 192.0.2.7": False},
}


@pytest.mark.parametrize("trusted", FORWARDED)
def test_the_address_is_one_that_only_trusted_proxies_vouch_for(trusted: bool) -> None:
    with stack_of({**KEYS, **NEAR}, listen=PROXIES if trusted else {}) as stack:
        for forwarded, good in FORWARDED[trusted].items():
            headers = {"x-forwarded-for": forwarded} if forwarded is not None else {}
            assert ask(stack, usual("openai"), **headers).status_code == (200 if good else 401), forwarded


def test_a_key_by_its_network_is_bound_as_others_are() -> None:
    more = {"models": ["m"], "dialects": ["openai"], "limits": {"requests": 1}}
    keys = {"near": {**NEAR["near"], **more}, "gone": {"match": {"address": ["::1"]}, "expires": "2020-01-01"}}
    with stack_of(keys) as stack:
        assert ask(stack, usual("cohere")).status_code == 403
        assert ask(stack, usual("openai")).status_code == 200
        assert ask(stack, usual("openai")).status_code == 429
        off = stack.config({"keys": {"near": {**NEAR["near"], "disabled": True}}})
        stack.run(stack.gateway.reload(off))
        reply = ask(stack, usual("openai"))
        assert (reply.status_code, "the API key is disabled" in reply.text) == (401, True)


def test_a_key_with_both_is_one_key() -> None:
    with stack_of({"own": {**KEYS["own"], **NEAR["near"]}}) as stack:
        for headers in ({}, {"api-key": OWN}):
            assert ask(stack, usual("openai"), **headers).status_code == 200
            assert stack.record()["key"] == "own"
    assert json.dumps(stack.records()).count(OWN) == 0


@pytest.mark.parametrize("way", sampled(WAYS, 24, of_dialect), ids=str)
@pytest.mark.parametrize("on", [True, False])
def test_a_path_for_a_key_says_why_there_is_none(pathless: dict[bool, Stack], on: bool, way: Way) -> None:
    """`/k/v1/...` lacks its key, and without `path_keys` no key in a path is read."""
    reason = "it is missing in the path, where it follows /k/" if on else "because `path_keys` is off"
    reply = ask(pathless[on], way, "/k" if on else f"/k/{OWN}")
    if "{" in way.route.path:
        assert reply.status_code in (401, 404), "which part is the key is not known"
        return
    assert reply.status_code == 401, reply.text
    assert reason in reply.text


@pytest.fixture(scope="module")
def pathless() -> Iterator[dict[bool, Stack]]:
    with stack_of(KEYS, **IN_PATH) as on, stack_of(KEYS) as off:
        yield {True: on, False: off}


@pytest.mark.parametrize("trusted", [True, False])
def test_a_request_with_forwarded_has_no_network(trusted: bool) -> None:
    """Whoever wrote it may be a proxy that X-Forwarded-For does not name."""
    with stack_of({**KEYS, **NEAR}, listen=PROXIES if trusted else {}) as stack:
        beside = {"x-forwarded-for": "10.2.3.4"} if trusted else {}
        assert ask(stack, usual("openai"), **beside).status_code == 200
        for value in ("for=192.0.2.7", "for=10.2.3.4", "for=unknown", ""):
            assert ask(stack, usual("openai"), **beside, forwarded=value).status_code == 401, value
        assert ask(stack, usual("openai"), forwarded="for=192.0.2.7", **{"api-key": OWN}).status_code == 200
