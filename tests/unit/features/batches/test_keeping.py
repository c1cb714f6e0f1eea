"""What the folder loses and keeps, and what a batch does whose creation or lines are lost on the way."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import anthropic
import httpx
import openai
import pytest

from gateway.config import Batches, Redis
from gateway.core.errors import GatewayError, Kind
from gateway.features.batches.service import Batching
from gateway.features.batches.state import StoredFile, tenant_of
from tests.repo.tree import ROOT
from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.support.standins.guard import ALLOW, guard
from tests.unit.features.batches.conftest import ALICE, IN_A_FOLDER, anthropic_client, batching, openai_client, sections
from tests.unit.features.batches.test_anthropic_batches import params
from tests.unit.features.batches.test_files import on_disk
from tests.unit.features.batches.test_openai_batches import CHAT, begin, chat, ended, lines, results, upload

ID = "0" * 26 + "ab"
ONE = {"requests": [{"custom_id": "a", "params": params("x")}]}


def aged(place: Path, days: float = 3660) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch()
    then = time.time() - days * 86400
    os.utime(place, (then, then))
    return place


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    logged = []
    options = Batches(directory=str(tmp_path / "file" / "folder"))
    service = Batching(
        options,
        Redis(addresses=("127.0.0.1:1",)),
        lambda: pytest.fail("no line is called"),
        lambda *_: None,
        lambda level, event, **facts: logged.append((level, event, facts["reason"])),
    )
    with pytest.raises(NotADirectoryError):
        asyncio.run(service.start())
    ((level, event, reason),) = logged
    assert (level, event) == ("error", "folder of batches cannot be used")
    assert str(tmp_path / "file") in reason


def sweep(stack: Stack) -> None:
    batching(stack)._swept_at = None  # as if its time had come
    stack.run(batching(stack)._forget())  # its time, and not in an hour


def test_the_sweep_takes_only_its_own_leftovers(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    folder = tmp_path / "files"
    others = [
        aged(folder / name)
        for name in (
            f"file-{ID}",
            f"ab/sub/file-{ID}",
            f"cd/file-{ID}",
            f"ab/file-{ID}.txt",
            "ab/notes.txt",
            "ab/x.part",
            "deep/er/a.part",
            ".profile",
        )
    ]
    own = [
        aged(folder / name)
        for name in (
            f"ab/file-{ID}",
            f"ab/batch_{ID}.input",
            f"ab/batch_{ID}.12.lines",
            f"ab/msgbatch_{ID}.input.part",
            ".probe-1",
        )
    ]
    aged(folder / f"ab/file-{ID[::-1]}ab", 0)
    with Stack(({},), sections(server, folder)) as stack:
        until(lambda: stack.events("leftovers of batches removed") != [])
        assert [one for one in own if one.exists()] == []
        assert [one for one in others if not one.exists()] == []


def test_the_sweep_leaves_a_batch_that_runs_for_longer_than_files_are_kept(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    with Stack(({},), sections(server, tmp_path / "files", keep_s=60)) as stack:
        stack.sim.fault("stall", path=CHAT, skip=1)
        made = begin(stack, lines({"a": chat("a"), "b": chat("b")}), window="7d")
        until(lambda: stack.sim.ledger.completed == 1 and stack.sim.ledger.running == 1)
        before = on_disk(tmp_path)
        assert {one.partition(".")[2] for one in before} == {"", "input", "1.lines"}
        for one in (tmp_path / "files").rglob("*"):
            if one.is_file():
                aged(one, 6)
        sweep(stack)
        assert on_disk(tmp_path) == before
        openai_client(stack).batches.cancel(made.id)
        done = ended(stack, made)
        assert (done.status, done.request_counts.completed) == ("cancelled", 1)
        found = [*results(stack, done.output_file_id), *results(stack, done.error_file_id)]
        assert sorted(found) == ["a", "b"]


def post(stack: Stack, dialect: str, timeout: float = 10) -> httpx.Response:
    """Asks for a batch of one line."""
    if dialect == "openai":
        file = upload(stack, lines({"a": chat("a")}))
        body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
        headers = {"authorization": f"Bearer {ALICE}"}
        return httpx.post(stack.url + "/v1/batches", headers=headers, json=body, timeout=timeout)
    url = stack.url + "/anthropic/v1/messages/batches"
    return httpx.post(url, headers={"x-api-key": ALICE}, json=ONE, timeout=timeout)


def statuses(stack: Stack, dialect: str) -> list[str]:
    if dialect == "openai":
        return [one.status for one in openai_client(stack).batches.list()]
    return [one.processing_status for one in anthropic_client(stack).messages.batches.list()]


@pytest.mark.parametrize(("dialect", "away"), [("openai", "redis"), ("anthropic", "client")])
def test_a_batch_ends_whose_creation_nobody_saw(
    stack: Stack, dialect: str, away: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = batching(stack).store
    add = store.add_batch

    async def slow(*words: Any) -> None:
        await add(*words)
        if away == "redis":
            raise GatewayError(Kind.OVERLOADED, "it did not answer")
        await asyncio.sleep(1)

    monkeypatch.setattr(store, "add_batch", slow)
    if away == "client":
        with pytest.raises(httpx.ReadTimeout):
            post(stack, dialect, 0.5)
    else:
        assert post(stack, dialect).status_code >= 500
    until(lambda: statuses(stack, dialect) == ["completed" if dialect == "openai" else "ended"])
    assert stack.sim.ledger.completed == 1


@IN_A_FOLDER
def test_a_batch_whose_lines_are_gone_fails(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = batching(stack).store
    take = store.take
    monkeypatch.setattr(store, "take", lambda *_: asyncio.sleep(0))
    mine = begin(stack, lines({"a": chat("a")}))
    theirs = anthropic_client(stack).messages.batches.create(**ONE)  # type: ignore[arg-type]
    kept = begin(stack, lines({"b": chat("b")}))
    while kept.id[-2:] in (mine.id[-2:], theirs.id[-2:]):  # a folder of its own, which goes away
        kept = begin(stack, lines({"b": chat("b")}))
    place = tmp_path / "files" / kept.id[-2:]
    for one in (mine, theirs):
        (tmp_path / "files" / one.id[-2:] / f"{one.id}.input").unlink()
    place.rename(tmp_path / "away")
    monkeypatch.setattr(store, "take", take)
    failed = ended(stack, mine)
    assert (failed.status, failed.errors.data[0].code) == ("failed", "input_lost")
    batches = anthropic_client(stack).messages.batches
    until(lambda: batches.retrieve(theirs.id).processing_status == "ended")
    assert batches.retrieve(theirs.id).request_counts.errored == 1
    with pytest.raises(anthropic.AnthropicError):
        batches.results(theirs.id)
    # A volume that is not there comes back.
    until(lambda: stack.events("batch left") != [])
    (tmp_path / "away").rename(place)
    batching(stack).rests.clear()
    assert ended(stack, kept).status == "completed"


def test_a_batch_that_cannot_be_read_can_be_cancelled(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> Any:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(batching(stack).storage, "open", broken)
    made = begin(stack, lines({"a": chat("a")}))
    until(lambda: stack.events("batch left") != [])
    openai_client(stack).batches.cancel(made.id)
    batching(stack).rests.clear()
    assert ended(stack, made).status == "cancelled"
    with pytest.raises(openai.BadRequestError):
        openai_client(stack).batches.cancel(made.id)


@contextlib.contextmanager
def half(stack: Stack, count: int) -> Iterator[None]:
    """So many bodies of batches under way, until the block ends."""
    address = ("127.0.0.1", httpx.URL(stack.url).port or 0)
    head = (
        f"POST /anthropic/v1/messages/batches HTTP/1.1\r\nhost: a\r\nx-api-key: {ALICE}\r\ncontent-length: 999\r\n\r\n"
    )
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            opened.enter_context(socket.create_connection(address)).sendall(head.encode() + b'{"requests": [')
        yield


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_bodies_of_files_and_batches_are_few_at_once(stack: Stack, dialect: str, tmp_path: Path) -> None:
    with half(stack, 4):
        until(lambda: batching(stack).uploads["team blue"] == 4)
        if dialect == "openai":
            with pytest.raises(openai.RateLimitError) as many:
                upload(stack, b"{}")
            assert many.value.code == "too_many_uploads"
        else:
            assert post(stack, dialect).status_code == 429
    until(lambda: not batching(stack).uploads["team blue"] and on_disk(tmp_path) == [])
    upload(stack, b"{}")


def test_uploads_count_before_redis_is_asked(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    store = batching(stack).store
    room = store.room

    async def slow(owner: str) -> Any:
        await asyncio.sleep(1)
        return await room(owner)

    monkeypatch.setattr(store, "room", slow)

    def ask(_: int) -> str:
        try:
            return upload(stack, b"{}")[:5]
        except openai.RateLimitError as refused:
            return str(refused.code)

    with ThreadPoolExecutor(6) as threads:
        assert sorted(threads.map(ask, range(6))) == ["file-"] * 4 + ["too_many_uploads"] * 2


def held(server: Server) -> int:
    return sum(int(one) for one in server.command("HVALS", "{dragoman-batches}:bytes"))


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_requests_of_a_batch_count_until_it_ends(stack: Stack, server: Server, tmp_path: Path, dialect: str) -> None:
    stack.sim.fault("stall", path=CHAT)
    identity = post(stack, dialect).json()["id"]
    for file in openai_client(stack).files.list():
        openai_client(stack).files.delete(file.id)
    (kept,) = (tmp_path / "files").rglob("*.input")
    assert held(server) == kept.stat().st_size
    if dialect == "openai":
        openai_client(stack).batches.cancel(identity)
    else:
        anthropic_client(stack).messages.batches.cancel(identity)
    until(lambda: not [one for one in on_disk(tmp_path) if not one.startswith("file-")])
    left = [one for one in (tmp_path / "files").rglob("*") if one.is_file()]
    assert held(server) == sum(one.stat().st_size for one in left) > 0  # the results


def test_a_result_that_is_described_twice_counts_once(stack: Stack, server: Server) -> None:
    described = StoredFile(f"file-{ID}", "team blue", "a", "batch_output", 5, time.time(), time.time() + 99)
    for _ in range(2):
        stack.run(batching(stack).store.add_file(described, None))
    assert held(server) == 5


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_batches_that_have_ended_are_bounded(server: Server, tmp_path: Path, dialect: str) -> None:
    server.command("FLUSHALL")
    with Stack(({},), sections(server, tmp_path / "files", max_files=9)) as stack:
        owner = tenant_of("team blue")
        for n in range(9):
            server.command("ZADD", f"{{dragoman-batches}}:{dialect}:{owner}", 0, f"x{n}")
        answer = post(stack, dialect)
        assert answer.status_code == 429
        assert "as are kept" in answer.json()["error"]["message"]


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_the_bytes_of_running_batches_are_bounded(server: Server, tmp_path: Path, dialect: str) -> None:
    server.command("FLUSHALL")
    with Stack(({},), sections(server, tmp_path / "files", max_tenant_bytes=2000)) as stack:
        stack.sim.fault("stall", path="/v1/chat/completions")
        data = lines({"a": chat("x" * 600)})

        def create() -> httpx.Response:
            if dialect == "openai":
                body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
                return httpx.post(f"{stack.url}/v1/batches", headers={"authorization": f"Bearer {ALICE}"}, json=body)
            url = f"{stack.url}/anthropic/v1/messages/batches"
            asked = {"requests": [{"custom_id": "a", "params": params("x" * 600)}]}
            return httpx.post(url, headers={"x-api-key": ALICE}, json=asked)

        file = upload(stack, data)  # its bytes count, and those of each batch of it
        answers = [create() for _ in range(4)]
        assert [one.status_code for one in answers] == [200, 429, 429, 429]
        assert "bytes" in answers[-1].json()["error"]["message"]
        assert held(server) <= 2000
        assert [name.endswith(".input") for name in on_disk(tmp_path)].count(True) == 1, "the others left nothing"


def test_a_batch_too_many_is_refused_before_its_body(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    with Stack(({},), sections(server, tmp_path / "files", max_batches=1)) as stack:
        stack.sim.fault("stall", path="/v1/chat/completions")
        assert post(stack, "anthropic").status_code == 200
        address = ("127.0.0.1", httpx.URL(stack.url).port or 0)
        head = f"POST /v1/messages/batches HTTP/1.1\r\nhost: a\r\nx-api-key: {ALICE}\r\ncontent-length: 999\r\n\r\n"
        with socket.create_connection(address, timeout=5) as opened:
            opened.sendall(head.encode())
            assert opened.recv(100).startswith(b"HTTP/1.1 429 ")


def test_limits_count_calls_of_files(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    config = sections(server, tmp_path)
    config["limits"] = [{"name": "few", "kind": "requests", "limit": 3, "per_s": 3600, "scope": ["key"]}]
    with Stack(({},), config) as stack:
        for _ in range(3):
            openai_client(stack).files.list()
        with pytest.raises(openai.RateLimitError):
            openai_client(stack).files.list()


def test_the_rights_that_the_page_names_are_enough(server: Server, tmp_path: Path) -> None:
    """And without them the log names what is missing."""
    server.command("FLUSHALL")
    pages = [(ROOT / "docs" / page).read_text() for page in ("limits.md", "batches.md")]
    limits = re.search(r"ACL SETUSER limits on >PASSWORD ([^`]*?)\n```", pages[0])
    own = re.search(r"`(~{dragoman-batches}[^`]*)`", pages[1])
    assert limits is not None
    assert own is not None
    server.command("ACL", "SETUSER", "batching", "on", ">secret", *limits[1].split())
    (tmp_path / "password").write_text("secret")
    config = sections(server, tmp_path / "files")
    config["redis"] |= {"username": "batching", "password_file": str(tmp_path / "password")}
    try:
        with Stack(({},), config) as stack:
            until(lambda: bool(stack.events("the store of batches is away")))
            assert stack.events("the store of batches is away")[0]["reason"] == "NoPermissionError"
            server.command("ACL", "SETUSER", "batching", *own[1].split())
            until(lambda: bool(stack.events("the store of batches is back")))
            server.command("ACL", "LOG", "RESET")
            done = ended(stack, begin(stack, lines({"a": chat("hello")})))
            client = openai_client(stack, ALICE)
            assert [one.id for one in client.batches.list()] == [done.id]
            assert len(list(client.files.list(order="asc"))) == 2
            client.files.delete(done.input_file_id)
            batches = anthropic_client(stack, ALICE).messages.batches
            made = batches.create(requests=[{"custom_id": "a", "params": cast("Any", params("x"))}])
            batches.cancel(made.id)
            until(lambda: batches.retrieve(made.id).processing_status == "ended")
            batches.delete(made.id)
            sweep(stack)
            assert server.command("ACL", "LOG") == []
    finally:
        server.command("ACL", "DELUSER", "batching")


@pytest.mark.long
def test_lines_wait_for_a_guard_that_is_away(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    with guard() as service:
        config = sections(server, tmp_path)
        config["guards"] = {"g": {"url": service.url}}
        service.decide = lambda _: (503, b"")
        with Stack(({},), config) as stack:
            made = begin(stack, lines({"a": chat("a")}))
            until(lambda: len(service.asked) > 0)
            service.decide = lambda _: ALLOW
            assert ended(stack, made).request_counts.completed == 1
            assert stack.sim.ledger.completed == 1


def test_a_batch_whose_file_is_looked_through_can_be_cancelled(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is looked at slice by slice, and no slice follows the end of the batch."""

    def endless(*_: Any) -> Iterator[tuple[int, list[Any]]]:
        while True:
            yield 0, []

    monkeypatch.setattr("gateway.features.batches.run.checked", endless)
    made = begin(stack, lines({"a": chat("a")}))
    client = openai_client(stack)
    client.batches.cancel(made.id)
    until(lambda: client.batches.retrieve(made.id).status == "cancelled")
