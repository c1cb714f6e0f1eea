"""Exports, stores that have lost or hold as many keys as allowed, pages, and the audit record."""

from __future__ import annotations

from typing import Any

from tests.support.harness import Stack
from tests.support.redis_server import Server
from tests.unit.auth.stored_keys import hash_of
from tests.unit.features.admin.calling import Caller, code, config, status


def test_pages_hold_every_key_once(root: Caller) -> None:
    names = {f"page-{number:02}" for number in range(23)}
    for name in names:
        root.made(name, team="pages")
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = root("GET", "/keys", params={"team": "pages", "limit": 10, "after": after}).json()
        seen += [key["name"] for key in page["keys"]]
        after = page["next"]
    assert seen == sorted(names)
    for path in ("/keys", "/export", "/audit"):
        for limit in ("0", "501", "x", "-1", "1e2", "%D9%A3", "0" * 8 + "19", "0" * 8 + "1" + "9" * 5000):
            assert code(root("GET", f"{path}?limit={limit}")) == (422, "invalid"), (path, limit[:20])


def test_a_list_is_narrowed_by_a_text_in_name_id_or_team(root: Caller, lead: Caller) -> None:
    root.made("Narrow-one", team="blue")
    id_: str = root("GET", "/keys/Narrow-one").json()["id"]
    for name, team in (("narrow-two", "narrowed"), ("other-three", "narrowed"), ("other-four", "blue")):
        root.made(name, team=team)

    def found(caller: Caller, **query: str) -> list[str]:
        return [key["name"] for key in caller("GET", "/keys", params=query).json()["keys"]]

    assert found(root, match="nARROW-") == ["Narrow-one", "narrow-two"]
    assert found(root, match="narrowed") == ["narrow-two", "other-three"]
    assert found(root, match=id_.upper()) == ["Narrow-one"]
    assert found(root, match="narrow", team="narrowed") == ["narrow-two", "other-three"]
    assert found(root, match="narrow", team="narrowed", limit="1", after="narrow-two") == ["other-three"]
    assert found(lead, match="narrow") == ["Narrow-one"], "of its team"
    assert found(root, match="no such text") == []


def test_the_audit_record_says_who_did_what(root: Caller, lead: Caller) -> None:
    lead.made("audited", team="blue", priority=0)
    root("PATCH", "/keys/audited", {"disabled": True, "models": ["m"]})
    lead("POST", "/keys/audited/rotate")
    root("POST", "/keys/audited/revoke")
    root("GET", "/keys/audited")
    lines: list[dict[str, Any]] = []
    before: str | None = None
    while True:
        page = root("GET", "/audit", params={"limit": 3, **({"before": before} if before else {})}).json()
        lines += [line for line in page["changes"] if line["name"] == "audited"]
        before = page["next"]
        if before is None:
            break
    assert [(line["by"], line["what"], sorted(line["options"])) for line in lines] == [
        ("root", "revoke", []),
        ("lead", "rotate", []),
        ("root", "update", ["disabled", "models"]),
        ("lead", "create", ["name", "priority", "team"]),
    ]
    for before in ("nonsense", "1-", "9" * 21 + "-1", f"{1 << 64}-0", f"0-{1 << 64}", "0-0"):
        assert code(root("GET", f"/audit?before={before}")) == (422, "invalid"), before
    assert root("GET", f"/audit?before={(1 << 64) - 1}-0").status_code == 200


def test_an_export_is_taken_in_elsewhere_and_revives_nothing(root: Caller, server: Server) -> None:
    key = root.made("moved", team="blue", expires="2099-01-01")
    gone = root.made("moved-gone")
    exported = {one["name"]: one for one in root("GET", "/export?limit=500").json()["keys"]}
    root("POST", "/keys/moved-gone/revoke")
    assert root("PUT", "/keys/moved-gone", exported["moved-gone"]).json()["revoked"] is not None
    assert root("PUT", "/keys/moved", exported["moved"]).status_code == 200, "as it is"
    assert code(root("PUT", "/keys/moved", {**exported["moved"], "team": "red"})) == (409, "name_taken")
    assert root("PUT", "/keys/moved", {"hash": 3}).status_code == 422
    later = {one["name"]: one for one in root("GET", "/export?limit=500").json()["keys"]}
    elsewhere = config(server)
    elsewhere["redis"] = {**elsewhere["redis"], "namespace": "elsewhere"}
    with Stack(({},), elsewhere) as stack:
        there = Caller(stack, "root-key")
        for name in ("moved", "moved-gone"):
            assert there("PUT", f"/keys/{name}", later[name]).status_code == 200
        assert [status(stack, one) for one in (key, gone)] == [200, 401]
        found = there("GET", "/keys/moved").json()
        assert {**found, "version": 0} == {**root("GET", "/keys/moved").json(), "version": 0}


def test_a_key_that_redis_lost_can_be_revoked(server: Server) -> None:
    apart = config(server)
    apart["redis"] = {**apart["redis"], "namespace": "lost"}
    with Stack(({},), apart) as stack:
        root = Caller(stack, "root-key")
        key = root.made("lost")
        for name in server.command("KEYS", "{lost-keys}*"):
            server.command("DEL", name)
        assert status(stack, key) == 200
        assert root("POST", "/keys/lost/revoke").json()["revoked"] is not None
        assert status(stack, key) == 401
        assert b"revoked" in server.command("HGET", "{lost-keys}", "lost")


def test_there_are_at_most_as_many_keys_as_allowed(server: Server) -> None:
    few = config(server, stored_keys={"max_keys": 2})
    few["redis"] = {**few["redis"], "namespace": "few"}
    with Stack(({},), few) as stack:
        root = Caller(stack, "root-key")
        for name in ("one", "two"):
            root.made(name)
        assert code(root("POST", "/keys", {"name": "three"})) == (409, "full")
        exported = root("GET", "/export").json()["keys"][0]
        assert code(root("PUT", "/keys/three", {**exported, "name": "three", "hash": hash_of("three")})) == (
            409,
            "full",
        )
        root("POST", "/keys/one/revoke")
        root.made("three")
        root("POST", "/keys/two/revoke")
        # Both are the most that are remembered. What fills an emptied store again loses none of them.
        revoked = {name: {**exported, "name": name, "hash": hash_of(name), "revoked": 1.0} for name in ("one", "two")}
        for name in server.command("KEYS", "{few-keys}*"):
            server.command("DEL", name)
        for name in ("one", "two"):
            assert root("PUT", f"/keys/{name}", revoked[name]).json()["revoked"] is not None
        assert {b"one", b"two"} <= set(server.command("HKEYS", "{few-keys}"))
