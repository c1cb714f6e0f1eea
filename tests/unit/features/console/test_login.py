"""Login to the console by an identity provider: the way in, sessions, and the way out."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest

from tests.support.harness import Stack
from tests.support.standins.identity import CLIENT, SECRET, Identity
from tests.unit.features.console.logging_in import (
    ADMIN,
    CHANGE,
    ENVIRON,
    SESSION_SECRET,
    Browser,
    sealed,
    sections,
)
from tests.unit.features.console.opened import SHOWN


def test_a_login_leads_to_the_view_and_the_page_says_who_it_is(browser: Browser, id_: Identity) -> None:
    assert browser("GET", "/console/status.json").json() == {
        "error": "a login is needed, or the console's key in 'Authorization: Bearer'",
        "key": True,
        "login": True,
    }
    reply = browser.back(id_.login(browser.begin("?next=requests"), **ADMIN))
    assert reply.status_code == 200
    assert '<meta http-equiv="refresh" content="0; url=requests">' in reply.text
    assert browser.get("/console/status.json")["ready"]
    assert browser.get("/console/views.json")["who"] == {"name": "oidc:alice", "teams": None, "changes": True}
    assert "dragoman_login" not in browser.jar


def test_the_key_works_beside_it_and_wins_over_a_session(entered: Callable[..., Browser]) -> None:
    browser = entered(**ADMIN)
    assert browser("GET", "/status.json", headers=SHOWN).status_code == 200
    wrong = browser("GET", "/console/status.json", headers={"authorization": "Bearer wrong"})
    assert wrong.status_code == 401
    assert browser("GET", "/console/views.json", headers=SHOWN).json()["who"] is None


def test_the_cookie_of_a_session_is_for_this_page_alone(browser: Browser, id_: Identity) -> None:
    browser.login(id_, **ADMIN)
    (session,) = [one for one in browser.set if one.startswith("dragoman_console=")]
    rest = session.partition(";")[2]
    assert rest == " Path=/ops/console; HttpOnly; SameSite=Lax; Max-Age=28800"
    assert "alice" not in session
    with Stack(config=sections(id_.url, url="https://ops.example.com"), environ=ENVIRON) as other:
        secure = Browser(other)
        assert "redirect_uri=https%3A%2F%2Fops.example.com%2Fconsole%2Fcallback" in secure.begin()
        assert secure.set[0].partition(";")[2] == " Path=/console; HttpOnly; SameSite=Lax; Secure; Max-Age=600"


def test_a_session_holds_at_other_gateways_with_its_secret_and_at_no_others(
    entered: Callable[..., Browser], id_: Identity
) -> None:
    browser = entered(**ADMIN)
    other = "o" * 32
    for secret, status in ((SESSION_SECRET, 200), (other, 401)):
        with Stack(config=sections(id_.url), environ={**ENVIRON, "SESSIONS": secret}) as stack:
            browser.stack = stack
            assert browser("GET", "/console/status.json").status_code == status
    with Stack(config=sections(id_.url, session_secret_env=None), environ=ENVIRON) as stack:
        browser.stack = stack
        assert browser("GET", "/console/status.json").status_code == 401
        assert stack.events("console sessions hold at this gateway alone")
        browser.jar = {}
        browser.login(id_, **ADMIN)
        stack.run(stack.gateway.reload(stack.config()))
        assert browser.get("/console/status.json")["ready"], "a reload ends no session"


def test_a_public_client_and_one_that_posts_its_secret(id_: Identity) -> None:
    id_.described["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    with Stack(config=sections(id_.url), environ=ENVIRON) as stack:
        assert Browser(stack).login(id_, **ADMIN).status_code == 200
    with Stack(config=sections(id_.url, client_secret_env=None), environ=ENVIRON) as stack:
        refused = Browser(stack).login(id_, **ADMIN)
    assert refused.status_code == 502, "this client has a secret"
    assert "(status 401)" in refused.text


def test_logout_ends_the_session_in_this_browser(entered: Callable[..., Browser]) -> None:
    browser = entered(**ADMIN)
    assert browser("POST", "/console/logout").status_code == 403
    assert browser("POST", "/console/logout", headers={**CHANGE, "origin": "https://evil.example"}).status_code == 403
    assert browser.jar
    assert browser("POST", "/console/logout", headers=CHANGE).status_code == 200
    assert not browser.jar
    assert browser("GET", "/console/status.json").status_code == 401


def leave(browser: Browser) -> str:
    reply = browser("POST", "/console/logout", headers=CHANGE)
    assert reply.status_code == 200
    return str(reply.json()["to"])


AFTER = "http://127.0.0.1:9090/ops/console/logged-out"


def test_logout_ends_the_session_at_the_provider_by_the_token_of_the_login(
    entered: Callable[..., Browser], id_: Identity
) -> None:
    browser = entered(**ADMIN)
    (kept,) = [one for one in browser.set if one.startswith("dragoman_id_token=")]
    assert kept.partition(";")[2] == " Path=/ops/console/logout; HttpOnly; SameSite=Lax; Max-Age=28800"
    address = leave(browser)
    assert address.startswith(f"{id_.url}/logout?tenant=a&")
    assert not browser.jar
    led = httpx.get(address)
    assert led.headers["location"] == AFTER
    ended = id_.ended[-1]
    assert ended.keys() == {"tenant", "id_token_hint", "post_logout_redirect_uri"}
    assert jwt.decode(ended["id_token_hint"], options={"verify_signature": False})["sub"] == "alice"
    # The way back is led by the provider's page.
    page = browser("GET", "/console/logged-out", headers={"sec-fetch-site": "cross-site"})
    assert page.status_code == 200
    assert "You are logged out.<" in page.text


def test_logout_without_a_token_that_fits_a_cookie_names_the_client(
    entered: Callable[..., Browser], id_: Identity
) -> None:
    browser = entered(**ADMIN)
    browser.login(id_, pad="x" * 4000, **ADMIN)
    assert "dragoman_id_token" not in browser.jar, "that of the login before is gone, too"
    asked = parse_qs(urlsplit(leave(browser)).query)
    assert asked == {"tenant": ["a"], "client_id": [CLIENT], "post_logout_redirect_uri": [AFTER]}


def test_a_forged_token_of_a_login_is_sent_nowhere(entered: Callable[..., Browser], id_: Identity) -> None:
    browser = entered(**ADMIN)
    later = int(time.time()) + 100
    for forged in ("x", sealed(id_, ["x", later]), sealed(id_, ["x", 1], use=b"console logout")):
        browser.jar["dragoman_id_token"] = forged
        assert "id_token_hint" not in leave(browser)


@pytest.mark.parametrize("away", [True, False])
def test_logout_is_here_alone_where_the_provider_ends_no_session_and_the_page_says_so(
    id_: Identity, away: bool
) -> None:
    del id_.described["end_session_endpoint"]
    with Stack(config=sections(id_.url), environ=ENVIRON) as stack:
        browser = Browser(stack)
        if away:
            id_.answers["/.well-known/openid-configuration"] = (500, b"")
            browser.jar["dragoman_console"] = sealed(id_, ["oidc:eve", ["ops"], [], int(time.time()) + 100])
            assert browser.get("/console/status.json")
        else:
            browser.login(id_, **ADMIN)
        to = leave(browser)
        assert "dragoman_console" not in browser.jar
        page = browser("GET", f"/console/{to}")
    assert "The identity provider&#x27;s session may go on" in page.text


def test_nothing_of_it_is_there_without_the_option() -> None:
    own = {"metrics": {"listen": "127.0.0.1:9090"}, "console": {"enabled": True}}
    with Stack(config=own) as stack:
        browser = Browser(stack)
        for path in ("login", "callback", "logout", "admin/v1/keys"):
            assert browser("GET", f"/console/{path}").status_code == 404


def test_queries_are_bounded(browser: Browser) -> None:
    for query in ("?next=" + "a" * 9000, "?" + "a=b&" * 30):
        assert browser("GET", f"/console/login{query}").status_code == 400
        assert browser("GET", f"/console/callback{query}").status_code == 400


def test_no_secret_of_it_is_logged(entered: Callable[..., Browser]) -> None:
    browser = entered(**ADMIN)
    text = browser.stack.output.getvalue().decode()
    for secret in (SECRET, SESSION_SECRET, browser.jar["dragoman_console"], "code-"):
        assert secret not in text
