"""The console's endpoints: who may see them, what browsers are told, what they hold."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from gateway.config import Console as Options
from gateway.features.console.routes import VIEWS, Console
from gateway.observe.log import Log
from tests.support.harness import Captured, Stack
from tests.unit.app.asking import CHAT
from tests.unit.features.console.opened import CONSOLE_KEY, ENTRY, ENVIRON, KEYED, LOCAL, SECRET, SHOWN

SHOWN_VIEWS = tuple(f"/console/{name}" for name in VIEWS)
PAGES = (*SHOWN_VIEWS, "/console/console.css", "/console/console.js", "/console/plot.js", "/console/playground.js")
DATA = (("GET", "/status.json"), ("GET", "/console/ways.json"), ("POST", "/console/play"))


@pytest.fixture(scope="module")
def keyed() -> Iterator[Stack]:
    with Stack(config=KEYED, environ=ENVIRON) as stack:
        yield stack


def ask(stack: Stack, method: str, path: str, headers: Any = None, **more: Any) -> httpx.Response:
    if method == "POST" and not more:
        more["json"] = {"path": "/v1/chat/completions", "body": json.dumps(CHAT), "key": SECRET}
    return httpx.request(method, stack.admin_url + path, headers=headers, timeout=20, **more)


# -- who may see it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), DATA)
def test_data_needs_the_console_s_own_key(keyed: Stack, method: str, path: str) -> None:
    shown = ["Bearer", CONSOLE_KEY, *(f"Bearer {one}" for one in (f"{CONSOLE_KEY}x", CONSOLE_KEY[:-1], SECRET))]
    wrong = [[("authorization", one)] for one in (*shown, f"Basic {CONSOLE_KEY}")]
    twice = [("authorization", f"Bearer {CONSOLE_KEY}"), ("authorization", "Bearer x")]
    for headers in ([], [("api-key", CONSOLE_KEY)], twice, *wrong):
        refused = ask(keyed, method, path, headers)
        assert refused.status_code == 401, headers
        assert refused.headers["www-authenticate"].startswith("Bearer")
        assert CONSOLE_KEY not in refused.text
    assert ask(keyed, method, path, SHOWN).status_code == 200


@pytest.mark.parametrize("path", PAGES)
def test_the_page_itself_needs_no_key_and_holds_no_data(keyed: Stack, path: str) -> None:
    found = ask(keyed, "GET", path)
    assert found.status_code == 200
    for secret in (CONSOLE_KEY, SECRET, keyed.sim.url, "team-a", "blue"):
        assert secret not in found.text


def test_each_view_has_an_address_and_the_first_is_led_to(keyed: Stack) -> None:
    """The way there is relative: a proxy may have the console below a path of its own."""
    led = ask(keyed, "GET", "/console")
    assert (led.status_code, led.headers["location"]) == (302, "console/live")
    assert len({ask(keyed, "GET", path).content for path in SHOWN_VIEWS}) == 1
    tabs = re.findall(
        r'<a id="tab-(\w+)" href="(\w+)" role="tab" aria-controls="(\w+)"',
        ask(keyed, "GET", led.url.path + "/live").text,
    )
    assert tabs == [(name,) * 3 for name in VIEWS]


def test_the_console_is_off_unless_asked_for() -> None:
    with Stack(config=LOCAL) as stack:
        assert [ask(stack, "GET", path).status_code for path in (*PAGES, "/console", "/console/ways.json")] == [
            404
        ] * 14
        assert ask(stack, "POST", "/console/play").status_code in (404, 405)
        assert ask(stack, "GET", "/status.json").status_code == 200


@pytest.mark.parametrize("path", [*PAGES, "/console", "/status.json", "/console/ways.json", "/console/play"])
def test_clients_never_see_it(local: Stack, path: str) -> None:
    assert httpx.get(local.url + path).status_code == 404


@pytest.mark.parametrize(("host", "status"), [("[::1]:9090", 200), ("127.0.0.1.evil.example.com:9090", 421)])
@pytest.mark.parametrize("path", ["/console/live", "/status.json", "/console/ways.json"])
def test_without_a_key_no_other_name_leads_to_it(local: Stack, path: str, host: str, status: int) -> None:
    """A page may let its own name point to this machine (DNS rebinding): to its browser that is the same origin."""
    assert ask(local, "GET", path, {"host": host}).status_code == status


def test_with_a_key_any_name_may_lead_to_it(keyed: Stack) -> None:
    assert ask(keyed, "GET", "/status.json", {"host": "ops.example.com", **SHOWN}).status_code == 200


@pytest.mark.parametrize(("method", "path"), DATA)
def test_pages_of_other_origins_are_refused(local: Stack, method: str, path: str) -> None:
    before = len(local.records())
    for name, value in (("origin", "https://evil.example.com"), ("origin", "null")):
        assert ask(local, method, path, {name: value}).status_code == 403
    for site in ("cross-site", "same-site"):
        assert ask(local, method, path, {"sec-fetch-site": site}).status_code == 403
    assert len(local.records()) == before
    own = {"origin": local.admin_url, "sec-fetch-site": "same-origin"}
    assert ask(local, "POST", "/console/play", own).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_what_a_form_can_send_is_refused(local: Stack, kind: str) -> None:
    body = json.dumps({"path": "/v1/chat/completions", "body": json.dumps(CHAT)})
    refused = ask(local, "POST", "/console/play", {"content-type": kind}, content=body)
    assert refused.status_code == 415


@pytest.mark.parametrize(("method", "path"), [("GET", one) for one in PAGES] + list(DATA) + [("GET", "/console/x")])
def test_every_reply_tells_browsers_to_be_strict(keyed: Stack, method: str, path: str) -> None:
    for headers in ({}, SHOWN):
        found = ask(keyed, method, path, headers)
        if found.status_code == 404:
            continue
        policy = found.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert found.headers["cache-control"] == "no-store"
        assert found.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in found.headers


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("POST", "/console", "GET"), ("DELETE", "/status.json", "GET"), ("GET", "/console/play", "POST")],
)
def test_other_methods_are_refused(local: Stack, method: str, path: str, allowed: str) -> None:
    refused = ask(local, method, path, content=b"")
    assert refused.status_code == 405
    assert refused.headers["allow"] == allowed


def test_a_new_key_holds_after_a_reload(keyed: Stack) -> None:
    with Stack(config=KEYED, environ=ENVIRON) as stack:
        stack.environ = {"CONSOLE_KEY": "another-key-another-key"}
        stack.run(stack.gateway.reload(stack.config()))
        assert ask(stack, "GET", "/status.json", SHOWN).status_code == 401
        changed = {"authorization": "Bearer another-key-another-key"}
        assert ask(stack, "GET", "/status.json", changed).status_code == 200
        stack.run(stack.gateway.reload(stack.config({"console": {"enabled": False, "key_env": None}})))
        assert ask(stack, "GET", "/console").status_code == 404


# -- the page's files -------------------------------------------------------------------------------------------------


def test_the_page_uses_only_its_own_files(local: Stack) -> None:
    """The policy forbids inline scripts and styles, and there is no network to load others from."""
    html = ask(local, "GET", "/console/live").text
    assert re.findall(r"<(?:script|style)(?![^>]*\bsrc=)[^>]*>", html) == []
    assert re.findall(r"\s(?:on\w+|style)=", html) == []
    linked = re.findall(r"\b(?:src|href)=\"([^\"#]+)\"", html)
    assert linked
    for one in linked:
        assert ask(local, "GET", "/console/" + one).status_code == 200, one
    for path in PAGES:
        text = ask(local, "GET", path).text
        assert set(re.findall(r"https?://[^\"'\s)]+", text)) <= {"http://www.w3.org/2000/svg"}, path
        assert not re.search(r"\b(?:innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval)\b", text), path


# -- the state --------------------------------------------------------------------------------------------------------


def test_the_state_tells_what_happened_and_no_secret(keyed: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = "a-prompt-nobody-else-may-read"
    body = {**CHAT, "messages": [{"role": "user", "content": marker}], "stream": True, "max_tokens": 5}
    with httpx.stream(
        "POST", keyed.url + "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {SECRET}"}
    ) as reply:
        assert reply.status_code == 200
        reply.read()
    keyed.records()
    monkeypatch.setattr("gateway.features.console.routes.FRESH_S", 0.0)
    text = ask(keyed, "GET", "/status.json", SHOWN).text
    for secret in (marker, SECRET, CONSOLE_KEY, ENTRY["team-a"]["hash"]):
        assert secret not in text
    state = json.loads(text)
    (model,) = state["models"]
    assert (state["ready"], state["draining"], state["limits"]) == (True, False, None)
    assert (model["name"], model["aliases"], model["backend"], model["waiting"]) == ("m", ["alias"], "vllm", 0)
    worker = {"address": keyed.sim.url, "condition": "ready", "in_flight": 0, "max_in_flight": None}
    worker |= {"reason": None, "served_as": None, "serves": []}
    worker |= {"meaning": None, "certificate_for": [], "proxy": None}
    assert model["workers"] == [worker]
    assert model["requests"]["ok"] >= 1
    assert model["output_tokens"] >= 5
    assert sum(model["first_output"]["counts"]) >= 1
    assert len(model["first_output"]["counts"]) == len(model["first_output"]["bounds_s"]) + 1
    (team,) = state["teams"]
    assert (team["name"], team["output_tokens"]) == ("blue", model["output_tokens"])


def test_looking_often_costs_no_more(local: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    console = local.gateway.deployment.features.services["console"]
    real = console.state

    def counted() -> Any:
        nonlocal made
        made += 1
        return real()

    monkeypatch.setattr(console, "state", counted)
    monkeypatch.setattr("gateway.features.console.routes.FRESH_S", 3600.0)
    console._state = None  # a page of another test is kept
    with httpx.Client() as client:
        for _ in range(20):
            assert client.get(local.admin_url + "/status.json").status_code == 200
    assert made == 1


async def test_a_state_from_before_the_start_was_over_is_not_shown_after_it(local: Stack) -> None:
    """The gateway writes one to Redis before its workers are probed."""
    starting = True
    look = local.gateway._watched  # the view that a gateway gives its console
    console = Console(lambda: replace(look(), starting=starting), CollectorRegistry())
    assert (await console.state_of_all()).starting
    starting = False
    assert not (await console.state_of_all()).starting


async def test_one_state_is_made_for_all_who_look_at_once(local: Stack) -> None:
    """Also where it takes a while, as with several processes. One of those that ends amid its answer is left out."""
    asked = 0

    class Others:
        async def ask(self, question: bytes) -> list[bytes]:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0)
            return [b'{"version": "1", "ti']

        async def together(self, registry: CollectorRegistry) -> CollectorRegistry:
            return registry

    others: Any = Others()
    console = Console(local.gateway._watched, CollectorRegistry(), others)  # the view that a gateway gives its console
    told: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        told.append(message)

    endpoint = console.endpoints(Options(), True, Log(out=Captured()))["/status.json"]
    scope = {"method": "GET", "query_string": b"", "headers": [(b"host", b"localhost")]}
    await asyncio.gather(*(endpoint(scope, asyncio.Event().wait, send) for _ in range(5)))
    bodies = [json.loads(message["body"]) for message in told if "body" in message]
    assert [body["ready"] for body in bodies] == [True] * 5
    assert asked == 1
