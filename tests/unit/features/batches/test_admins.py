"""Admins see and cancel batches by the admin API, each those of its teams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.unit.features.batches.conftest import ALICE, BOB, anthropic_client, openai_client, sections

pytestmark = pytest.mark.feature("admin")


def hash_of(secret: str) -> str:
    return "sha256:" + sha256(secret.encode()).hexdigest()


def admin(server: Server, directory: Path) -> dict[str, Any]:
    return {
        **sections(server, directory),
        "keys_store": "redis",
        "admins": {
            "root": {"hash": hash_of("root-key")},
            "lead": {"hash": hash_of("lead-key"), "teams": ["blue"]},
            "other": {"hash": hash_of("other-key"), "teams": ["green"]},
        },
        "metrics": {"listen": "127.0.0.1:1"},
    }


@pytest.fixture
def stack(server: Server, tmp_path: Path) -> Iterator[Stack]:
    server.command("FLUSHALL")
    # A worker that is never idle: what is made stays in progress.
    with Stack(({},), {**admin(server, tmp_path / "files"), "models": {"m": {"max_in_flight": 1}}}) as stack:
        (worker,) = stack.gateway.deployment.pools["m"].workers
        worker.in_flight = 1
        yield stack
        worker.in_flight = 0


def asked(stack: Stack, who: str, path: str = "", method: str = "GET", **query: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {who}-key"}
    return httpx.request(method, f"{stack.admin_url}/admin/v1/batches{path}", headers=headers, params=query)


def ids(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [one["id"] for one in answer.json()["batches"]]


def made(stack: Stack) -> list[str]:
    """Batches of alice's team by both APIs and one of bob, who has none; the newest first."""
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    found = []
    for key in (ALICE, BOB):
        client = openai_client(stack, key)
        file = client.files.create(file=("a.jsonl", json.dumps(line).encode()), purpose="batch")
        found.append(
            client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h").id
        )
    requests: Any = [{"custom_id": "a", "params": body}]
    found.append(anthropic_client(stack).messages.batches.create(requests=requests).id)
    return found[::-1]


def test_an_admin_sees_those_of_its_teams_the_newest_first(stack: Stack) -> None:
    anthropics, bobs, alices = made(stack)
    assert ids(asked(stack, "root")) == [anthropics, bobs, alices]
    assert ids(asked(stack, "root", team="blue")) == [anthropics, alices]
    assert ids(asked(stack, "lead")) == [anthropics, alices]
    assert ids(asked(stack, "lead", team="green")) == ids(asked(stack, "other")) == []
    page = asked(stack, "root", limit=2)
    assert ids(page) == [anthropics, bobs]
    last = asked(stack, "root", limit=2, after=page.json()["next"])
    assert (ids(last), last.json()["next"]) == ([alices], None)
    assert asked(stack, "root", limit=3).json()["next"] is asked(stack, "lead", limit=2).json()["next"] is None
    shown = asked(stack, "lead", f"/{anthropics}").json()
    assert {name: shown[name] for name in ("api", "team", "key", "endpoint", "ended", "requests")} == {
        "api": "anthropic", "team": "blue", "key": "alice", "endpoint": "/v1/messages", "ended": False, "requests": 1
    }  # fmt: skip
    for who, one in (("lead", bobs), ("other", alices), ("root", "batch_none")):
        assert asked(stack, who, f"/{one}").status_code == 404
    assert asked(stack, "alice").status_code == 401


def test_an_admin_cancels_those_of_its_teams_and_the_log_says_who_did(stack: Stack) -> None:
    anthropics, bobs, alices = made(stack)
    assert asked(stack, "other", f"/{alices}/cancel", "POST").status_code == 404
    assert asked(stack, "lead", f"/{bobs}/cancel", "POST").status_code == 404
    assert asked(stack, "lead", "/batch_none/cancel", "POST").status_code == 404
    answer = asked(stack, "lead", f"/{alices}/cancel", "POST")
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelling")
    client = openai_client(stack)
    until(lambda: client.batches.retrieve(alices).status == "cancelled")
    assert ids(asked(stack, "root", status="cancelled")) == [alices]
    again = asked(stack, "lead", f"/{alices}/cancel", "POST")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "batch_ended")
    headers = {"authorization": "Bearer root-key"}
    line = httpx.get(stack.admin_url + "/admin/v1/audit", headers=headers).json()["changes"][0]
    assert (line["what"], line["by"], line["name"]) == ("cancel", "lead", alices)
    assert ids(asked(stack, "root")) == [anthropics, bobs, alices]


def test_without_batches_there_are_none(server: Server, tmp_path: Path) -> None:
    config = admin(server, tmp_path)
    del config["batches"]
    with Stack(({},), config) as stack:
        answer = asked(stack, "root")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_batches")
