"""The admin API of running gateways: who may do what, what is refused, and what is left in the audit record."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anthropic
import httpx
import jsonschema
import pytest
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import OPTIONS, TEAM_OPTIONS, StoredKey
from gateway.auth.admin import Admin
from gateway.auth.stored import KeyOptions, TeamOptions
from gateway.config import Key
from gateway.features.admin.api import AdminApi, _name
from gateway.features.admin.openapi import OPERATIONS, Operation
from tests.repo.tree import ROOT
from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.unit.auth.stored_keys import hash_of
from tests.unit.auth.test_jwt import AUDIENCE, ISSUER, RSA, token
from tests.unit.auth.test_jwt import keys as jwt_keys
from tests.unit.features.admin.calling import CHAT, PATH, Caller, code, config, status


def test_each_key_has_its_last_use_at_every_gateway(
    gateways: tuple[Stack, Stack], root: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.auth.last_used._EVERY_S", 0.0)
    one, other = gateways

    def used(name: str) -> str | None:
        found: str | None = Caller(other, "root-key")("GET", f"/keys/{name}").json()["last_used"]
        return found

    key = root.made("busy", team="blue")
    assert used("busy") is None
    before = datetime.now(UTC).replace(microsecond=0)
    assert (status(one, key), status(one, "configured")) == (200, 200)
    until(lambda: None not in (used("busy"), used("own")))
    assert before <= datetime.fromisoformat(str(used("busy"))) <= datetime.now(UTC)
    listed = {key["name"]: key["last_used"] for key in root("GET", "/keys").json()["keys"]}
    assert listed["busy"] == used("busy")
    assert root("POST", "/keys/busy/revoke").json()["last_used"] == used("busy")
    time.sleep(1.1)  # its time is one of whole seconds
    root.made("busy", team="blue")
    assert used("busy") is None, "another key had that name"


def test_a_key_lives_from_create_to_revoke_on_every_gateway(gateways: tuple[Stack, Stack], root: Caller) -> None:
    one, other = gateways
    key = root.made("life", team="blue", models=["alias"], limits={"requests": 100, "budget": 200})
    assert key.startswith("dgm_")
    until(lambda: status(other, key) == 200)
    assert status(one, key) == 200
    shown = root("GET", "/keys/life").json()
    assert (shown["team"], shown["models"], shown["created_by"], shown["limits"]["requests"]) == (
        "blue",
        ["alias"],
        "root",
        100,
    )
    assert key not in str(shown)
    assert "hash" not in shown
    assert "key" not in shown

    assert root("PATCH", "/keys/life", {"models": None, "disabled": True}).json()["models"] is None
    until(lambda: status(other, key) == 401)
    assert root("PATCH", "/keys/life", {"disabled": False}).json()["limits"]["budget"] == "200", "as it was given"
    until(lambda: status(other, key) == 200)
    assert code(root("PATCH", "/keys/life", {"limit": None})) == (422, "invalid"), "no option has this name"

    new = root("POST", "/keys/life/rotate", {"valid_s": 60}).json()["key"]
    until(lambda: status(other, new) == 200)
    assert status(other, key) == 200, "the old one for a time"
    assert [one["id"] for one in root("GET", "/keys/life").json()["old"]] == [key.split("_")[1]]
    last = root("POST", "/keys/life/rotate", {"valid_s": 0}).json()["key"]
    until(lambda: status(other, new) == 401)
    assert [status(other, key), status(other, last)] == [200, 200]

    assert root("POST", "/keys/life/revoke").json()["revoked"] is not None
    for gateway in gateways:
        until(lambda gateway=gateway: status(gateway, last) == status(gateway, key) == 401)  # type: ignore[misc]
    assert code(root("PATCH", "/keys/life", {"disabled": False})) == (409, "revoked")
    assert code(root("POST", "/keys/life/rotate", {})) == (409, "revoked")
    assert root("POST", "/keys/life/revoke").status_code == 200, "again"
    assert "life" not in [key["name"] for key in root("GET", "/keys").json()["keys"]]
    found = root("GET", "/keys?revoked=true").json()["keys"]
    assert "life" in [key["name"] for key in found]
    assert status(one, root.made("life")) == 200, "a name may be used again"


def test_the_secret_is_nowhere_but_in_the_answer(stack: Stack, root: Caller, server: Server) -> None:
    key = root.made("secret")
    rotated = root("POST", "/keys/secret/rotate").json()["key"]
    stack.gateway.log.flush()
    parts = [one.split("_")[2] for one in (key, rotated)]
    texts = [stack.output.getvalue().decode(), root("GET", "/export").text, root("GET", "/audit").text]
    for name in server.command("KEYS", "*-keys}*"):
        kind = server.command("TYPE", name)
        ways = {b"hash": ("HGETALL", name), b"stream": ("XRANGE", name, "-", "+"), b"zset": ("ZRANGE", name, 0, -1)}
        read = ways.get(kind, ("GET", name))
        texts.append(str(server.command(*read)))
    assert not any(part in text for part in parts for text in texts)


def test_nothing_of_it_is_on_the_clients_port(stack: Stack) -> None:
    headers = {"authorization": "Bearer root-key"}
    for path in ("/keys", "/openapi.json", "/audit", "/export"):
        assert httpx.get(stack.url + PATH + path, headers=headers).status_code in (401, 404)
    assert status(stack, "root-key") == 401, "an admin's key is not a client's"


@pytest.mark.parametrize("key", [None, "wrong", "configured"])
def test_strangers_and_clients_are_refused(stack: Stack, key: str | None) -> None:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    for one in OPERATIONS:
        answer = httpx.request(one.method, stack.admin_url + PATH + one.path, headers=headers, json={})
        assert code(answer) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("operation", [one for one in OPERATIONS if "{" in one.path], ids=lambda one: one.name)
def test_doubled_slashes_lead_to_the_same_name(
    stack: Stack, root: Caller, operation: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    async def note(api: AdminApi, admin: Admin, request: Request) -> Response:
        found.append(_name(request))
        return Response()

    monkeypatch.setattr(AdminApi, operation.name, note)
    kind = operation.path.split("/")[1]
    for name in ("foo", kind, "a//b"):
        path = PATH + re.sub(r"{.*}", quote(name, safe=""), operation.path)
        for asked in (path, "/" + path, path.replace("/", "//"), path.replace(f"/{kind}/", f"/{kind}///")):
            answer = httpx.request(operation.method, stack.admin_url + asked, headers=root.headers, json={})
            assert (answer.status_code, found.pop()) == (200, name), asked


def test_a_doubled_slash_revokes_no_other_key(stack: Stack, root: Caller) -> None:
    for name in ("foo", "keys"):
        root.made(name)
    answer = httpx.post(f"{stack.admin_url}/{PATH}/keys/foo/revoke", headers=root.headers)
    assert (answer.status_code, answer.json()["name"]) == (200, "foo")
    assert root("GET", "/keys/keys").json()["revoked"] is None


def test_without_a_console_no_request_is_ended_and_workers_are_drained(stack: Stack, root: Caller) -> None:
    assert code(root("POST", "/requests/one/end")) == (404, "no_console")
    address = stack.sim.url.replace(":", "%3A").replace("/", "%2F")
    (worker,) = (one for place, one in stack.gateway.deployment.workers.items() if place[1] == stack.sim.url)
    for what, drained in (("drain", True), ("undrain", False)):
        assert root("POST", f"/workers/{address}/{what}").json()["drained"] is drained
        assert worker.draining is drained


def test_a_lead_sees_and_changes_its_own_teams_alone(root: Caller, lead: Caller) -> None:
    root.made("of-red", team="red")
    root.made("of-none")
    lead.made("of-blue", team="blue")
    lead.made("of-green", team="green")
    for name in ("of-red", "of-none", "nobodys"):
        for method, path in (("GET", ""), ("PATCH", ""), ("POST", "/rotate"), ("POST", "/revoke")):
            answer = lead(method, f"/keys/{name}{path}", {} if method != "GET" else None)
            assert code(answer) == (404, "no_key"), (name, method)
    names = {key["name"] for key in lead("GET", "/keys?limit=500").json()["keys"]}
    assert {"of-blue", "of-green"} <= names
    assert {"of-red", "of-none"}.isdisjoint(names)
    assert {line["team"] for line in lead("GET", "/audit?limit=500").json()["changes"]} <= {"blue", "green"}
    for options in ({}, {"team": "red"}):
        assert code(lead("POST", "/keys", {"name": "more", **options})) == (403, "role")
    assert code(lead("PATCH", "/keys/of-blue", {"team": "red"})) == (403, "role")
    assert code(lead("PATCH", "/keys/of-blue", {"team": None})) == (403, "role")
    assert lead("PATCH", "/keys/of-blue", {"team": "green"}).json()["team"] == "green"
    assert code(lead("PATCH", "/keys/of-blue", {"priority": 1})) == (403, "role")
    assert root("PATCH", "/keys/of-blue", {"priority": 5}).status_code == 200
    assert lead("PATCH", "/keys/of-blue", {"disabled": True}).status_code == 200, "as it was"
    assert code(lead("GET", "/export")) == (403, "role")
    assert code(lead("PUT", "/keys/of-blue", {})) == (403, "role")
    root("POST", "/keys/of-red/revoke")
    assert code(lead("POST", "/keys", {"name": "of-red", "team": "blue"})) == (409, "name_taken")


def test_a_token_may_have_a_role(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set.json").write_text(jwt_keys(r=RSA))
    jwt = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": str(tmp_path / "set.json")}
    by_token = config(server, admins=None, jwt={**jwt, "team_claim": "org", "roles_claim": "roles"})
    with Stack(({},), by_token) as stack:

        def bearer(**claims: Any) -> Caller:
            return Caller(stack, token(**claims).decode())

        every = bearer(roles=["other", "dragoman-admin"])
        every.made("tokened-red", team="red")
        of_blue = bearer(roles="dragoman-team-admin", org="blue")
        of_blue.made("tokened-blue", team="blue")
        assert code(of_blue("GET", "/keys/tokened-red")) == (404, "no_key")
        assert every("GET", "/keys/tokened-blue").json()["created_by"] == "jwt:alice"
        for none in (bearer(), bearer(roles=["dragoman-team-admin"]), bearer(roles=["admin"], org="blue")):
            assert code(none("GET", "/keys")) == (403, "role")
        assert code(bearer(roles="dragoman-admin", exp=time.time() - 60)("GET", "/keys")) == (401, "invalid_api_key")
        assert code(bearer(roles={"dragoman-admin": 1})("GET", "/keys")) == (401, "invalid_api_key")
        assert code(Caller(stack, "root-key")("GET", "/keys")) == (401, "invalid_api_key"), "no admins beside"


def test_a_lead_cannot_lift_a_limit_of_all(server: Server) -> None:
    limits = [{"name": "requests", "kind": "requests", "limit": 5}]
    listen = {"max_streams_per_key": 2, "max_connections_per_key": 50}
    with Stack(({},), config(server, limits=limits, listen=listen)) as stack:
        lead, root = Caller(stack, "lead-key"), Caller(stack, "root-key")
        for kind in ("requests", "streams", "connections"):
            answer = lead("POST", "/keys", {"name": f"of-{kind}", "team": "blue", "limits": {kind: 1000}})
            assert code(answer) == (403, "role"), kind
        options = {"name": "lifted", "team": "blue", "limits": {"requests": 1000}}
        assert code(lead("POST", "/keys", options)) == (403, "role")
        assert lead("POST", "/keys", {**options, "limits": {"tokens": 1000}}).status_code == 201
        assert root("PATCH", "/keys/lifted", {"limits": {"requests": 1000}}).status_code == 200
        assert lead("PATCH", "/keys/lifted", {"disabled": True}).status_code == 200, "it stays as an admin made it"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "w", "models": ["nothing"]}, "models.0: is not a model"),
        ({"name": "w", "dialects": ["opnai"]}, "dialects.0: is not a dialect; did you mean openai?"),
        ({"name": "w", "prio": 3}, "prio: is not an option; did you mean priority?"),
        ({"name": "w", "expires": "soon"}, "expires: must be a date"),
        ({"name": "w", "limits": {"requests": 0}}, "limits.requests: must be at least 1"),
        ({"name": "a b"}, "name: must be 1 to 200 characters"),
        ({"name": "jwt:x"}, "name: must not begin with jwt:"),
        ({"team": "blue"}, "name: is required"),
        ({"name": "w", "hash": "sha256:short"}, "hash: must be"),
        ({"name": "w", "aws_access_key_id": "AKIDX"}, "aws_access_key_id: pairs that sign requests are for files"),
        ({"name": "w", "match": {"address": ["10.0.0.0/8"]}}, "match: networks are for files"),
        ({"name": "w", "models": ["m"] * 6000}, "the key has more than 8192 bytes"),
    ],
)
def test_what_is_wrong_is_named_as_in_a_file(root: Caller, options: dict[str, Any], message: str) -> None:
    answer = root("POST", "/keys", options)
    assert answer.status_code == 422
    assert message in answer.json()["error"]["message"]


def test_names_and_secrets_that_are_in_use_are_refused(root: Caller) -> None:
    root.made("taken", hash=hash_of("given"))
    assert code(root("POST", "/keys", {"name": "taken"})) == (409, "name_taken")
    assert code(root("POST", "/keys", {"name": "own"})) == (409, "name_taken")
    for secret in ("given", "configured", "lead-key"):
        assert code(root("POST", "/keys", {"name": "another", "hash": hash_of(secret)})) == (409, "secret_taken")
    root("POST", "/keys/taken/revoke")
    assert code(root("POST", "/keys", {"name": "another", "hash": hash_of("given")})) == (409, "secret_taken")


def test_one_creation_is_made_once(gateways: tuple[Stack, Stack], root: Caller) -> None:
    headers = {"idempotency-key": "5f0c"}
    body = {"name": "once", "team": "blue"}
    first = root("POST", "/keys", body, headers=headers)
    again = [Caller(stack, "root-key")("POST", "/keys", body, headers=headers) for stack in gateways]
    assert [one.status_code for one in (first, *again)] == [201, 201, 201]
    assert first.json()["key"] is not None
    assert [one.json()["key"] for one in again] == [None, None], "a secret is shown once"
    assert {one.json()["version"] for one in (first, *again)} == {first.json()["version"]}
    assert ["idempotent-replayed" in one.headers for one in (first, *again)] == [False, True, True]
    other = root("POST", "/keys", {"name": "twice"}, headers=headers)
    assert code(other) == (422, "idempotency_key_reused")
    lead = Caller(gateways[0], "lead-key")
    assert lead("POST", "/keys", {"name": "of-lead", "team": "blue"}, headers=headers).status_code == 201, "its own"
    assert code(root("POST", "/keys", body, headers={"idempotency-key": "x" * 256})) == (422, "invalid")


def test_of_many_at_once_one_creation_wins(gateways: tuple[Stack, Stack]) -> None:
    callers = [Caller(stack, "root-key") for stack in gateways] * 4
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda caller: caller("POST", "/keys", {"name": "race"}), callers))
    assert sorted(one.status_code for one in answers) == [201] + [409] * 7
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda one: callers[one]("PATCH", "/keys/race", {"priority": one}), range(8)))
    assert {one.status_code for one in answers} <= {200, 409}
    last = max((one.json() for one in answers if one.status_code == 200), key=lambda key: key["version"])
    for caller in callers[:2]:
        until(lambda caller=caller: caller("GET", "/keys/race").json() == last)  # type: ignore[misc]


def test_a_key_can_be_changed_at_any_gateway_as_soon_as_it_is_there(gateways: tuple[Stack, Stack]) -> None:
    one, other = (Caller(stack, "root-key") for stack in gateways)
    for number in range(10):
        one.made(f"fresh-{number}")
        assert other("PATCH", f"/keys/fresh-{number}", {"team": "blue"}).json()["team"] == "blue"
        assert one("POST", f"/keys/fresh-{number}/revoke").json()["team"] == "blue"


def test_bodies_that_are_none_are_refused(stack: Stack, root: Caller) -> None:
    url, headers = stack.admin_url + PATH + "/keys", {"authorization": "Bearer root-key"}
    as_json = {**headers, "content-type": "application/json"}
    assert code(httpx.post(url, content=b"[1]", headers=as_json)) == (400, "invalid")
    assert code(httpx.post(url, content=b'{"name": ' + b"[" * 5000, headers=as_json)) == (400, "invalid")
    assert code(httpx.post(url, content=b"{}", headers=headers)) == (415, "media_type")
    assert code(httpx.post(url, content=b" " * 70_000, headers=as_json)) == (413, "too_large")
    assert code(root("GET", "/nothing")) == (404, "unknown_path")
    for path in dict.fromkeys(["/openapi.json", *(one.path for one in OPERATIONS)]):
        allowed = {one.method for one in OPERATIONS if one.path == path} or {"GET"}
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE"} - allowed:
            answer = root(method, path)
            assert code(answer) == (405, "method"), (method, path)
            assert set(answer.headers["allow"].split(", ")) - {"HEAD"} == allowed
    assert code(root("POST", "/keys/x/rotate", {"valid_s": -1})) == (422, "invalid")


@pytest.mark.parametrize("moment", [-1.0, 1e12, 1e18, 1e300, -1e300])
@pytest.mark.parametrize("member", ["created", "changed", "revoked", "until"])
def test_a_time_that_cannot_be_shown_is_not_taken_in(root: Caller, member: str, moment: float) -> None:
    given: dict[str, Any] = {"hash": hash_of("timed"), "seal": hash_of("timed"), "created_by": "x", "changed_by": "x"}
    given |= {"created": 1.0, "changed": 1.0}
    more = {"old": [{"hash": hash_of("t"), "until": moment}]} if member == "until" else {member: moment}
    assert code(root("PUT", "/keys/timed", {**given, **more})) == (422, "invalid")
    assert root("GET", "/keys?limit=500&revoked=true").status_code == 200


@pytest.mark.parametrize(
    "more",
    [
        {"anything": 1},
        {"name": "another"},
        {"version": 7},
        {"limits": {"anything": 1}},
        {"old": [{"hash": "sha256:" + "0" * 64, "until": 9e9, "anything": 1}]},
    ],
)
def test_a_member_of_an_imported_key_is_taken_or_refused(root: Caller, more: dict[str, Any]) -> None:
    given: dict[str, Any] = {"hash": hash_of("odd"), "seal": hash_of("odd"), "created_by": "x", "changed_by": "x"}
    given |= {"created": 1.0, "changed": 1.0}
    answer = root("PUT", "/keys/odd", {**given, **more})
    assert code(answer) == (422, "invalid")
    assert root("GET", "/keys/odd").status_code == 404


def test_the_page_describes_each_member_of_an_imported_key(root: Caller) -> None:
    page = (ROOT / "docs" / "keys.md").read_text()
    table = page[page.index("a key's line has these members") :]
    named = set(
        re.findall(
            r"`(\w+)`",
            "".join(
                line.split("|")[1]
                for line in table[: table.index("\n\n`dragoman")].splitlines()
                if line.startswith("|")
            ),
        )
    )
    assert named == set(StoredKey.__struct_fields__) - {"version"}


@pytest.mark.parametrize("action", ["create", "rotate"])
def test_an_id_without_a_hash_is_refused(root: Caller, action: str) -> None:
    if action == "rotate":
        root.made("id-alone")
    path = "/keys" if action == "create" else "/keys/id-alone/rotate"
    given = {"name": "with-id", "id": "x"} if action == "create" else {"id": "x"}
    assert code(root("POST", path, given)) == (422, "invalid")


def test_keys_of_the_configuration_are_listed_beside_those_of_the_store(root: Caller, lead: Caller) -> None:
    root.made("aa", team="blue")
    root.made("zz", team="blue")
    found: list[tuple[str, str]] = []
    after: str | None = ""
    while after is not None:
        page = root("GET", f"/keys?limit=1&after={quote(after)}").json()
        found += [(key["name"], key["where"]) for key in page["keys"]]
        after = page["next"]
    assert {("aa", "store"), ("own", "configuration"), ("zz", "store")} <= set(found)
    assert len(found) == len(dict(found)) == len(root("GET", "/keys?limit=500").json()["keys"])
    shown = root("GET", "/keys/own").json()
    assert (shown["where"], shown["created"], shown["team"]) == ("configuration", None, None)
    assert "own" not in [key["name"] for key in lead("GET", "/keys?limit=500").json()["keys"]]
    assert lead("GET", "/keys/own").status_code == 404
    for method, action in (("PATCH", ""), ("POST", "/rotate"), ("POST", "/revoke")):
        assert code(root(method, "/keys/own" + action, {})) == (409, "configured")
        assert lead(method, "/keys/own" + action, {}).status_code == 404
    assert "own" not in [key["name"] for key in root("GET", "/export?limit=500").json()["keys"]]


def test_a_lead_lifts_limits_of_its_teams_keys_and_none_of_the_configuration(root: Caller, lead: Caller) -> None:
    """As the page says: who made them makes no difference."""
    root.made("bound", team="blue", limits={"requests": 5, "tokens": 100})
    answer = lead("PATCH", "/keys/bound", {"limits": {"requests": 50}})
    assert (answer.status_code, answer.json()["limits"]) == (200, {"requests": 50})
    assert lead("PATCH", "/keys/bound", {"limits": None}).json()["limits"] is None


def test_a_replaced_secret_is_shown_while_it_is_valid(root: Caller) -> None:
    root.made("turning")
    answer = root("POST", "/keys/turning/rotate", {"valid_s": 0.5})
    assert len(answer.json()["old"]) == 1
    until(lambda: root("GET", "/keys/turning").json()["old"] == [])
    listed = next(key for key in root("GET", "/keys?limit=500").json()["keys"] if key["name"] == "turning")
    assert listed["old"] == []


def test_lost_keys_are_counted_and_written_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Server(tmp_path_factory.mktemp("lost"), "--appendonly", "yes") as server:
        with Stack(({},), config(server)) as stack:
            root = Caller(stack, "root-key")
            key = root.made("app")
            root.made("gone")
            assert root("POST", "/keys/gone/revoke").status_code == 200

            def missing() -> str:
                text = httpx.get(stack.admin_url + "/metrics").text
                return next(line for line in text.splitlines() if line.startswith("dragoman_stored_keys_missing"))

            assert missing().endswith(" 0.0")
            server.command("FLUSHALL")
            until(lambda: missing().endswith(" 1.0"))
            assert code(Caller(stack, "lead-key")("POST", "/refill")) == (403, "role")
            assert root("POST", "/refill").json() == {"keys": 2}
            assert missing().endswith(" 0.0")
            assert root("POST", "/refill").json() == {"keys": 0}
            assert {line["what"] for line in root("GET", "/audit").json()["changes"]} == {"refill"}
        with Stack(({},), config(server)) as again:  # one that was not there
            assert status(again, key) == 200
            listed = Caller(again, "root-key")("GET", "/keys?revoked=true").json()["keys"]
            assert "gone" in [one["name"] for one in listed]


def test_a_name_may_hold_what_a_path_may_not(root: Caller) -> None:
    for name in ("team/app:ä", "50%2F", "?#&"):
        root.made(name)
        path = "/keys/" + quote(name, safe="")
        assert root("GET", path).json()["name"] == name
        assert root("POST", path + "/revoke").status_code == 200


def test_without_redis_nothing_is_changed(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Server(tmp_path_factory.mktemp("away"), "--appendonly", "yes") as away, Stack(({},), config(away)) as stack:
        root = Caller(stack, "root-key")
        key = root.made("app")
        away.kill()
        assert code(root("POST", "/keys/app/revoke")) == (503, "store_unavailable")
        assert status(stack, key) == 200
        away.start()
        until(lambda: root("POST", "/keys/app/revoke").status_code == 200)
        assert status(stack, key) == 401


def test_a_slow_redis_is_waited_for_and_what_is_known_needs_none(tmp_path_factory: pytest.TempPathFactory) -> None:
    """For `redis.timeout_s`, 10 s here: a frozen Redis stands for one on a busy machine. It thaws behind the 2 s that a
    call always has."""
    with Server(tmp_path_factory.mktemp("slow"), "--appendonly", "yes") as slow, Stack(({},), config(slow)) as stack:
        root = Caller(stack, "root-key")
        root.made("app")
        slow.freeze()
        thaw = threading.Timer(3.5, slow.thaw)
        thaw.start()
        try:
            assert root("POST", "/keys", {"name": "late"}, timeout=60).status_code == 201
        finally:
            thaw.join()
        slow.kill()
        until(lambda: code(root("POST", "/keys/app/revoke")) == (503, "store_unavailable"))
        for path in ("/keys", "/export"):
            assert {key["name"] for key in root("GET", path).json()["keys"]} - {"own"} == {"app", "late"}
        assert root("GET", "/keys/app").json()["name"] == "app"
        assert code(root("GET", "/keys/unknown")) == (503, "store_unavailable")


@pytest.mark.feature("batches")
def test_the_description_describes_what_is_answered(stack: Stack, root: Caller) -> None:
    document = httpx.get(stack.admin_url + PATH + "/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    bodies: dict[str, Any] = {"create": {"name": "described", "limits": {"requests": 3}}, "update": {"disabled": False}}
    bodies |= {"create_team": {"name": "described", "budgets": {"team-budget": 3}}, "update_team": {"disabled": False}}
    client = anthropic.Anthropic(base_url=stack.url, api_key="configured")
    chat: Any = {"model": "m", "messages": CHAT["messages"], "max_tokens": 4}
    batch = client.messages.batches.create(requests=[{"custom_id": str(n), "params": chat} for n in range(2_000)])
    seen = set()
    for one in OPERATIONS:
        if one.path.startswith(("/requests", "/workers")):  # tests/unit/features/console has those
            seen.add(one.name)
            continue
        path = one.path.replace("{name}", "described").replace("{id}", batch.id)
        body = bodies.get(one.name, {}) if one.method != "GET" else None
        if one.name in ("show", "rotate", "revoke", "update", "put") and "create" not in seen:
            root.made("described")
        if one.name == "create":
            root("POST", "/keys/described/revoke")
        if one.name == "put":
            body = next(key for key in root("GET", "/export?limit=500").json()["keys"] if key["name"] == "described")
        if one.name == "update":
            root("POST", "/keys", {"name": "described"})
        answer = root(one.method, path, body)
        assert answer.status_code == one.status, (one.name, answer.text)
        described = document["paths"][PATH + one.path][one.method.lower()]
        assert described["operationId"] == one.name
        content = described["responses"][str(one.status)]["content"]["application/json"]["schema"]
        schema = {**content, "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(answer.json())
        seen.add(one.name)
    assert {one["operationId"] for path in document["paths"].values() for one in path.values()} == seen


def test_the_options_of_a_stored_key_are_those_of_the_file() -> None:
    assert set(KeyOptions.__struct_fields__) == set(OPTIONS)
    assert set(TeamOptions.__struct_fields__) == set(TEAM_OPTIONS)
    assert {name for name in Key.model_fields if not name.startswith("aws_")} - {*OPTIONS} == {"hash", "id", "match"}


def test_a_revocation_takes_as_long_as_a_second_at_most_under_load(gateways: tuple[Stack, Stack], root: Caller) -> None:
    keys = [root.made(f"load-{number}") for number in range(20)]
    waits = []
    for number, key in enumerate(keys):
        begun = time.monotonic()
        assert root("POST", f"/keys/load-{number}/revoke").status_code == 200
        until(lambda key=key: status(gateways[1], key) == 401)  # type: ignore[misc]
        waits.append(time.monotonic() - begun)
    assert max(waits) < 1


def test_a_creation_that_another_gateway_makes_meanwhile_is_this_one(
    gateways: tuple[Stack, Stack], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is asked, then the other gateway makes the key and this one learns of it: that is no taken name."""
    one, other = (Caller(stack, "root-key") for stack in gateways)
    for given in ({}, {"hash": hash_of("meanwhile")}):
        headers, body = {"idempotency-key": f"meanwhile-{len(given)}"}, {"name": f"meanwhile-{len(given)}", **given}
        mirror: Any = gateways[0].gateway.deployment.services.keys
        done, asked = mirror.store.done, list[str]()

        async def late(name: str, done: Any = done, asked: list[str] = asked, body: Any = body) -> bytes | None:
            found: bytes | None = await done(name)
            if not asked:
                asked.append(name)
                answer = await asyncio.to_thread(other, "POST", "/keys", body, headers=headers)  # noqa: B023
                assert answer.status_code == 201
                while body["name"] not in mirror.keys:  # noqa: ASYNC110, B023
                    await asyncio.sleep(0.01)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(mirror.store, "done", late)
            answer = one("POST", "/keys", body, headers=headers)
        assert (answer.status_code, answer.json()["key"]) == (201, None), answer.text
        assert answer.headers["idempotent-replayed"]
    assert code(one("POST", "/keys", body, headers={"idempotency-key": "another"})) == (409, "name_taken")
