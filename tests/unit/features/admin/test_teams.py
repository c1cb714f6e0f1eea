"""Teams of running gateways: an entry binds all callers of a team, on every gateway and on open connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config import ConfigError
from gateway.ratelimit import Subject
from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.unit.auth.stored_keys import hash_of
from tests.unit.auth.test_jwt import AUDIENCE, ISSUER, RSA, token
from tests.unit.auth.test_jwt import keys as jwt_keys
from tests.unit.features.admin.calling import CHAT, Caller, code, config, status

LIMITS = [
    {"name": "minute", "kind": "requests", "limit": 2, "scope": ["team"], "match": {"team": ["green"]}},
    {"name": "minute", "kind": "requests", "limit": 3, "scope": ["team"]},
    {"name": "each", "kind": "requests", "limit": 1000, "scope": ["key"]},
]
BUDGETS = [{"name": "month", "amount": 5, "scope": ["team"]}]


def sections(server: Server, **more: Any) -> dict[str, Any]:
    found = config(server, limits=LIMITS, budgets=BUDGETS, spend={"currency": "EUR"}, **more)
    found["keys"] |= {"fixed": {"hash": hash_of("fixed"), "team": "blue"}}
    model = {"backend": "vllm", "workers": ["http://127.0.0.1:9"], "price": {"request": 1}}
    return {**found, "models": {"m": {"price": {"request": 1}}, "other": model}}


@pytest.fixture
def pair(server: Server) -> Iterator[tuple[Stack, Stack]]:
    server.command("FLUSHALL")
    with Stack(({},), sections(server)) as one, Stack(({},), sections(server)) as other:
        yield one, other


def test_an_entry_binds_all_keys_of_its_team_on_every_gateway(pair: tuple[Stack, Stack]) -> None:
    root = Caller(pair[0], "root-key")
    keys = ["fixed", root.made("blue-1", team="blue"), root.made("blue-2", team="blue", models=["m", "other"])]
    red = root.made("red-1", team="red")
    for gateway in pair:
        until(lambda gateway=gateway: status(gateway, keys[2]) != 401)  # type: ignore[misc]
    with httpx.Client() as held:

        def ask(gateway: Stack, key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return held.post(gateway.url + "/v1/chat/completions", json=CHAT, headers=headers).status_code

        assert ask(pair[1], red) == 200
        made = root("POST", "/teams", {"name": "blue", "models": ["other"], "description": "The blue ones"})
        assert (made.status_code, made.json()["keys"], made.json()["created_by"]) == (201, 3, "root")
        for gateway in pair:
            for key in keys:
                until(lambda gateway=gateway, key=key: ask(gateway, key) == 404)  # type: ignore[misc]
            offered = httpx.get(gateway.url + "/v1/models", headers={"authorization": f"Bearer {keys[1]}"}).json()
            assert [model["id"] for model in offered["data"]] == ["other"]
        late = root.made("blue-3", team="blue", models=["m"])
        until(lambda: ask(pair[1], late) == 404)
        assert ask(pair[1], red) == 200

        root("PATCH", "/teams/blue", {"models": None, "disabled": True})
        for gateway in pair:
            for key in (*keys, late):
                until(lambda gateway=gateway, key=key: ask(gateway, key) == 401)  # type: ignore[misc]
        answer = httpx.post(pair[0].url + "/v1/chat/completions", json=CHAT, headers={"api-key": late})
        assert "the team of the API key is disabled" in answer.text

        refused = root("DELETE", "/teams/blue")
        assert code(refused) == (409, "team_disabled"), "it would admit its callers"
        assert "enable and delete it" in refused.json()["error"]["message"]
        for gateway in pair:
            assert {ask(gateway, key) for key in (*keys, late)} == {401}
        root("PATCH", "/teams/blue", {"disabled": None})
        assert [root("DELETE", "/teams/blue").json() for _ in range(2)] == [{"name": "blue"}] * 2, "again"
        assert code(root("PATCH", "/teams/blue", {"disabled": True})) == (404, "no_team")
        for gateway in pair:
            until(lambda gateway=gateway: ask(gateway, late) != 401)  # type: ignore[misc]
        listed = root("GET", "/teams").json()["teams"]
        assert [(team["name"], team["where"], team["keys"]) for team in listed] == [
            ("blue", "keys", 4),
            ("red", "keys", 1),
        ]


def test_a_number_of_its_own_is_in_force_at_once_and_goes_with_the_entry(pair: tuple[Stack, Stack]) -> None:
    one, other = pair
    root = Caller(one, "root-key")

    def counts(team: str) -> dict[str, int]:
        limiter = other.service("limits").limiter
        states = other.run(limiter.inspect(Subject("any", team, "m")))
        return {state.rule.name: state.limit for state in states}

    before = {team: counts(team) for team in ("blue", "green")}
    assert (before["blue"]["minute"], before["green"]["minute"]) == (3, 2)
    for team in ("blue", "green"):
        numbers = {"limits": {"minute": 4, "team-tokens": 5000}, "budgets": {"month": 7.5, "team-budget": 2}}
        assert root("POST", "/teams", {"name": team, **numbers}).status_code == 201
        until(lambda team=team: counts(team)["minute"] == 4)  # type: ignore[misc]
        found = counts(team)
        assert (found["month"], found["team-tokens"], found["team-budget"]) == (7_500_000_000, 5000, 2_000_000_000)
    assert [status(one, "fixed") for _ in range(3)] == [200, 200, 429], "team-budget has 2, and a request costs 1"
    assert root("PATCH", "/teams/blue", {"budgets": {"month": 1}}).json()["budgets"] == {"month": "1"}
    until(lambda: "team-budget" not in counts("blue"))
    answer = httpx.post(one.url + "/v1/chat/completions", json=CHAT, headers={"api-key": "fixed"})
    assert "the budget 'month' of 1 EUR a month" in answer.text, "what was spent stays spent"
    for team in ("blue", "green"):
        root("DELETE", f"/teams/{team}")
        until(lambda team=team: counts(team) == before[team])  # type: ignore[misc]
    assert [status(one, "fixed") for _ in range(2)] == [200, 429], "`minute` has 3 again, and 2 are used"


def test_a_key_of_the_team_does_not_lift_the_bounds(pair: tuple[Stack, Stack]) -> None:
    one, _ = pair
    root = Caller(one, "root-key")
    root("POST", "/teams", {"name": "red", "limits": {"team-requests": 1}, "models": ["alias"]})
    own = {"requests": 100, "tokens": 10_000, "budget": 100}
    key = root.made("greedy", team="red", models=["m"], limits=own, aliases={"mine": "m"})
    assert [status(one, key) for _ in range(2)] == [200, 429]
    root("PATCH", "/teams/red", {"models": ["other"], "limits": None})
    until(lambda: status(one, key) == 404)
    asked = {**CHAT, "model": "mine"}
    answer = httpx.post(one.url + "/v1/chat/completions", json=asked, headers={"api-key": key})
    assert answer.status_code == 404, "its own alias leads to no other model"


def test_bad_input_is_refused_in_the_form_of_the_api(pair: tuple[Stack, Stack]) -> None:
    root = Caller(pair[0], "root-key")
    for options, what in (
        ({"limits": {"hourly": 3}}, "limits.hourly: is not a limit with `team` in its scope"),
        ({"limits": {"each": 3}}, "limits.each: is not a limit with `team` in its scope"),
        ({"limits": {"minut": 3}}, "did you mean minute?"),
        ({"limits": {"minute": 0}}, "limits.minute: must be at least 1"),
        ({"limits": {"month": 3}}, "limits.month: is not a limit"),
        ({"budgets": {"minute": 3}}, "budgets.minute: is not a budget"),
        ({"budgets": {"month": -1}}, "budgets.month"),
        ({"models": ["nothing"]}, "models.0: is not a model"),
        ({"members": ["fixed"]}, "members: is not an option"),
        ({"description": "x" * 1001}, "description: must have at most 1000 characters"),
        ({"name": "with space"}, "name: must be 1 to 200 characters"),
        ({"name": 3}, "name: is required, as text"),
        ({"name": ".."}, "name: must be one that a path can hold"),
    ):
        answer = root("POST", "/teams", {"name": "bad", **options})
        assert code(answer) == (422, "invalid")
        assert what in answer.json()["error"]["message"]
    assert "a path can hold" in root("POST", "/keys", {"name": "."}).text, "nobody could revoke it"
    assert code(root("PATCH", "/teams/blue", {"disabled": True})) == (404, "no_team"), "it has keys and no entry"
    assert code(root("GET", "/teams/nobody")) == (404, "no_team")
    assert code(root("DELETE", "/teams/nobody")) == (404, "no_team")
    made = root("POST", "/teams", {"name": "blue", "models": ["m"]})
    assert root("POST", "/teams", {"name": "blue", "models": ["m"]}).json() == made.json(), "its answer may be lost"
    assert code(root("POST", "/teams", {"name": "blue"})) == (409, "name_taken")
    assert code(root("PATCH", "/teams/blue", {"limit": None})) == (422, "invalid")


def test_options_that_a_reload_left_behind_hold_up_no_other_change(server: Server) -> None:
    server.command("FLUSHALL")
    with Stack(({},), sections(server)) as stack:
        root, lead = Caller(stack, "root-key"), Caller(stack, "lead-key")
        entry = {"name": "green", "models": ["other"], "limits": {"minute": 4}}
        assert root("POST", "/teams", entry).status_code == 201
        root.made("app", team="green", models=["other"])
        stack.sections = {**sections(server), "limits": [], "models": {"m": {"price": {"request": 1}}}}
        stack.run(stack.gateway.reload(stack.config()))
        assert code(root("PATCH", "/teams/green", {"limits": {"minute": 3}})) == (422, "invalid")
        assert code(root("PATCH", "/keys/app", {"models": ["other"]})) == (422, "invalid")
        assert lead("PATCH", "/teams/green", {"disabled": True}).json()["limits"] == {"minute": 4}
        assert lead("POST", "/keys/app/rotate").json()["models"] == ["other"]
        assert lead("PATCH", "/keys/app", {"disabled": True}).json()["disabled"] is True


def test_what_is_not_a_team_there_keeps_its_name(pair: tuple[Stack, Stack], server: Server) -> None:
    """It may be the entry of a later version, so it is not written over."""
    root = Caller(pair[0], "root-key")
    server.command("HSET", "{dragoman-keys}:teams", "blue", b"5 {}")
    assert code(root("POST", "/teams", {"name": "blue"})) == (409, "name_taken")
    assert code(root("DELETE", "/teams/blue")) == (404, "no_team")


def test_a_lead_sees_its_own_teams_and_loosens_none(pair: tuple[Stack, Stack]) -> None:
    root, lead = Caller(pair[0], "root-key"), Caller(pair[0], "lead-key")
    root("POST", "/teams", {"name": "red", "models": ["m"]})
    root("POST", "/teams", {"name": "blue", "limits": {"minute": 10}, "budgets": {"team-budget": 9}})
    assert [team["name"] for team in lead("GET", "/teams").json()["teams"]] == ["blue"]
    for method, path, body in (
        ("GET", "/teams/red", None),
        ("PATCH", "/teams/red", {"disabled": True}),
        ("DELETE", "/teams/red", None),
    ):
        assert code(lead(method, path, body)) == (404, "no_team")
    assert code(lead("POST", "/teams", {"name": "green"})) == (403, "role")
    assert code(lead("DELETE", "/teams/blue")) == (403, "role")
    for raised in (
        {"limits": {"minute": 11}},
        {"limits": {"minute": 10, "nothing": 1}},
        {"budgets": {"team-budget": 9.5}},
        {"budgets": None},
        {"budgets": {"team-budget": 9, "month": 6}},
    ):
        assert lead("PATCH", "/teams/blue", raised).status_code in (403, 422)
    narrower = {"limits": {"minute": 4}, "budgets": {"team-budget": 3, "month": 4}, "models": ["m"], "disabled": True}
    assert lead("PATCH", "/teams/blue", {**narrower, "description": "ours"}).status_code == 200
    for back in ({"models": None}, {"models": ["m", "other"]}, {"disabled": False}, {"disabled": None}):
        assert code(lead("PATCH", "/teams/blue", back)) == (403, "role")
    assert lead("PATCH", "/teams/blue", {"limits": None}).status_code == 200, "the rule itself has less"
    assert root("PATCH", "/teams/blue", {"models": None, "budgets": None, "disabled": None}).status_code == 200
    lines = [line for line in lead("GET", "/audit").json()["changes"] if line["name"] == "blue"]
    assert [(line["by"], line["what"]) for line in lines] == [
        ("root", "update team"),
        ("lead", "update team"),
        ("lead", "update team"),
        ("root", "create team"),
    ]
    assert "red" not in [line["name"] for line in lead("GET", "/audit").json()["changes"]]


def test_the_file_s_teams_are_bound_by_it_and_not_changed_here(server: Server) -> None:
    server.command("FLUSHALL")
    entry = {"models": ["other"], "limits": {"minute": 1}, "budgets": {"month": "2.5"}}
    with Stack(({},), sections(server, teams={"blue": entry})) as stack:
        root = Caller(stack, "root-key")
        assert status(stack, "fixed") == 404
        shown = root("GET", "/teams/blue").json()
        assert (shown["where"], shown["keys"], shown["budgets"]) == ("configuration", 1, {"month": "2.5"})
        for method, path, body in (
            ("POST", "/teams", {"name": "blue"}),
            ("PATCH", "/teams/blue", {"disabled": True}),
            ("DELETE", "/teams/blue", None),
        ):
            assert root(method, path, body).status_code == 409
        root("POST", "/teams", {"name": "green", "disabled": True})
        with pytest.raises(ConfigError, match=r"keys_store: teams\.green: is also in the store"):
            stack.run(stack.gateway.reload(stack.config({"teams": {"green": {}}})))
        stack.run(stack.gateway.reload(stack.config({"teams": {"blue": {"models": None, "limits": {"minute": 2}}}})))
        assert [status(stack, "fixed") for _ in range(3)] == [200, 200, 429]
        green = root.made("of-green", team="green")
        assert status(stack, green) == 401, "a reload forgets no team of the store"


def test_a_token_is_bound_by_its_team(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    (tmp_path / "set.json").write_text(jwt_keys(r=RSA))
    jwt = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": str(tmp_path / "set.json"), "team_claim": "org"}
    with Stack(({},), sections(server, jwt=jwt)) as stack:
        root = Caller(stack, "root-key")
        of_purple, of_none = token(org="purple").decode(), token().decode()
        assert [status(stack, one) for one in (of_purple, of_none)] == [200, 200]
        root("POST", "/teams", {"name": "purple", "limits": {"team-requests": 2}})
        assert [status(stack, of_purple) for _ in range(3)] == [200, 200, 429]
        root("PATCH", "/teams/purple", {"models": ["other"], "limits": None})
        until(lambda: status(stack, of_purple) == 404)
        root("PATCH", "/teams/purple", {"disabled": True})
        until(lambda: status(stack, of_purple) == 401)
        assert status(stack, of_none) == 200


def test_lists_come_by_pages(pair: tuple[Stack, Stack]) -> None:
    root = Caller(pair[0], "root-key")
    for number in range(7):
        root("POST", "/teams", {"name": f"t{number}"})
    first = root("GET", "/teams?limit=5").json()
    rest = root("GET", f"/teams?limit=5&after={first['next']}").json()
    names = [team["name"] for team in (*first["teams"], *rest["teams"])]
    assert (names, rest["next"]) == (["blue", *(f"t{number}" for number in range(7))], None)


def test_there_are_at_most_as_many_as_keys(server: Server) -> None:
    server.command("FLUSHALL")
    with Stack(({},), sections(server, stored_keys={"max_keys": 2})) as stack:
        root = Caller(stack, "root-key")
        for name in ("one", "two"):
            assert root("POST", "/teams", {"name": name}).status_code == 201
        assert code(root("POST", "/teams", {"name": "three"})) == (409, "full")
        for name in ("one", "two"):
            root("DELETE", f"/teams/{name}")
        names = [f"later-{number}" for number in range(3)]
        for name in names:
            assert root("POST", "/teams", {"name": name}).status_code == 201
            assert root("DELETE", f"/teams/{name}").status_code == 200
        assert sorted(server.command("HKEYS", "{dragoman-keys}:teams")) == [b"later-1", b"later-2"], "the last two"
