"""Login to the console by an identity provider: who gets in as what, and what is tried against it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from gateway.config import has_feature
from gateway.core.sealing import Sealing
from gateway.features.console import login as module
from gateway.features.console import provider
from gateway.wire.sealed import Seal
from tests.support.harness import Stack
from tests.support.redis_server import Server
from tests.support.standins.identity import CLIENT, SECRET, Identity, identity
from tests.unit.app.asking import CHAT, key
from tests.unit.auth.stored_keys import hash_of
from tests.unit.features.console.opened import CONSOLE_KEY, SHOWN

SESSION_SECRET = "s" * 32
ENVIRON = {"CONSOLE_KEY": CONSOLE_KEY, "CLIENT": SECRET, "SESSIONS": SESSION_SECRET}
ROLES = {"claim": "groups", "admin": ["ops"], "lead": ["leads"], "team_claim": "team", "viewer": ["staff"]}
CHANGE = {"x-dragoman-console": "1"}
BLUE, BLUE_ENTRY = key("blue-key", team="blue")
RED, RED_ENTRY = key("red-key", team="red")
ADMIN: dict[str, Any] = {"groups": ["ops", "staff"]}
LEAD: dict[str, Any] = {"groups": ["leads"], "team": "blue"}
VIEWER: dict[str, Any] = {"groups": "staff"}


def sections(issuer: str, **oidc: Any) -> dict[str, Any]:
    options = {
        "issuer": issuer,
        "client_id": CLIENT,
        "client_secret_env": "CLIENT",
        "url": "http://127.0.0.1:9090/ops",
        "roles": ROLES,
        "session_secret_env": "SESSIONS",
        **oidc,
    }
    return {
        "keys": {**BLUE_ENTRY, **RED_ENTRY},
        "metrics": {"listen": "127.0.0.1:9090"},
        "console": {"enabled": True, "key_env": "CONSOLE_KEY", "oidc": options},
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redis"), "--appendonly", "yes") as server:
        yield server


@pytest.fixture(scope="module")
def id_() -> Iterator[Identity]:
    with identity() as found:
        yield found


@pytest.fixture(scope="module")
def stack(id_: Identity, server: Server) -> Iterator[Stack]:
    own = sections(id_.url) | {"redis": {"addresses": [server.address], "timeout_s": 10}}
    own |= {"limits": [{"name": "few", "kind": "requests", "limit": 1, "match": {"key": ["red-key"]}}]}
    own |= {
        "budgets": [{"name": "whole", "amount": 1000, "scope": []}, {"name": "each", "amount": 9, "scope": ["team"]}]
    }
    own |= {"spend": {"daily": True, "currency": "EUR"}, "models": {"m": {"price": {"request": 1}}}}
    if has_feature("admin"):
        own["keys_store"] = "redis"
        own["admins"] = {"root": {"hash": hash_of("root-key")}}
    with Stack(config=own, environ=ENVIRON) as stack:
        yield stack


@pytest.fixture(autouse=True)
def as_it_was(id_: Identity) -> Iterator[None]:
    before = (id_.key, id_.kid, id_.algorithm, dict(id_.keys), list(id_.methods))
    yield
    id_.key, id_.kid, id_.algorithm, id_.keys, id_.methods = before
    id_.claims, id_.answers = {}, {}


class Browser:
    """One with a jar of its own. The address that the configuration names is that of a proxy: paths lose `/ops`."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.jar: dict[str, str] = {}
        self.set: list[str] = []

    def __call__(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = dict(more.pop("headers", {}))
        if self.jar:
            headers["cookie"] = "; ".join(f"{name}={value}" for name, value in self.jar.items())
        reply = httpx.request(method, self.stack.admin_url + path, headers=headers, timeout=30, **more)
        self.set = reply.headers.get_list("set-cookie")
        for one in self.set:
            name, _, value = one.partition(";")[0].partition("=")
            self.jar[name] = value
            if "Max-Age=0" in one:
                del self.jar[name]
        return reply

    def get(self, path: str) -> Any:
        reply = self("GET", path)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def begin(self, query: str = "") -> str:
        led = self("GET", f"/console/login{query}", headers={"sec-fetch-site": "same-origin"})
        assert led.status_code == 302, led.text
        return led.headers["location"]

    def back(self, address: str) -> httpx.Response:
        parts = urlsplit(address)
        assert address.startswith("http://127.0.0.1:9090/ops/console/callback?")
        path = parts.path.removeprefix("/ops")
        return self("GET", f"{path}?{parts.query}", headers={"sec-fetch-site": "cross-site"})

    def login(self, id_: Identity, **claims: Any) -> httpx.Response:
        return self.back(id_.login(self.begin(), **claims))


@pytest.fixture
def browser(stack: Stack) -> Browser:
    return Browser(stack)


@pytest.fixture
def entered(browser: Browser, id_: Identity) -> Callable[..., Browser]:
    def enter(**claims: Any) -> Browser:
        reply = browser.login(id_, **claims)
        assert reply.status_code == 200, reply.text
        return browser

    return enter


def ask(stack: Stack, secret: str) -> int:
    headers = {"authorization": f"Bearer {secret}"}
    return httpx.post(stack.url + "/v1/chat/completions", json=CHAT, headers=headers, timeout=30).status_code


# -- the way in -------------------------------------------------------------------------------------------------------


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
    id_.methods = ["client_secret_post"]
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


def test_nothing_of_it_is_there_without_the_option() -> None:
    own = {"metrics": {"listen": "127.0.0.1:9090"}, "console": {"enabled": True}}
    with Stack(config=own) as stack:
        browser = Browser(stack)
        for path in ("login", "callback", "logout", "admin/v1/keys"):
            assert browser("GET", f"/console/{path}").status_code == 404


# -- roles ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "role"),
    [
        (ADMIN, (None, True)),
        (LEAD, (["blue"], True)),
        ({"groups": ["leads"], "team": ["blue", "red"]}, (["blue", "red"], True)),
        ({"groups": ["leads", "staff"]}, (None, False)),
        ({"groups": ["leads", "staff"], "team": "blue"}, (["blue"], True)),
        (VIEWER, (None, False)),
    ],
)
def test_the_first_role_that_fits_counts(
    entered: Callable[..., Browser], claims: dict[str, Any], role: tuple[Any, bool]
) -> None:
    who = entered(**claims).get("/console/views.json")["who"]
    assert (who["teams"], who["changes"]) == role


