"""Roles of people who have logged in to the console."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.harness import Stack, until
from tests.support.standins.identity import Identity
from tests.unit.features.console.logging_in import (
    ADMIN,
    BLUE,
    CHANGE,
    ENVIRON,
    LEAD,
    PLAYED,
    RED,
    ROLES,
    VIEWER,
    Browser,
    ask,
    sections,
)
from tests.unit.features.console.opened import SHOWN


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
    [
        {"groups": {"ops": 1}},
        {**LEAD, "team": [["blue"]]},
        {**LEAD, "team": [[]]},
        {**LEAD, "team": "a b"},
        {**LEAD, "team": ["t"] * 101},
    ],
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
    until(lambda: [one["name"] for one in browser.get("/console/status.json")["teams"]] == ["blue"])
    assert [one["name"] for one in browser.get("/console/brief.json")["teams"]] == ["blue"]
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
    until(lambda: {"blue", "red"} <= {one["name"] for one in browser.get("/console/status.json")["teams"]})
    assert {"blue", "red"} <= {one["team"] for one in browser.get("/console/requests.json")["ended"]}
    until_spent(browser, "red")


def until_spent(browser: Browser, team: str) -> dict[str, Any]:
    for _ in range(100):
        spent: dict[str, Any] = browser.get("/console/spend.json")
        if team in [one["name"] for one in spent["by"]["team"]["rows"]]:
            return spent
        time.sleep(0.1)
    raise AssertionError(spent)


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
    for path in ("/console/x", "/console/admin/v2", "/console/admin%2Fv1/keys"):
        assert browser("GET", path).status_code == 404
    for path in ("/console/admin/v1/keys", "/console//admin/v1/keys"):
        assert browser("GET", path).status_code == 200
        assert browser("POST", path).status_code == 403, "without the header that forms cannot send"


def test_the_audit_record_may_name_people_by_another_claim(id_: Identity) -> None:
    with Stack(config=sections(id_.url, name_claim="email"), environ=ENVIRON) as stack:
        browser = Browser(stack)
        assert browser.login(id_, **ADMIN).status_code == 502, "nobody is nameless"
        browser.login(id_, email="alice@example.com", **ADMIN)
        assert browser.get("/console/views.json")["who"]["name"] == "oidc:alice@example.com"
        (event,) = stack.events("console login")
        assert (event["by"], event["changes"]) == ("oidc:alice@example.com", True)
