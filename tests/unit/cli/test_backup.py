"""`dragoman backup` and `dragoman restore`: all that gateways keep comes back, or nothing is touched."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import yaml

from gateway.app.key_kinds import key_kinds
from gateway.cli import backup
from tests.repo.tree import ROOT
from tests.support.commands import called
from tests.support.harness import Stack, soon, until
from tests.support.ports import free_port
from tests.support.redis_server import Server
from tests.unit.features.admin.calling import CHAT, Caller, config, status

pytestmark = [pytest.mark.feature(one) for one in ("batches", "end_users", "limits", "pricing", "stored", "uploads")]

OWN = {"authorization": "Bearer configured"}
STRANGERS = {b"other:stored:a:b": b"1", b"{dragoman.x:0}:few": b"2", b"{dragoman-workers}": b"3", b"session": b"4"}
"""Keys that are another deployment's, or that workers write."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redis"), "--appendonly", "yes") as server:
        yield server


def sections(server: Server, folder: Path) -> dict[str, Any]:
    return config(
        server,
        models={"m": {"price": {"request": 1}}},
        spend={"currency": "EUR", "daily": True},
        budgets=[{"name": "month", "amount": 100}],
        limits=[{"name": "few", "kind": "requests", "limit": 50, "per_s": 3600}],
        store={"where": "redis"},
        accounting={"redis_stream": "usage"},
        batches={"directory": str(folder)},
    )


def contents(server: Server) -> dict[bytes, bytes]:
    """What outlives gateways."""
    gone = [one.pattern("dragoman").encode() for one in key_kinds() if not one.saved]
    keys = [key for key in server.command("KEYS", "*") if not any(re.fullmatch(one, key) for one in gone)]
    return {key: server.command("DUMP", key) for key in keys}


def ask(stack: Stack, path: str, body: object) -> Any:
    answer = httpx.post(stack.url + path, json=body, headers=OWN, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def batch(stack: Stack) -> Any:
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}) + "\n"
    files = {"file": ("lines.jsonl", line), "purpose": (None, "batch")}
    made = httpx.post(stack.url + "/v1/files", files=files, headers=OWN, timeout=60)
    asked = {"input_file_id": made.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    id_ = ask(stack, "/v1/batches", asked)["id"]

    def ended() -> Any:
        found = httpx.get(f"{stack.url}/v1/batches/{id_}", headers=OWN, timeout=60).json()
        return found if found["status"] == "completed" else None

    until(lambda: ended() is not None)
    return ended()


def output(stack: Stack, of: Mapping[str, Any]) -> bytes:
    return httpx.get(f"{stack.url}/v1/files/{of['output_file_id']}/content", headers=OWN, timeout=60).content


def written(stack: Stack, folder: Path) -> str:
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump(json.loads(stack.config().model_dump_json(exclude_defaults=True))))
    return str(file)