@pytest.mark.parametrize(
    "claims",
    [{}, {"groups": []}, {"groups": ["op"]}, {"groups": "leads"}, {"groups": ["leads"], "team": []}],
)
def test_who_has_no_role_gets_no_session(browser: Browser, id_: Identity, claims: dict[str, Any]) -> None:
    reply = browser.login(id_, **claims)
    assert reply.status_code == 403
    assert "has no role here" in reply.text
    assert "dragoman_console" not in browser.jar


@pytest.mark.parametrize(
    "claims",
    [{"groups": {"ops": 1}}, {**LEAD, "team": [["blue"]]}, {**LEAD, "team": "a b"}, {**LEAD, "team": ["t"] * 101}],
)
def test_claims_that_are_no_names_give_no_role(browser: Browser, id_: Identity, claims: dict[str, Any]) -> None:
    assert browser.login(id_, **claims).status_code in (403, 502)
    assert "dragoman_console" not in browser.jar


def test_a_role_that_the_configuration_takes_away_is_gone_at_once(id_: Identity) -> None:
    with Stack(config=sections(id_.url), environ=ENVIRON) as stack:
        browser = Browser(stack)
        browser.login(id_, **ADMIN)
        stack.sections = sections(id_.url, roles={**ROLES, "admin": ["root"]})
        stack.run(stack.gateway.reload(stack.config()))
        assert browser.get("/console/views.json")["who"]["changes"] is False


def test_a_lead_sees_its_own_team_alone(stack: Stack, entered: Callable[..., Browser]) -> None:
    assert [ask(stack, one) for one in (BLUE, RED, RED)] == [200, 200, 429]
    browser = entered(**LEAD)
    assert [one["name"] for one in browser.get("/console/status.json")["teams"]] == ["blue"]
    found = browser.get("/console/requests.json")
    assert {one["team"] for one in found["ended"]} == {"blue"}
    assert found["refusals"] == []
    for key_, team, status in (
        ("blue-key", "blue", 200),
        ("red-key", "blue", 404),
        ("red-key", "red", 404),
        ("none", "blue", 404),
        ("blue-key", "", 404),
    ):
        reply = browser("GET", "/console/budgets.json", params={"key": key_, "team": team})
        assert reply.status_code == status, (key_, team)
        if status == 200:
            assert [one["budget"] for one in reply.json()] == ["each"]
    spent = until_spent(browser, "blue")
    assert [one["name"] for one in spent["by"]["key"]["rows"]] == ["blue-key"]
    assert [one["name"] for one in spent["by"]["team"]["rows"]] == ["blue"]
    assert spent["total"]["requests"] == 1


def test_a_viewer_sees_all_teams(stack: Stack, entered: Callable[..., Browser]) -> None:
    ask(stack, RED)
    ask(stack, BLUE)
    browser = entered(**VIEWER)
    assert {"blue", "red"} <= {one["name"] for one in browser.get("/console/status.json")["teams"]}
    assert {"blue", "red"} <= {one["team"] for one in browser.get("/console/requests.json")["ended"]}
    until_spent(browser, "red")


