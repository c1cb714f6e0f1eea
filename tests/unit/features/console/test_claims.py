"""Claims of people who log in to the console, in the forms that known providers give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.harness import Stack
from tests.support.standins.identity import CLIENT, Identity
from tests.unit.features.console.logging_in import ADMIN, ENVIRON, LEAD, ROLES, Browser, sections

USERINFO = "/userinfo"


def logged_in(id_: Identity, claim: str, **claims: Any) -> Any:
    """The person who has logged in to a gateway that finds roles in `claim`."""
    with Stack(config=sections(id_.url, roles={**ROLES, "claim": claim}), environ=ENVIRON) as stack:
        browser = Browser(stack)
        reply = browser.login(id_, **claims)
        assert reply.status_code == 200, reply.text
        return browser.get("/console/views.json")["who"]


@pytest.mark.parametrize(
    ("claim", "claims"),
    [
        ("realm_access.roles", {"realm_access": {"roles": ["ops"]}}),  # Keycloak
        (f"resource_access.{CLIENT}.roles", {"resource_access": {CLIENT: {"roles": ["ops"]}}}),
        ("https://example.com/roles", {"https://example.com/roles": ["ops"]}),  # Auth0
        ("a.b", {"a.b": ["ops"], "a": {"b": ["staff"]}}),
    ],
)
def test_roles_may_be_in_objects(id_: Identity, claim: str, claims: dict[str, Any]) -> None:
    assert logged_in(id_, claim, **claims)["changes"]


def test_what_the_id_token_lacks_is_asked_for_at_the_userinfo_endpoint(
    entered: Callable[..., Browser], id_: Identity
) -> None:
    id_.userinfo = {"groups": ["leads"], "team": "blue", "nonce": "x", "aud": "y"}
    assert entered().get("/console/views.json")["who"]["teams"] == ["blue"]
    id_.userinfo = {"groups": ["ops"], "team": "red"}
    assert entered(groups=["leads"]).get("/console/views.json")["who"]["teams"] == ["red"], "its groups hold"
    assert entered(**LEAD).get("/console/views.json")["who"]["teams"] == ["blue"]


def test_the_userinfo_endpoint_has_claims_in_objects_too(id_: Identity) -> None:
    id_.userinfo = {"realm_access": {"roles": ["ops"]}}
    assert logged_in(id_, "realm_access.roles", realm_access={"other": []})["changes"]


def test_a_whole_id_token_asks_for_nothing(entered: Callable[..., Browser], id_: Identity) -> None:
    id_.asked.clear()
    id_.answers[USERINFO] = (500, b"")
    entered(**ADMIN)
    entered(**LEAD)
    assert USERINFO not in id_.asked


@pytest.mark.parametrize(
    ("answer", "status", "why"),
    [
        ((200, b'{"sub": "eve", "groups": ["ops"]}'), 502, "about somebody else"),
        ((200, b'{"groups": ["ops"]}'), 502, "about somebody else"),
        ((200, b"eyJ.signed.token"), 502, "is not what OpenID Connect asks for"),
        ((200, b'{"sub": "alice", "groups": {"ops": 1}}'), 502, "must be a list of roles"),
        ((200, b" " * 1_100_000), 503, "does not answer (ValueError)"),
        ((401, b""), 503, "failed (status 401)"),
    ],
)
def test_a_userinfo_endpoint_that_fails_gives_no_role(
    browser: Browser, id_: Identity, answer: tuple[int, bytes], status: int, why: str
) -> None:
    id_.answers[USERINFO] = answer
    reply = browser.login(id_)
    assert (reply.status_code, why in reply.text) == (status, True), reply.text
    assert "dragoman_console" not in browser.jar


def test_a_provider_without_userinfo_has_roles_in_its_id_token_alone(id_: Identity) -> None:
    del id_.described["userinfo_endpoint"]
    with Stack(config=sections(id_.url), environ=ENVIRON) as stack:
        assert "has no role here" in Browser(stack).login(id_).text
        assert Browser(stack).login(id_, **ADMIN).status_code == 200


def test_groups_that_entra_id_leaves_out_are_named_as_the_reason(browser: Browser, id_: Identity) -> None:
    id_.asked.clear()
    reply = browser.login(id_, _claim_names={"groups": "src1"}, _claim_sources={"src1": {"endpoint": "https://x"}})
    assert reply.status_code == 403
    assert "leaves the claim &#x27;groups&#x27; out" in reply.text
    assert USERINFO not in id_.asked
    assert browser.login(id_, _claim_names={"groups": "src1"}, **ADMIN).status_code == 200


@pytest.mark.parametrize(("verified", "status"), [(False, 403), ("false", 403), (True, 200), (None, 200)])
@pytest.mark.parametrize("by", ["name_claim", "roles"])
def test_an_email_address_that_is_not_verified_is_nobody_s(
    id_: Identity, verified: bool | str | None, status: int, by: str
) -> None:
    person: dict[str, Any] = {"email": "ops@example.com", "email_verified": verified, **ADMIN}
    options: dict[str, Any] = {"name_claim": "email"}
    if by == "roles":
        options = {"roles": {**ROLES, "claim": "email", "admin": ["ops@example.com"]}}
    with Stack(config=sections(id_.url, **options), environ=ENVIRON) as stack:
        reply = Browser(stack).login(id_, **person)
        assert reply.status_code == status, reply.text
        id_.userinfo = {"email": person["email"], "email_verified": verified}
        assert Browser(stack).login(id_, **ADMIN).status_code == status, "as from the userinfo endpoint"
