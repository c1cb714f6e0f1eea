"""End users: found in every client API, limited, recorded, reported and kept apart in caches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.cli import main
from tests.support.clients import DIALECTS, MEDIA, WAYS, Way
from tests.support.harness import Stack, until
from tests.support.ports import free_port
from tests.support.redis_server import Server
from tests.unit.app.asking import CHAT, GONE, key

ON: dict[str, Any] = {"end_users": {"body": True}}
PLACES = ("safety_identifier", "user", "metadata.user_id")
PROXY = {"listen": {"trusted_proxies": ["127.0.0.1"]}}
SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(config=ON) as running:
        yield running


def ask(stack: Stack, user: str | None = None, key: str = "none", **more: Any) -> httpx.Response:
    body = {**CHAT, "max_tokens": 5, **({} if user is None else {"user": user}), **more}
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(stack.url + "/v1/chat/completions", json=body, headers=headers, timeout=30)


NAMING = [
    (way, place)
    for way in WAYS
    for place in (PLACES if way.dialect != "anthropic" else PLACES[2:])  # its `user` is a member of vLLM's
    if (field := way.field(place)) and field.handling != "refused"
]


@pytest.mark.parametrize(("way", "place"), NAMING, ids=str)
def test_whoever_is_named_in_a_body_is_the_end_user(stack: Stack, way: Way, place: str) -> None:
    outer, _, inner = place.partition(".")
    body = {**way.body("hello"), "model": "m", outer: {inner: "u-1"} if inner else "u-1"}
    reply = httpx.post(stack.url + way.path("m"), json=body, timeout=30)
    # The tests' worker makes neither sound nor images.
    assert reply.status_code == (400 if way.operation in MEDIA else 200), reply.text
    assert stack.record()["end_user"] == "u-1"


def test_most_client_apis_have_a_place_for_it() -> None:
    assert len({way.dialect for way, _ in NAMING}) >= 8


def test_a_safety_identifier_wins_and_reaches_no_record_of_its_own(stack: Stack) -> None:
    ask(stack, "old", safety_identifier="new")
    assert stack.record()["end_user"] == "new"
    ask(stack, "old", safety_identifier=5)
    assert stack.record()["end_user"] == "old"


@pytest.mark.parametrize(
    ("user_id", "named"),
    [
        (json.dumps({"device_id": "d", "account_uuid": "a", "session_id": "s"}), "a"),
        (json.dumps({"device_id": "d", "account_uuid": "", "session_id": "s"}), "d"),
        ("user_0a_account_1b_session_5f0c2e0e-5c5b-4f29-9d3f-2f7b6b1f3a10", "user_0a_account_1b"),
        ("user_0a_account_1b", "user_0a_account_1b"),
        ("{not json", "{not json"),
        ('{"device_id": 5}', '{"device_id": 5}'),
        ('{"x": ' + "[" * 1000 + "]" * 1000 + "}", None),
    ],
)
def test_sessions_of_claude_code_are_one_user(stack: Stack, user_id: str, named: str | None) -> None:
    body = {"model": "m", "max_tokens": 5, "messages": CHAT["messages"], "metadata": {"user_id": user_id}}
    assert httpx.post(stack.url + "/v1/messages", json=body, timeout=30).status_code == 200
    found = stack.record()["end_user"]
    assert found == named if named is not None else found.startswith("sha256:")


def test_a_request_without_a_name_has_no_end_user(stack: Stack) -> None:
    for user in (None, "", "  "):
        assert ask(stack, user).status_code == 200
        assert "end_user" not in stack.record()


def test_a_key_that_is_sent_as_a_name_is_not_recorded() -> None:
    secret, entry = key("one")
    _, other = key("two")
    unused = "dgm_" + "z" * 40
    with Stack(config={**ON, "keys": {**entry, **other}}) as stack:
        for text in (secret, unused, f"ann {secret}"):
            assert ask(stack, text, secret).status_code == 200
            assert text not in json.dumps(stack.records())
            assert stack.record()["end_user"].startswith("sha256:")


def test_without_the_section_nobody_is_recorded() -> None:
    with Stack() as stack:
        ask(stack, "ann")
        assert "end_user" not in stack.record()


def test_a_secret_hashes_names_wherever_they_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Server(tmp_path) as server:
        config: dict[str, Any] = {
            "end_users": {"secret_env": "USERS"},
            "redis": {"addresses": [server.address], "timeout_s": 5},
            "limits": [
                {"name": "few", "kind": "requests", "limit": 1, "match": {"end_user": ["ann"]}, "scope": ["end_user"]},
            ],
            "accounting": {"redis_stream": "usage"},
            "spend": {"daily": True},
        }
        with Stack(config=config, environ={"USERS": SECRET}) as stack:
            assert [ask(stack, name).status_code for name in ("ann", "ann", "bob", "bob")] == [200, 429, 200, 200]
            until(lambda: server.command("XLEN", "dragoman:usage") == 4)
            until(lambda: any(b"end_users" in name for name in server.command("KEYS", "*")))
            assert b"ann" not in stack.output.getvalue()
            kept = [server.command("DUMP", name) for name in server.command("KEYS", "*")]
            assert not any(b"ann" in text for text in [*kept, *server.command("KEYS", "*")])
        del config["spend"], config["accounting"]
        file = tmp_path / "gateway.yaml"
        models = {"m": {"backend": "vllm", "workers": ["http://127.0.0.1:9"]}}
        (tmp_path / "secret").write_text(SECRET)
        file.write_text(yaml.safe_dump({**config, "models": models, "end_users": {"secret_file": "secret"}}))
        assert main(["limits", "show", "--config", str(file), "--end-user", "ann"]) == 0
        assert capsys.readouterr().out.splitlines()[1].split()[-3:-1] == ["1", "0"]
        assert main(["limits", "show", "--config", str(file)]) == 0
        assert "give --end-user" in capsys.readouterr().err


def test_a_header_is_believed_from_proxies_alone() -> None:
    named = {"end_users": {"header": "X-End-User"}}
    for listen, found in ((PROXY, "ann"), ({"listen": {"trusted_proxies": ["192.0.2.1"]}}, "bob")):
        with Stack(config={**named, **listen}) as stack:
            headers = {"x-end-user": "ann"}
            body = {**CHAT, "user": "bob"}
            httpx.post(stack.url + "/v1/chat/completions", json=body, headers=headers, timeout=30)
            assert stack.record()["end_user"] == found
            httpx.post(stack.url + "/v1/chat/completions", json=body, timeout=30)
            assert stack.record()["end_user"] == "bob"


def test_bodies_can_be_left_out() -> None:
    with Stack(config={**PROXY, "end_users": {"header": "x-end-user", "body": False}}) as stack:
        ask(stack, "bob")
        assert "end_user" not in stack.record()


def test_a_name_can_be_required() -> None:
    with Stack(config={"end_users": {"required": True}}) as stack:
        assert ask(stack, "ann").status_code == 200
        reply = ask(stack)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "user")
        body = {"model": "m", "max_tokens": 5, "messages": CHAT["messages"]}
        reply = httpx.post(stack.url + "/v1/messages", json=body, timeout=30)
        assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
        reply = httpx.post(stack.url + "/v1/messages/count_tokens", json=body, timeout=30)
        assert reply.status_code == 200  # it has no place for a name


def test_the_field_that_is_missing_is_one_that_the_dialect_has() -> None:
    """The client would write another one in vain."""
    questions = ("count", "tokenize", "detokenize")
    ways = {(way.dialect, way.operation): way for way in WAYS if way.operation not in questions}
    with Stack(config={"end_users": {"required": True}}) as stack:
        for way in ways.values():
            fields = DIALECTS[way.dialect].fields[way.operation]
            reads = way.operation in MEDIA or any("user" in field.targets for field in fields)
            reply = httpx.post(stack.url + way.path("m"), json={"model": "m", **way.body()}, timeout=30)
            assert reply.status_code in (400, 422), way
            assert "a request must name its end user here" in reply.text, way
            assert ("and this API has no field for that" in reply.text) != reads, way
            assert reads or '"user"' not in reply.text, way


def test_each_end_user_has_a_budget_also_on_a_fallback() -> None:
    models = {"m": {"price": {"request": 1}}, "away": {**GONE, "price": {"request": 1}, "fallback": ["m"]}}
    budgets = [{"name": "each", "amount": 0.5, "scope": ["end_user"]}]
    with Stack(config={**ON, "models": models, "spend": {"currency": "EUR"}, "budgets": budgets}) as stack:
        assert [ask(stack, name, model="away").status_code for name in ("ann", "bob", "ann", "bob")] == [
            200,
            200,
            429,
            429,
        ]
        assert [ask(stack).status_code for _ in range(2)] == [200, 200]
        assert {line["of"]["end_user"] for line in stack.events("budget spent")} == {"ann", "bob"}


def test_a_heavy_request_counts_for_its_end_user() -> None:
    limits = [{"name": "each", "kind": "requests", "limit": 1, "scope": ["end_user"]}]
    heavy: Any = {"prediction": {"type": "content", "content": "x" * 300_000}}
    with Stack(config={**ON, "limits": limits}) as stack:
        found = [ask(stack, name, **heavy).status_code for name in ("ann", "bob", "ann")]
    assert found == [200, 200, 429]


def test_caches_are_apart_by_end_user() -> None:
    red, one = key("one", team="red")
    also, two = key("two", team="red")
    blue, three = key("three", team="blue")
    salt = {"cache_salt": {"secret_env": "SALT", "by": "end_user"}}
    with Stack(config={**ON, **salt, "keys": {**one, **two, **three}}, environ={"SALT": SECRET}) as stack:

        def sent(user: str | None, secret: str) -> str:
            assert ask(stack, user, secret).status_code == 200
            entry = stack.sim.entries[-1]
            return str(json.loads(entry.body)["cache_salt"])

        ann = sent("ann", red)
        assert ann == sent("ann", red) == sent("ann", also)
        assert len({ann, sent("bob", red), sent("ann", blue), sent(None, red), sent(None, blue)}) == 5


def test_reports_by_end_user_add_up(tmp_path: Path) -> None:
    console = {"enabled": True}
    with Server(tmp_path) as server:
        config = {
            **ON,
            "models": {"m": {"price": {"output": 1}}},
            "spend": {"currency": "EUR", "daily": True},
            "redis": {"addresses": [server.address], "timeout_s": 5},
            "metrics": {"listen": f"127.0.0.1:{free_port()}"},
            "console": console,
        }
        with Stack(config=config) as stack:
            for user in ("ann", "ann", "bob", None):
                ask(stack, user)

            def report(by: str) -> dict[str, Any]:
                return httpx.get(f"{stack.admin_url}/spend.json?by={by}", timeout=30).json()  # type: ignore[no-any-return]

            until(lambda: report("model")["total"]["requests"] == 4)
            found = report("end_user")
            assert {row["end_user"]: row["requests"] for row in found["rows"]} == {"ann": 2, "bob": 1, "": 1}
            assert found["total"] == report("model,end_user")["total"] == report("model")["total"]


def test_a_socket_names_its_end_user(stack: Stack) -> None:
    from websockets.asyncio.client import connect

    async def asked() -> None:
        async with connect(stack.url.replace("http", "ws") + "/v1/responses") as socket:
            await socket.send(
                json.dumps({"type": "response.create", "model": "m", "input": "hi", "safety_identifier": "sue"})
            )
            while json.loads(await socket.recv())["type"] not in ("response.completed", "error"):
                pass

    asyncio.run(asked())
    until(lambda: stack.record().get("end_user") == "sue")