def test_all_that_gateways_keep_comes_back(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    folder, saved = tmp_path / "files", tmp_path / "monday.tgz"
    with Stack(({},), sections(server, folder)) as stack:
        admin = Caller(stack, "root-key")
        kept, revoked = admin.made("kept", team="blue"), admin.made("revoked")
        assert admin("POST", "/keys/revoked/revoke").status_code == 200
        bound = admin.made("bound", team="red")
        assert admin("POST", "/teams", {"name": "red", "disabled": True}).status_code == 201
        first = ask(stack, "/v1/responses", {"model": "m", "input": "hi"})
        done = batch(stack)
        lines = output(stack, done)
        file = written(stack, tmp_path)
        # It works while the gateway runs.
        while_running = called("backup", str(saved), "--config", file)
        assert while_running.returncode == 0, while_running.stderr
        refused = called("restore", str(saved), "--config", file)
        assert (refused.returncode, "one runs, or ran" in refused.stderr) == (2, True)
    again = called("backup", str(saved), "--config", file)
    assert (again.returncode, "is replaced" in again.stderr) == (2, True)
    again = called("backup", str(saved), "--config", file, "--yes")
    assert again.returncode == 0, again.stderr
    assert again.stdout.endswith(" entries of Redis, 2 files of batches\n")
    assert saved.stat().st_mode & 0o777 == 0o600
    assert sorted(one.name for one in tmp_path.iterdir()) == ["files", "gateway.yaml", "monday.tgz"]

    before = contents(server)
    times = {place.relative_to(folder): int(place.stat().st_mtime) for place in folder.glob("??/*")}
    shutil.rmtree(folder)
    server.command("FLUSHALL")
    # What came since is dropped, and what is not the gateways' stays.
    server.command("SET", "dragoman:stored:since:then", "text")
    for key, value in STRANGERS.items():
        server.command("SET", key, value)
    refused = called("restore", str(saved), "--config", file)
    assert refused.returncode == 2
    assert "1 entries of Redis are dropped" in refused.stderr
    assert "one runs" not in refused.stderr
    assert contents(server).keys() == {b"dragoman:stored:since:then", *STRANGERS}
    found = called("restore", str(saved), "--config", file, "--yes")
    assert found.returncode == 0, found.stderr

    after = contents(server)
    assert after.pop(b"{dragoman-keys}:audit") != before.pop(b"{dragoman-keys}:audit", b"")
    assert {key: after.pop(key) for key in STRANGERS}.keys() == STRANGERS.keys()
    assert after == before
    assert {one.relative_to(folder): int(one.stat().st_mtime) for one in folder.glob("??/*")} == times
    with Stack(({},), sections(server, folder)) as stack:
        assert (status(stack, kept), status(stack, revoked), status(stack, bound)) == (200, 401, 401)
        next_ = {"model": "m", "input": "go on", "previous_response_id": first["id"]}
        assert ask(stack, "/v1/responses", next_)["previous_response_id"] == first["id"]
        assert output(stack, done) == lines
        shown = called("limits", "show", "--config", file, "--key", "own").stdout
        # A request of before, one of the batch, and the one above.
        assert {line.split()[0]: line for line in shown.splitlines()}["month"].split()[3] == "3"
        record = Caller(stack, "root-key")("GET", "/audit").json()["changes"]
        assert [one["what"] for one in record[:2]] == ["restore", "create team"]


def all_on(server: Server, folder: Path) -> dict[str, Any]:
    """What makes a gateway write to Redis: each section, and each kind of limit."""
    kinds = ("requests", "tokens", "audio_seconds")
    return {
        **sections(server, folder),
        "limits": [
            *({"name": one, "kind": one, "limit": 10**6, "per_s": 3600} for one in kinds),
            {"name": "running", "kind": "concurrency", "limit": 9},
        ],
        "end_users": {},
        "reply_cache": {"store": "redis"},
        "console": {"enabled": True, "key_env": "CONSOLE_KEY"},
    }


@pytest.mark.feature("console")
@pytest.mark.feature("reply_cache")
def test_gateways_write_no_key_of_an_unknown_kind(server: Server, tmp_path: Path) -> None:
    """Redis reports each key that is written, also one that is gone soon. The code that makes keys of a new kind
    declares it (`KEY_KINDS`), and so says whether a backup holds them."""
    server.command("FLUSHALL")
    server.command("CONFIG", "SET", "notify-keyspace-events", "EA")
    keys: set[bytes] = set()
    with redis.Redis(port=server.port) as client, client.pubsub(ignore_subscribe_messages=True) as events:
        events.psubscribe("__keyevent@0__:*")
        assert events.get_message(timeout=30) is None  # it has begun
        with Stack(({},), all_on(server, tmp_path / "files"), environ={"CONSOLE_KEY": "k" * 32}) as stack:
            root = Caller(stack, "root-key")
            root("POST", "/keys", {"name": "made"}, headers={"idempotency-key": "once"})
            root("POST", "/teams", {"name": "blue"})
            for what in ("drain", "undrain"):
                address = stack.sim.url.replace("/", "%2F")
                assert root("POST", f"/workers/{address}/{what}").status_code == 200
            ask(stack, "/v1/responses", {"model": "m", "input": "hi", "user": "someone", "temperature": 0})
            batch(stack)
            line = {"custom_id": "a", "params": {**CHAT, "max_tokens": 9}}
            ask(stack, "/v1/messages/batches", {"requests": [line]})
            file = written(stack, tmp_path)
            assert called("limits", "reset", "--config", file, "--key", "own", "--yes").returncode == 0
        server.command("SET", "end", "")
        while (event := events.get_message(timeout=30)) is None or event["data"] != b"end":
            keys |= {event["data"]} if event is not None else set()
    kinds = {kind: re.compile(kind.pattern("dragoman", STREAM="usage").encode()) for kind in key_kinds()}
    found = {key: [kind for kind, pattern in kinds.items() if pattern.fullmatch(key)][:1] for key in keys}
    assert [key for key, of in found.items() if not of] == []
    assert kinds.keys() - {kind for of in found.values() for kind in of} == set()


def repacked(file: Path, **changed: bytes) -> bytes:
    """A backup with other members of these names."""
    out = io.BytesIO()
    with tarfile.open(file) as old, tarfile.open(fileobj=out, mode="w:gz") as new:
        names = {**{one.name: old.extractfile(one).read() for one in old}, **changed}  # type: ignore[union-attr]
        for name, content in names.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    return out.getvalue()


def head(**changed: Any) -> dict[str, bytes]:
    of = {"format": 1, "version": "9.9", "namespace": "dragoman", "made": 0.0, **changed}
    return {"dragoman-backup.json": json.dumps(of).encode()}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda file: file.read_bytes()[:40], "cannot be restored"),
        (lambda file: file.read_bytes()[:-4], "cannot be restored"),
        (lambda file: gzip.compress(gzip.decompress(file.read_bytes())[:1536]), "cannot be restored"),
        (lambda _: b"something else", "cannot be restored"),
        (lambda _: gzip.compress(b""), "cannot be restored"),
        (lambda file: repacked(file, **head(format=2)), "from Dragoman 9.9, which this version cannot read"),
        (lambda file: repacked(file, **head(namespace="x")), "of redis.namespace x"),
        (lambda file: repacked(file, **{"redis/0": b"\x91\x01"}), "cannot be restored"),
        (lambda file: repacked(file, **{"files/../../passwd": b""}), "not of a backup"),
        (lambda file: repacked(file, **{"files/aa/file-" + "a" * 28: b""}), "no batches.directory"),
    ],
    ids=["head", "cut", "half", "other", "empty", "format", "namespace", "entry", "outside", "no folder"],
)
def test_a_file_that_does_not_fit_changes_nothing(
    server: Server, tmp_path: Path, change: Any, said: str, request: pytest.FixtureRequest
) -> None:
    server.command("FLUSHALL")
    server.command("SET", "dragoman:stored:a:b", "text")
    file, saved = tmp_path / "gateway.yaml", tmp_path / "saved.tgz"
    batches = {} if "no folder" in request.node.name else {"batches": {"directory": str(tmp_path / "files")}}
    worker = {"backend": "vllm", "workers": ["http://127.0.0.1:1"]}
    file.write_text(json.dumps({"redis": {"addresses": [server.address]}, "models": {"m": worker}, **batches}))
    (tmp_path / "files").mkdir()
    assert called("backup", str(saved), "--config", str(file)).returncode == 0
    saved.write_bytes(change(saved))
    server.command("SET", "dragoman:stored:c:d", "later")
    before = contents(server)
    found = called("restore", str(saved), "--config", str(file), "--yes")
    assert (found.returncode, said in found.stderr) == (1, True), found.stderr
    assert contents(server) == before
    assert list((tmp_path / "files").iterdir()) == []


