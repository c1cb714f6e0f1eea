"""Attacks on logins to the console and their sessions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from gateway.core.sealing import Sealing
from gateway.features.console import login as module
from gateway.wire.sealed import Seal
from tests.support.harness import Stack
from tests.support.standins.identity import CLIENT, Identity
from tests.unit.features.console.logging_in import (
    ADMIN,
    CHANGE,
    PLAYED,
    SESSION_SECRET,
    VIEWER,
    Browser,
    sealed,
)


def test_a_forged_or_old_cookie_is_no_session(stack: Stack, id_: Identity, entered: Callable[..., Browser]) -> None:
    later = int(time.time()) + 100
    good = ["oidc:eve", ["ops"], [], later]
    elsewhere = Sealing(f"console https://id.example {CLIENT}", SESSION_SECRET.encode())
    own = entered(**ADMIN).jar["dragoman_console"]
    forged = [
        "",
        "dgs2.",
        json.dumps(good),
        own[:-6] + ("AAAA==" if own.endswith("==") else "AAAAAA"),
        sealed(id_, good, secret="e" * 32),
        sealed(id_, ["oidc:eve", ["ops"], [], int(time.time()) - 1]),
        sealed(id_, ["oidc:eve", ["nobody"], [], later]),
        sealed(id_, ["oidc:eve"]),
        sealed(id_, good, use=b"console login"),
        Seal(lambda: elsewhere, b"console session").close(json.dumps(good)),
    ]
    browser = Browser(stack)
    browser.jar = {"dragoman_console": sealed(id_, good)}
    assert browser("GET", "/console/status.json").status_code == 200
    for one in forged:
        browser.jar = {"dragoman_console": one}
        assert browser("GET", "/console/status.json").status_code == 401, one
    many = "; ".join(f"dragoman_console={one}" for one in [*forged[:8], sealed(id_, good)])
    assert httpx.get(stack.admin_url + "/console/status.json", headers={"cookie": many}).status_code == 401


def test_a_login_ends_in_the_browser_where_it_began(stack: Stack, id_: Identity) -> None:
    mine, other = Browser(stack), Browser(stack)
    address = id_.login(mine.begin(), **ADMIN)
    other.begin()
    for browser in (other, Browser(stack)):
        reply = browser.back(address)
        assert reply.status_code == 400
        assert "was not begun in this browser" in reply.text
        assert "dragoman_console" not in browser.jar
    forged = address.replace("state=", "state=x")
    assert mine.back(forged).status_code == 400
    assert mine.back(address).status_code == 200
    assert mine.back(address).status_code == 400, "once"


def test_a_login_that_took_too_long_begins_again(
    browser: Browser, id_: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LONGEST_S", 0)
    address = id_.login(browser.begin(), **ADMIN)
    browser.jar["dragoman_login"] = browser.set[0].partition(";")[0].partition("=")[2]
    assert browser.back(address).status_code == 400


def test_a_session_is_made_anew_at_a_login(browser: Browser, id_: Identity) -> None:
    """A cookie that somebody else has planted ends with it."""
    planted = sealed(id_, ["oidc:eve", ["ops"], [], int(time.time()) + 100])
    browser.jar["dragoman_console"] = planted
    browser.login(id_, **VIEWER)
    assert browser.jar["dragoman_console"] != planted
    assert browser.get("/console/views.json")["who"]["name"] == "oidc:alice"


def signed_by_another(id_: Identity) -> None:
    id_.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def unknown_key(id_: Identity) -> None:
    signed_by_another(id_)
    id_.kid = "two"


def unsigned(id_: Identity) -> None:
    id_.key, id_.algorithm = None, "none"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda id_: id_.claims.update(nonce="an earlier one"), "it was made for another login"),
        (lambda id_: id_.claims.update(nonce=None), "it was made for another login"),
        (lambda id_: id_.claims.update(aud="other"), "the token is for another audience"),
        (lambda id_: id_.claims.update(aud=[CLIENT, "other"], azp="other"), "it was made for another client"),
        (lambda id_: id_.claims.update(iss="https://other.example"), "the token is from another issuer"),
        (lambda id_: id_.claims.update(exp=1), "the token has expired"),
        (lambda id_: id_.claims.update(exp=None), "the token has no claim &#x27;exp&#x27;"),
        (signed_by_another, "the token is not valid"),
        (unknown_key, "the token is not signed by a known key"),
        (unsigned, "the token is not valid"),
    ],
)
def test_a_token_that_is_not_for_this_login_is_refused(
    browser: Browser, id_: Identity, change: Callable[[Identity], None], why: str
) -> None:
    change(id_)
    reply = browser.login(id_, **ADMIN)
    assert reply.status_code == 502
    assert f"token is not accepted: {why}" in reply.text
    assert "dragoman_console" not in browser.jar


def test_a_new_key_of_the_provider_is_read_at_once(browser: Browser, id_: Identity) -> None:
    unknown_key(id_)
    id_.keys = {"two": id_.key}
    assert browser.login(id_, **ADMIN).status_code == 200


def test_an_answer_of_another_provider_is_refused(browser: Browser, id_: Identity) -> None:
    address = id_.login(browser.begin(), **ADMIN)
    assert browser.back(f"{address}&iss=https://evil.example").status_code == 400
    assert browser.back(f"{address}&iss={id_.url}").status_code == 200


@pytest.mark.parametrize("next_", ["https://evil.example", "//evil.example", "/", "../x", 'live"><script>', "", "x"])
def test_next_leads_nowhere_else(browser: Browser, id_: Identity, next_: str) -> None:
    location = browser.begin(f"?{httpx.QueryParams({'next': next_})}")
    reply = browser.back(id_.login(location, **ADMIN))
    assert 'content="0; url=live"' in reply.text


@pytest.mark.parametrize("headers", [{"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {}])
@pytest.mark.parametrize("path", ["/console/play", "/console/logout", "/console/admin/v1/keys"])
def test_a_page_of_another_origin_changes_nothing(
    entered: Callable[..., Browser], path: str, headers: dict[str, str]
) -> None:
    """With its header, which such a page cannot send, the origin alone is reason enough; without it, its absence is."""
    browser = entered(**ADMIN)
    more = {**headers, **(CHANGE if headers else {})}
    assert browser("POST", path, json=PLAYED, headers=more).status_code == 403


def test_pages_of_other_origins_begin_no_login(browser: Browser) -> None:
    assert browser("GET", "/console/login", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert not browser.jar
