"""Files and batches belong to a key, and to no other one that has or had its name."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from msgspec.structs import replace

from gateway.features.batches.state import Spec, State, StoredFile, new_id
from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.unit.app.asking import key
from tests.unit.app.test_stored_keys import change
from tests.unit.auth.stored_keys import stored as stored_key
from tests.unit.features.batches.conftest import ALICE, BOB, anthropic_client, openai_client, sections
from tests.unit.features.batches.test_anthropic_batches import requests
from tests.unit.features.batches.test_openai_batches import CHAT, begin, chat, ended, lines, results, upload

EVE, _EVE = key("bob")
EVE_IN_RED, _IN_RED = key("bob", team="red")
DATA = lines({f"c{n}": chat("hi") for n in range(42)})
HIDDEN = (openai.NotFoundError, openai.BadRequestError, anthropic.NotFoundError)


def busy(stack: Stack, by: int) -> None:
    """Its one worker is full, or has room again: lines wait, or go on."""

    def set_() -> None:
        (worker,) = stack.gateway.deployment.pools["m"].workers
        worker.in_flight += by

    stack.loop.call_soon_threadsafe(set_)


def config(server: Server, folder: Path, **more: Any) -> dict[str, Any]:
    return {**sections(server, folder), "models": {"m": {"max_in_flight": 1}}, "keys_store": "redis", **more}


def hidden(stack: Stack, key: str, file: str, mine: str, its: str) -> None:
    """Nothing of it is there for this key."""
    client, other = openai_client(stack, key), anthropic_client(stack, key).messages.batches
    calls: tuple[Callable[[], Any], ...] = (
        lambda: client.files.retrieve(file),
        lambda: client.files.content(file),
        lambda: client.files.delete(file),
        lambda: client.batches.create(input_file_id=file, endpoint="/v1/chat/completions", completion_window="24h"),
        lambda: client.batches.retrieve(mine),
        lambda: client.batches.cancel(mine),
        lambda: other.retrieve(its),
        lambda: other.cancel(its),
        lambda: other.delete(its),
        lambda: other.results(its),
    )
    for call in calls:
        with pytest.raises(HIDDEN):
            call()
    assert [list(one) for one in (client.files.list(), client.batches.list(), other.list())] == [[], [], []]


@pytest.mark.parametrize("by", ["file", "store"])
def test_a_new_key_has_nothing_of_the_one_that_had_its_name(server: Server, tmp_path: Path, by: str) -> None:
    server.command("FLUSHALL")
    name, old, new = ("bob", BOB, EVE) if by == "file" else ("app", "old-secret-of-app", "new-secret-of-app")
    with Stack(({},), config(server, tmp_path / "files")) as stack:
        busy(stack, 1)
        if by == "store":
            first = stored_key(name, old)
            version = change(stack, first)
        file = upload(stack, DATA, old)
        mine = begin(stack, DATA, key=old)
        its = anthropic_client(stack, old).messages.batches.create(requests=requests(42))
        if by == "store":
            version = change(stack, replace(first, revoked=1.0), version)
            change(stack, stored_key(name, new, team="red"), version)
        else:
            stack.sections["keys"] = {**stack.sections["keys"], **_IN_RED}
            new = EVE_IN_RED
            stack.run(stack.gateway.reload(stack.config()))
        hidden(stack, new, file, mine.id, its.id)
        busy(stack, -1)
        store = stack.gateway.deployment.features.services["batches"].store
        until(lambda: all(stack.run(store.batch(one)).state.failed == 42 for one in (mine.id, its.id)))
        assert stack.sim.ledger.completed == 0, "nothing ran on the bill of the new one"
        assert {one["team"] for one in stack.records() if one.get("batch")} == {None}


def test_a_new_key_without_a_team_has_room_of_its_own(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    with Stack(({},), sections(server, tmp_path / "files", max_files=1)) as stack:
        file = upload(stack, DATA, BOB)
        stack.sections["keys"] = {**stack.sections["keys"], **_EVE}
        stack.run(stack.gateway.reload(stack.config()))
        upload(stack, DATA, EVE)
        assert [one.id for one in openai_client(stack, EVE).files.list()] != [file]


def test_lines_do_not_follow_their_key_to_another_team(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    with Stack(({},), config(server, tmp_path / "files")) as stack:
        busy(stack, 1)
        made = begin(stack, DATA)
        moved = {**stack.sections["keys"]["alice"], "team": "red"}
        stack.sections["keys"] = {**stack.sections["keys"], "alice": moved}
        stack.run(stack.gateway.reload(stack.config()))
        busy(stack, -1)
        store = stack.gateway.deployment.features.services["batches"].store
        until(lambda: stack.run(store.batch(made.id)).state.failed == 42)
        assert stack.sim.ledger.completed == 0


def test_lines_that_wait_for_a_place_do_not_run_once_their_key_is_revoked(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    with Stack(({},), config(server, tmp_path / "files")) as stack:
        busy(stack, 1)
        key = stored_key("app", team="blue")
        version = change(stack, key)
        made = begin(stack, lines({f"c{n}": chat("hi") for n in range(160)}), key="secret-of-app")
        batching = stack.gateway.deployment.features.services["batches"]
        until(lambda: any(len(run.calls) == 16 for run, _ in batching.runs.values()))
        change(stack, replace(key, revoked=1.0), version)
        busy(stack, -1)
        done = ended(stack, made, ALICE)
        assert (done.request_counts.completed, done.request_counts.failed) == (0, 160)
        assert {one["response"]["status_code"] for one in results(stack, done.error_file_id).values()} == {401}
        assert stack.sim.ledger.completed == 0


@pytest.mark.parametrize("by", ["key", "team"])
def test_lines_that_wait_do_not_run_on_a_model_that_their_key_loses(server: Server, tmp_path: Path, by: str) -> None:
    server.command("FLUSHALL")
    models = {"m": {"max_in_flight": 1}, "other": {"backend": "vllm", "workers": ["http://127.0.0.1:9"]}}
    with Stack(({},), config(server, tmp_path / "files", models=models)) as stack:
        busy(stack, 1)
        key = stored_key("app", team="blue")
        version = change(stack, key)
        made = begin(stack, DATA, key="secret-of-app")
        batching = stack.gateway.deployment.features.services["batches"]
        until(lambda: any(len(run.calls) == 16 for run, _ in batching.runs.values()))
        if by == "key":
            change(stack, replace(key, models=("other",)), version)
        else:
            stack.sections["teams"] = {"blue": {"models": ["other"]}}
            stack.run(stack.gateway.reload(stack.config()))
        busy(stack, -1)
        done = ended(stack, made, ALICE)
        assert (done.request_counts.completed, done.request_counts.failed) == (0, 42)
        answers = [one["response"] for one in results(stack, done.error_file_id).values()]
        assert {(one["status_code"], one["body"]["error"]["code"]) for one in answers} == {(404, "model_not_found")}
        assert stack.sim.ledger.completed == 0


def test_a_line_falls_back_to_what_its_key_may_use_by_then(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    others = {name: {"backend": "vllm", "workers": ["http://127.0.0.1:9"]} for name in ("away", "other")}
    others["away"] |= {"fallback": ["m"], "fallback_on": ["unavailable"]}
    with Stack(({},), config(server, tmp_path / "files", models={"m": {"max_in_flight": 1}, **others})) as stack:
        key = stored_key("app", team="blue")
        busy(stack, 1)
        version = change(stack, key)
        made = begin(stack, lines({f"c{n}": {**chat("hi"), "model": "away"} for n in range(42)}), key="secret-of-app")
        batching = stack.gateway.deployment.features.services["batches"]
        until(lambda: any(len(run.calls) == 16 for run, _ in batching.runs.values()))
        change(stack, replace(key, models=("away",)), version)
        busy(stack, -1)
        (run, _), *_ = batching.runs.values()
        until(lambda: all(call.record.routed is None for call in run.calls))
        assert stack.sim.ledger.completed == 0
        openai_client(stack, ALICE).batches.cancel(made.id)


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_a_body_whose_key_is_revoked_meanwhile_is_not_kept(
    server: Server, tmp_path: Path, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.command("FLUSHALL")
    with Stack(({},), config(server, tmp_path / "files")) as stack:
        key = stored_key("app")
        version = change(stack, key)
        found: list[int] = []

        def body() -> Any:
            yield FORMS[dialect][1][:300]
            change(stack, replace(key, revoked=1.0), version)
            yield FORMS[dialect][1][300:]

        path, _, kind = FORMS[dialect]
        headers = {"authorization": "Bearer secret-of-app", "content-type": kind}
        found.append(httpx.post(stack.url + path, content=body(), headers=headers, timeout=30).status_code)
        assert found == [401]
        assert [one.name for one in tmp_path.rglob("*") if one.is_file()] == []
        assert server.command("KEYS", "{dragoman-batches}:*") == []


_FORM = b"--b\r\ncontent-disposition: form-data; name=%s\r\n\r\n%s\r\n"
FORMS = {
    "openai": (
        "/v1/files",
        _FORM % (b'"purpose"', b"batch") + _FORM % (b'"file"; filename="a"', DATA) + b"--b--\r\n",
        "multipart/form-data; boundary=b",
    ),
    "anthropic": (
        "/v1/messages/batches",
        b'{"requests": [{"custom_id": "a", "params": {"model": "m", "pad": "' + b"x" * 1000 + b'"}}]}',
        "application/json",
    ),
}


def test_what_an_earlier_version_kept_is_there_for_the_key_that_had_the_name(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    with Stack(({},), config(server, tmp_path / "files")) as stack:
        new = upload(stack, DATA, BOB)
        batching = stack.gateway.deployment.features.services["batches"]
        now, before = time.time(), new_id("file-")
        with batching.storage.begin(before) as file:
            file.write(DATA)
            batching.storage.keep(before, file)
        stored = StoredFile(before, "key bob", "a", "batch", len(DATA), now, now + 3600)
        stack.run(batching.store.add_file(stored, None))
        id_ = new_id("batch_")
        spec = Spec(id_, "openai", "key bob", "bob", None, None, CHAT, before, "24h", now, now + 3600, bytes=len(DATA))
        stack.run(_link(batching, before, f"{id_}.input"))
        stack.run(batching.store.add_batch(spec, State(at={"validating": now}), batching.options))
        client = openai_client(stack, BOB)
        assert [one.id for one in client.files.list()] == [before, new]
        assert [one.id for one in client.files.list(order="asc")] == [new, before]
        assert [one.id for one in client.files.list(limit=1)] == [before, new], "page by page"
        assert client.files.content(before).content == DATA
        done = ended(stack, client.batches.retrieve(id_), BOB, 60)
        assert done.request_counts.completed == 42
        assert len(results(stack, done.output_file_id, BOB)) == 42
        again = client.batches.create(input_file_id=before, endpoint="/v1/chat/completions", completion_window="24h")
        assert [one.id for one in client.batches.list()] == [again.id, id_]
        client.files.delete(before)
        # A key of the store that was made later has nothing of that.
        stack.sections["keys"] = {name: one for name, one in stack.sections["keys"].items() if name != "bob"}
        stack.run(stack.gateway.reload(stack.config()))
        change(stack, stored_key("bob", "later-secret-of-bob"))
        later = openai_client(stack, "later-secret-of-bob")
        assert (list(later.files.list()), list(later.batches.list())) == ([], [])
        with pytest.raises(openai.NotFoundError):
            later.batches.retrieve(id_)


async def _link(batching: Any, one: str, other: str) -> None:
    batching.storage.link(one, other)


def test_a_batch_of_a_client_with_a_key_in_its_path(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    with Stack(({},), sections(server, tmp_path) | {"path_keys": True}) as stack:
        place = f"{stack.url}/k/{ALICE}/v1"
        given = {"file": ("in.jsonl", lines({"a": chat("a")}))}
        file = httpx.post(f"{place}/files", files=given, data={"purpose": "batch"}, timeout=60).json()["id"]
        asked = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
        made = httpx.post(f"{place}/batches", json=asked, timeout=60).json()["id"]
        until(lambda: httpx.get(f"{place}/batches/{made}", timeout=60).json()["status"] == "completed")
        done = httpx.get(f"{place}/batches/{made}", timeout=60).json()
        content = httpx.get(f"{place}/files/{done['output_file_id']}/content", timeout=60)
        assert b'"custom_id":"a"' in content.content
        assert ALICE not in content.text + str(done) + stack.output.getvalue().decode()
        assert ALICE.encode() not in b"".join(one.read_bytes() for one in tmp_path.rglob("*") if one.is_file())
        assert ALICE not in str([(one.path, one.headers) for one in stack.sim.ledger.entries])
