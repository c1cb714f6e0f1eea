"""OpenAI's files by its own client, and what a client can do wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.unit.features.batches.conftest import ALICE, BOB, batching, sections
from tests.unit.features.batches.conftest import openai_client as client
from tests.unit.features.batches.s3 import S3

LINES = b'{"custom_id": "a"}\n{"custom_id": "b"}\n'


def upload(stack: Stack, key: str = ALICE, data: bytes = LINES, **more: Any) -> Any:
    return client(stack, key).files.create(file=("lines.jsonl", data), purpose="batch", **more)


def on_disk(tmp_path: Path) -> list[str]:
    """Names of files; what goes meanwhile (rclone writes to a file of its own first) is left out."""
    return sorted(name for _, _, names in os.walk(tmp_path / "files") for name in names)


def test_a_file_is_kept_and_deleted(stack: Stack, tmp_path: Path) -> None:
    files = client(stack, prefix="/openai/v1").files
    made = files.create(file=("lines.jsonl", LINES), purpose="batch")
    assert (made.filename, made.bytes, made.purpose, made.status) == ("lines.jsonl", len(LINES), "batch", "processed")
    assert made.expires_at == pytest.approx(made.created_at + 30 * 86400, abs=1)
    assert files.retrieve(made.id) == made
    assert files.content(made.id).read() == LINES
    assert on_disk(tmp_path) == [made.id]
    assert files.delete(made.id).deleted
    assert on_disk(tmp_path) == []
    with pytest.raises(openai.NotFoundError):
        files.retrieve(made.id)
    names = [record["operation"] for record in stack.records()]
    assert names == ["upload", "file", "content", "delete_file", "file"]


def test_a_large_file_is_as_it_was(stack: Stack) -> None:
    data = b"".join(b'{"custom_id": "%06d", "body": "\\u0000 \xc3\xa9"}\n' % n for n in range(60_000))
    made = upload(stack, data=data)
    assert client(stack).files.content(made.id).read() == data


def test_a_client_may_leave_on_the_last_byte(stack: Stack) -> None:
    made = upload(stack)
    for _ in range(20):
        with httpx.Client(headers={"authorization": f"Bearer {ALICE}"}) as alice:
            assert alice.get(f"{stack.url}/v1/files/{made.id}/content").content == LINES
    assert [record["outcome"] for record in stack.records()] == ["ok"] * 21


def test_an_empty_file_has_an_end(stack: Stack) -> None:
    made = upload(stack, data=b"")
    assert client(stack).files.content(made.id).read() == b""


def test_a_list_has_pages_and_no_other_tenants_files(stack: Stack) -> None:
    mine = [upload(stack).id for _ in range(5)]
    theirs = upload(stack, BOB).id
    files = client(stack).files
    assert [one.id for one in files.list(limit=2)] == mine[::-1]
    assert [one.id for one in files.list(limit=2, order="asc")] == mine
    assert files.list(purpose="batch_output").data == []
    assert [one.id for one in client(stack, BOB).files.list()] == [theirs]
    for ask in (files.retrieve, files.content, files.delete):
        with pytest.raises(openai.NotFoundError):
            ask(theirs)


def test_a_file_is_forgotten_when_its_time_is_over(stack: Stack, server: Server, tmp_path: Path) -> None:
    made = upload(stack, expires_after={"anchor": "created_at", "seconds": 3600})
    assert made.expires_at - made.created_at == pytest.approx(3600, abs=1)
    server.command("ZADD", "{dragoman-batches}:ends", 1, "file " + made.id)
    until(lambda: on_disk(tmp_path) == [])
    assert client(stack).files.list().data == []
    assert server.command("HLEN", "{dragoman-batches}:bytes") == 0


@pytest.mark.parametrize("path", ["../../etc/passwd", "file-", "file-0", "batch_" + "0" * 28 + "0"])
def test_an_id_is_never_a_path(stack: Stack, path: str) -> None:
    headers = {"authorization": f"Bearer {ALICE}"}
    answer = httpx.get(f"{stack.url}/v1/files/{path.replace('/', '%2F')}/content", headers=headers)
    assert answer.status_code == 404


FORM = {"purpose": "batch"}


@pytest.mark.parametrize(
    ("data", "files", "status", "param"),
    [
        ({"purpose": "fine-tune"}, {"file": ("a", LINES)}, 400, "purpose"),
        ({}, {"file": ("a", LINES)}, 400, "purpose"),
        (FORM, {"other": ("a", LINES)}, 400, "file"),
        (FORM | {"expires_after[seconds]": "1"}, {"file": ("a", LINES)}, 400, "expires_after"),
    ],
)
def test_a_wrong_form_is_refused(
    stack: Stack, tmp_path: Path, data: dict[str, str], files: Any, status: int, param: str
) -> None:
    answer = httpx.post(stack.url + "/v1/files", headers={"authorization": f"Bearer {ALICE}"}, data=data, files=files)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    assert on_disk(tmp_path) == []


def test_what_is_no_form_is_refused(stack: Stack, tmp_path: Path) -> None:
    headers = {"authorization": f"Bearer {ALICE}"}
    assert httpx.post(stack.url + "/v1/files", headers=headers, json={}).status_code == 415
    cut = {**headers, "content-type": "multipart/form-data; boundary=x"}
    broken = httpx.post(stack.url + "/v1/files", headers=cut, content=b"--x\r\nContent-Disposition: form-data")
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_multipart")
    assert httpx.post(stack.url + "/v1/files", json={}).status_code == 401
    assert on_disk(tmp_path) == []


def test_a_tenant_has_bounds(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    options: dict[str, Any] = {"max_file_bytes": 2048, "max_files": 2, "max_tenant_bytes": 3000}
    with Stack(({},), sections(server, tmp_path / "files", **options)) as stack:
        with pytest.raises(openai.APIStatusError) as large:
            upload(stack, data=b"x" * 300_000)
        assert large.value.status_code == 413
        with pytest.raises(openai.APIStatusError) as larger:
            upload(stack, data=b"x" * 2049)
        assert larger.value.status_code == 413, "the rest of the form is not counted, and the file is"
        upload(stack, data=b"x" * 2000)
        with pytest.raises(openai.RateLimitError) as full:
            upload(stack, data=b"x" * 2000)
        assert full.value.code == "too_many_bytes"
        upload(stack, data=b"x")
        with pytest.raises(openai.RateLimitError) as many:
            upload(stack, data=b"x")
        assert many.value.code == "too_many_files"
        upload(stack, BOB)
        assert len(on_disk(tmp_path)) == 3


def test_a_client_that_leaves_leaves_nothing(stack: Stack, tmp_path: Path, stored: S3 | None) -> None:
    def half() -> Any:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 20_000_000
        if stored is None:
            until(lambda: any(name.endswith(".part") for name in on_disk(tmp_path)))
        until(lambda: any(batching(stack).uploads.values()))  # else nothing was begun
        raise RuntimeError("gone")

    headers = {"authorization": f"Bearer {ALICE}", "content-type": "multipart/form-data; boundary=x"}
    with pytest.raises(RuntimeError, match="gone"):
        httpx.post(stack.url + "/v1/files", headers=headers, content=half())
    until(lambda: on_disk(tmp_path) == [])
    assert stack.record()["outcome"] == "cancelled"


def test_without_redis_calls_are_refused_in_the_callers_words(server: Server, tmp_path: Path) -> None:
    """It takes ten seconds, the time that a call of the store has (`Redis.call_s`)."""
    with Stack(({},), sections(server, tmp_path / "files")) as stack:
        made = upload(stack)
        server.freeze()
        try:
            with pytest.raises(openai.InternalServerError) as away:
                client(stack).files.retrieve(made.id)
            assert (away.value.status_code, away.value.code) == (503, "store_unavailable")
        finally:
            server.thaw()
        assert client(stack).files.retrieve(made.id).id == made.id


@pytest.mark.long
def test_nothing_is_imported_where_batches_are_off() -> None:
    code = (
        "import sys; from gateway.app.routes import route_table; from gateway.config import Config;"
        "route_table(Config()); print('gateway.features.batches.service' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
