"""Identity providers that fail, refuse, or are not the configured one."""

from __future__ import annotations

import json
import time
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from gateway.features.console import provider
from tests.support.harness import Stack
from tests.support.standins.identity import Identity
from tests.unit.features.console.logging_in import (
    ADMIN,
    BLUE,
    ENVIRON,
    Browser,
    ask,
    sections,
)
from tests.unit.features.console.opened import SHOWN


@pytest.mark.parametrize(
    ("answer", "status", "why"),
    [
        ((500, b"{}"), 503, "the identity provider failed (status 500)"),
        ((302, b"{}"), 503, "the identity provider failed (status 302)"),
        ((200, b"[]"), 502, "is not what OpenID Connect asks for"),
        ((200, b"[" * 100_000), 502, "is not what OpenID Connect asks for"),
        ((200, b" " * 1_100_000), 503, "the identity provider does not answer (ValueError)"),
    ],
)
@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/token"])
def test_a_provider_that_fails_is_not_taken_for_a_wrong_password(
    id_: Identity, path: str, answer: tuple[int, bytes], status: int, why: str
) -> None:
    with Stack(config=sections(id_.url), environ=ENVIRON) as stack:
        browser = Browser(stack)
        if path == "/token":
            address = id_.login(browser.begin(), **ADMIN)
            id_.answers[path] = answer
            reply = browser.back(address)
        else:
            id_.answers[path] = answer
            reply = browser("GET", "/console/login")
        assert reply.status_code == status
        assert why in reply.text
        assert not {"dragoman_console"} & browser.jar.keys()
        assert ask(stack, BLUE) == 200


def test_a_provider_that_is_away_delays_no_start_and_is_asked_again(
    id_: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stack(config=sections("http://127.0.0.1:1"), environ=ENVIRON) as stack:
        assert httpx.get(stack.admin_url + "/readyz").status_code == 200
        reply = Browser(stack)("GET", "/console/login")
        assert reply.status_code == 503
        assert "the identity provider does not answer (ConnectError)" in reply.text
        assert httpx.get(stack.admin_url + "/status.json", headers=SHOWN).status_code == 200
    monkeypatch.setattr(provider, "_RETRY_S", 0.2)
    with Stack(config=sections(id_.url), environ=ENVIRON) as stack:
        id_.answers["/.well-known/openid-configuration"] = (503, b"")
        id_.asked.clear()
        assert [Browser(stack)("GET", "/console/login").status_code for _ in range(3)] == [503] * 3
        assert len(id_.asked) < 3, "it is left alone for a moment"
        id_.answers = {}
        time.sleep(0.3)
        assert Browser(stack)("GET", "/console/login").status_code == 302


def test_a_provider_that_never_answers_holds_nobody_for_long(id_: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.tools.bounded._SOON_S", 0.3)
    with Stack(config=sections(id_.url), environ=ENVIRON) as stack:
        id_.held.clear()
        try:
            reply = Browser(stack)("GET", "/console/login")
        finally:
            id_.held.set()
        assert reply.status_code == 503
        assert "(TimeoutError)" in reply.text


@pytest.mark.parametrize(
    "described",
    [
        {"issuer": "https://other.example"},
        {"token_endpoint": "http://id.example/token"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"jwks_uri": "http://id.example/keys"},
    ],
)
def test_a_description_that_is_not_of_this_provider_is_refused(id_: Identity, described: dict[str, str]) -> None:
    with Stack(config=sections(id_.url), environ=ENVIRON) as stack:
        whole = json.dumps({**id_.described, **described}).encode()
        id_.answers["/.well-known/openid-configuration"] = (200, whole)
        assert Browser(stack)("GET", "/console/login").status_code == 502


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        ("access_denied", 403, "access_denied"),
        ("server_error", 503, "the identity provider failed: server_error"),
        ("<b>call 0800</b>", 403, "unknown reason"),
    ],
)
def test_a_refusal_of_the_provider_is_said_and_no_text_of_a_link(
    browser: Browser, error: str, status: int, said: str
) -> None:
    state = parse_qs(urlsplit(browser.begin()).query)["state"][0]
    reply = browser(
        "GET", "/console/callback", params={"error": error, "error_description": "call 0800", "state": state}
    )
    assert (reply.status_code, said in reply.text, "0800" in reply.text) == (status, True, False)
