"""Identity providers that fail, refuse, or are not the configured one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from gateway.features.console import provider
from tests.support.harness import Stack
from tests.support.standins.identity import CLIENT, Identity, identity
from tests.support.standins.serving import certificate, server_tls
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
        {"userinfo_endpoint": "http://id.example/userinfo"},
        {"end_session_endpoint": "javascript:alert(1)"},
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


def test_an_issuer_that_differs_by_its_last_slash_is_named_as_the_reason(id_: Identity) -> None:
    """Auth0's and Authentik's issuers end with one."""
    with Stack(config=sections(f"{id_.url}/"), environ=ENVIRON) as stack:
        assert "they differ by the slash at the end" in Browser(stack)("GET", "/console/login").text
    id_.described["issuer"] = id_.claims["iss"] = f"{id_.url}/"
    with Stack(config=sections(f"{id_.url}/"), environ=ENVIRON) as stack:
        assert Browser(stack).login(id_, **ADMIN).status_code == 200


def test_a_provider_with_a_certificate_of_a_private_authority(tmp_path: Path) -> None:
    files = certificate(tmp_path)
    with identity(server_tls(files)) as private:
        with Stack(config=sections(private.url), environ=ENVIRON) as stack:
            reply = Browser(stack)("GET", "/console/login")
            assert reply.status_code == 503
            assert "certificate is not trusted here (console.oidc.ca_file)" in reply.text
        with Stack(config=sections(private.url, ca_file=str(files[0])), environ=ENVIRON) as stack:
            private.described["userinfo_endpoint"] = f"{private.url}/userinfo"
            private.userinfo = ADMIN
            assert Browser(stack).login(private).status_code == 200, "each of its addresses is asked by it"


def test_clocks_may_differ_by_half_a_minute(browser: Browser, id_: Identity) -> None:
    now = int(time.time())
    for times, status in (
        ({"iat": now + 20, "nbf": now + 20}, 200),
        ({"exp": now - 20}, 200),
        ({"iat": now + 60}, 502),
        ({"exp": now - 60}, 502),
    ):
        assert browser.login(id_, **ADMIN, **times).status_code == status, times


def test_a_token_may_be_for_several(browser: Browser, id_: Identity) -> None:
    for more in ({"aud": [CLIENT]}, {"aud": ["other", CLIENT], "azp": CLIENT}, {"azp": CLIENT}):
        assert browser.login(id_, **ADMIN, **more).status_code == 200