def until_spent(browser: Browser, team: str) -> dict[str, Any]:
    for _ in range(100):
        spent: dict[str, Any] = browser.get("/console/spend.json")
        if team in [one["name"] for one in spent["by"]["team"]["rows"]]:
            return spent
        time.sleep(0.1)
    raise AssertionError(spent)


PLAYED = {"path": "/v1/chat/completions", "body": json.dumps(CHAT), "key": BLUE}


@pytest.mark.parametrize(("claims", "status"), [(ADMIN, 200), (LEAD, 200), (VIEWER, 403)])
def test_a_viewer_sends_no_requests(entered: Callable[..., Browser], claims: dict[str, Any], status: int) -> None:
    browser = entered(**claims)
    assert browser("POST", "/console/play", json=PLAYED, headers=CHANGE).status_code == status


@pytest.mark.feature("admin")
def test_keys_are_changed_by_the_role_and_the_audit_record_names_the_user(
    entered: Callable[..., Browser], id_: Identity
) -> None:
    keys = "/console/admin/v1/keys"
    browser = entered(**LEAD)

    def make(name: str, team: str) -> int:
        return browser("POST", keys, json={"name": name, "team": team}, headers=CHANGE).status_code

    assert (make("of-lead", "blue"), make("not", "red")) == (201, 403)
    assert {one["team"] for one in browser.get(keys)["keys"]} == {"blue"}
    assert browser("GET", f"{keys}/red-key").status_code == 404
    browser.login(id_, sub="viv", **VIEWER)
    assert make("by-viewer", "blue") == 403
    assert {"of-lead", "red-key"} <= {one["name"] for one in browser.get(keys)["keys"]}
    for path in (f"{keys}/of-lead/revoke", "/console/admin/v1/refill", "/console/admin/v1/workers/x/drain"):
        refused = browser("POST", path, headers=CHANGE)
        assert (refused.status_code, refused.json()["error"]["message"]) == (403, "a viewer may change nothing")
    assert browser("GET", "/console/admin/v1/export").status_code == 403, "the hashes seal texts of clients"
    browser.login(id_, sub="root", **ADMIN)
    assert make("a%2Fb", "red") == 201
    assert browser("POST", f"{keys}/a%252Fb/revoke", headers=CHANGE).status_code == 200
    assert browser("GET", "/console/admin/v1/export").status_code == 200
    by = {(one["what"], one["name"], one["by"]) for one in browser.get("/console/admin/v1/audit")["changes"]}
    assert {("create", "of-lead", "oidc:alice"), ("revoke", "a%2Fb", "oidc:root")} <= by
    assert all(name != "by-viewer" for _, name, _ in by)


@pytest.mark.feature("admin")
def test_the_admin_api_itself_knows_no_session_and_the_console_s_key_opens_no_keys(
    entered: Callable[..., Browser],
) -> None:
    browser = entered(**ADMIN)
    assert browser("GET", "/admin/v1/keys").status_code == 401
    assert browser("GET", "/console/admin/v1/keys", headers=SHOWN).status_code == 401
    assert browser("GET", "/admin/v1/keys", headers={"authorization": "Bearer root-key"}).status_code == 200
    for path in ("/console/x", "/console/admin/v2", "/console//admin/v1/keys", "/console/admin%2Fv1/keys"):
        assert browser("GET", path).status_code == 404


def test_the_audit_record_may_name_people_by_another_claim(id_: Identity) -> None:
    with Stack(config=sections(id_.url, name_claim="email"), environ=ENVIRON) as stack:
        browser = Browser(stack)
        assert browser.login(id_, **ADMIN).status_code == 502, "nobody is nameless"
        browser.login(id_, email="alice@example.com", **ADMIN)
        assert browser.get("/console/views.json")["who"]["name"] == "oidc:alice@example.com"
        (event,) = stack.events("console login")
        assert (event["by"], event["changes"]) == ("oidc:alice@example.com", True)


# -- attacks ----------------------------------------------------------------------------------------------------------


def sealed(id_: Identity, session: list[Any], secret: str = SESSION_SECRET, use: bytes = b"console session") -> str:
    sealing = Sealing(f"console {id_.url} {CLIENT}", secret.encode())
    return Seal(lambda: sealing, use).close(json.dumps(session))


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


# -- a provider that fails --------------------------------------------------------------------------------------------


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


def test_queries_are_bounded(browser: Browser) -> None:
    for query in ("?next=" + "a" * 9000, "?" + "a=b&" * 30):
        assert browser("GET", f"/console/login{query}").status_code == 400
        assert browser("GET", f"/console/callback{query}").status_code == 400


def test_no_secret_of_it_is_logged(entered: Callable[..., Browser]) -> None:
    browser = entered(**ADMIN)
    text = browser.stack.output.getvalue().decode()
    for secret in (SECRET, SESSION_SECRET, browser.jar["dragoman_console"], "code-"):
        assert secret not in text