@pytest.mark.parametrize("unread", ["files", "files/aa", "files/aa/file-1", "files/aa/file-1 later"])
def test_files_that_cannot_be_read_are_named(
    server: Server, tmp_path: Path, unread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, saved, folder = tmp_path / "gateway.yaml", tmp_path / "saved.tgz", tmp_path / "files"
    (folder / "aa").mkdir(parents=True)
    (folder / "aa" / "file-1").write_text("text")
    worker = {"backend": "vllm", "workers": ["http://127.0.0.1:1"]}
    sections = {"redis": {"addresses": [server.address]}, "batches": {"directory": str(folder)}}
    file.write_text(json.dumps({**sections, "models": {"m": worker}}))
    place, real = tmp_path / unread.removesuffix(" later"), os.listdir

    def listed(path: Any) -> list[str]:
        if path == place:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    class Broken(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    def opened(path: Any, mode: str) -> Any:
        return Broken(path) if path == place else open(path, mode)

    if unread == "files":
        shutil.rmtree(folder)
    elif unread == "files/aa":  # a test that runs as root may read all
        monkeypatch.setattr(os, "listdir", listed)
    elif unread == "files/aa/file-1":
        place.unlink()
        place.mkdir()
    else:
        monkeypatch.setattr("gateway.cli.backup.open", opened, raising=False)
    found = called("backup", str(saved), "--config", str(file))
    assert (found.returncode, found.stdout) == (1, "")
    assert f"dragoman: {place} cannot be read: " in found.stderr
    assert sorted(one.name for one in tmp_path.glob("saved*")) == []


def test_entries_whose_time_is_over_stay_away_and_others_keep_theirs(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    server.command("SET", "dragoman:stored:a:short", "text", "PX", 1)
    server.command("SET", "dragoman:stored:a:long", "text", "PX", 3_600_000)
    file, saved = tmp_path / "gateway.yaml", tmp_path / "saved.tgz"
    worker = {"backend": "vllm", "workers": ["http://127.0.0.1:1"]}
    file.write_text(json.dumps({"redis": {"addresses": [server.address]}, "models": {"m": worker}}))
    assert called("backup", str(saved), "--config", str(file)).returncode == 0
    server.command("FLUSHALL")
    assert called("restore", str(saved), "--config", str(file)).returncode == 0
    until(lambda: server.command("KEYS", "*") == [b"dragoman:stored:a:long"])
    assert 3_000_000 < server.command("PTTL", "dragoman:stored:a:long") <= 3_600_000


def test_a_restore_that_cannot_be_recorded_changes_nothing(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    server.command("SET", "dragoman:stored:a:b", "text")
    rights = ("~*", "+@all", "-xadd")
    server.command("ACL", "SETUSER", "mute", "on", ">word", *rights)
    file, saved, word = tmp_path / "gateway.yaml", tmp_path / "saved.tgz", tmp_path / "word"
    word.write_text("word")
    redis = {"addresses": [server.address], "username": "mute", "password_file": str(word)}
    worker = {"backend": "vllm", "workers": ["http://127.0.0.1:1"]}
    file.write_text(json.dumps({"redis": redis, "keys_store": "redis", "models": {"m": worker}}))
    assert called("backup", str(saved), "--config", str(file)).returncode == 0
    server.command("SET", "dragoman:stored:c:d", "later")
    before = contents(server)
    found = called("restore", str(saved), "--config", str(file), "--yes")
    assert (found.returncode, "nothing was changed: the audit record" in found.stderr) == (1, True), found.stderr
    assert contents(server) == before


async def test_in_a_cluster_the_rights_of_the_page_are_enough(tmp_path: Path) -> None:
    pages = [(ROOT / "docs" / page).read_text() for page in ("backup.md", "limits.md")]
    rights = re.search(r"ACL SETUSER backup on >PASSWORD ([^`]*?)\n```", pages[0])
    further = re.search(r"cluster also\s+needs `([^`]*)`", pages[1])
    assert rights is not None
    assert further is not None
    options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with Server(tmp_path, *options) as cluster:
        cluster.command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        await soon(lambda: b"cluster_state:ok" in cluster.command("CLUSTER", "INFO"))
        cluster.command("ACL", "SETUSER", "backup", "on", ">secret", *rights[1].split(), *further[1].split())
        (tmp_path / "password").write_text("secret")
        login = {"mode": "cluster", "username": "backup", "password_file": str(tmp_path / "password")}
        names = [b"dragoman:stored:a:b", b"dragoman:stored:a:c", b"{dragoman-keys}"]
        async with backup.Server(cluster.settings.model_copy(update=login)) as found:
            for name in names:
                cluster.command("SET", name, "text")
            entries = await found.read([key async for page in found.saved() for key in page])
            await found.drop(names)
            assert cluster.command("KEYS", "*") == []
            await found.write(entries)
            assert sorted(cluster.command("KEYS", "*")) == names
        assert cluster.command("ACL", "LOG") == []


@pytest.mark.parametrize("verb", ["backup", "restore"])
def test_commands_say_what_is_missing(tmp_path: Path, verb: str) -> None:
    file, saved = tmp_path / "gateway.yaml", tmp_path / "saved.tgz"
    models = {"m": {"backend": "vllm", "workers": ["http://127.0.0.1:1"]}}
    file.write_text(json.dumps({"models": models}))
    found = called(verb, str(saved), "--config", str(file))
    assert (found.returncode, "without a section redis" in found.stderr) == (2, True)
    assert not saved.exists()


@pytest.mark.parametrize(
    "redis",
    [
        {"addresses": ["127.0.0.1:1"]},
        {"addresses": ["127.0.0.1:1"], "mode": "sentinel"},
        {"addresses": ["127.0.0.1:1"], "mode": "cluster"},
        {"addresses": ["localhost.invalid:1"]},
        {"tls": True},
        {"mode": "cluster"},
        {"mode": "sentinel"},
        {"username": "nobody", "password_file": "word"},
    ],
    ids=lambda redis: "-".join(map(str, redis.values())),
)
def test_a_server_that_does_not_answer_is_one_line(server: Server, tmp_path: Path, redis: dict[str, Any]) -> None:
    file, saved = tmp_path / "gateway.yaml", tmp_path / "saved.tgz"
    (tmp_path / "word").write_text("word")
    models = {"m": {"backend": "vllm", "workers": ["http://127.0.0.1:1"]}}
    file.write_text(json.dumps({"models": models, "redis": {"addresses": [server.address], **redis}}))
    found = called("backup", str(saved), "--config", str(file))
    assert (found.returncode, found.stderr.count("\n"), "redis: " in found.stderr) == (1, 1, True), found.stderr
    assert not saved.exists()
