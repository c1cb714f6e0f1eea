"""What only a bucket has: a server that goes away, parts of notes, a pair of keys. Most laws of batches hold over a
bucket and a folder alike: the other files here test both."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anthropic
import httpx
import obstore
import openai
import pytest

from gateway.bucket import RETRIES, WAITS
from gateway.config import Available, ConfigError, load
from gateway.config import Bucket as Options
from gateway.features.batches.bucket import Bucket
from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.support.standins.lender import lender
from tests.unit.app.asking import key
from tests.unit.features.batches.conftest import ALICE, anthropic_client, batching, openai_client, sections
from tests.unit.features.batches.s3 import KEY, KEY_ID, S3
from tests.unit.features.batches.test_files import upload
from tests.unit.features.batches.test_keeping import ID, ONE, aged, sweep
from tests.unit.features.batches.test_openai_batches import CHAT, begin, chat, ended, lines, results


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[S3]:
    """A server of this test alone, which it may end."""
    (tmp_path / "s3").mkdir()
    with S3(tmp_path / "s3") as s3:
        yield s3


def bucket(s3: S3, folder: Path, **more: Any) -> Bucket:
    section = s3.section(folder)["bucket"] | more
    options = Options(**{name: value for name, value in section.items() if not name.endswith("_file")})
    return Bucket(options.holding({"access_key_id": KEY_ID, "secret_access_key": KEY}))


LISTEN = {"max_body_bytes": 1 << 20, "max_bodies_bytes": 24 << 20}


def sent(stack: Stack, size: int) -> httpx.Response:
    """The answer to an upload of a file of so many bytes."""
    headers, file = {"authorization": f"Bearer {ALICE}"}, ("a.jsonl", b"x" * size)
    return httpx.post(
        stack.url + "/v1/files", headers=headers, data={"purpose": "batch"}, files={"file": file}, timeout=60
    )


def asked(stack: Stack) -> int:
    headers = {"authorization": f"Bearer {ALICE}"}
    return httpx.post(stack.url + CHAT, headers=headers, json=chat("hello"), timeout=60).status_code


def test_a_file_of_many_parts_is_as_it_was(server: Server, s3: S3, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    data = os.urandom(20_000_000)
    with Stack(({},), sections(server, tmp_path, s3)) as stack:
        made = upload(stack, data=data)
        assert openai_client(stack).files.content(made.id).read() == data
        assert [one.name for one in tmp_path.rglob("*") if one.is_file()] == [made.id]


def test_uploads_have_a_bound_in_memory(server: Server, s3: S3, tmp_path: Path) -> None:
    """Of all tenants together: as many bytes as other bodies have. A file in a folder is not in memory."""
    listen = {**LISTEN, "caller_share": 1}  # a tenant alone may have all of it
    head = f"POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ALICE}\r\ncontent-length: %d\r\n"
    head += "content-type: multipart/form-data; boundary=b\r\n\r\n"
    for stored, statuses in ((s3, {503}), (None, {200})):
        server.command("FLUSHALL")
        with Stack(({},), {**sections(server, tmp_path / f"{stored}", stored), "listen": listen}) as stack:
            address = ("127.0.0.1", int(stack.url.rsplit(":", 1)[1]))
            with contextlib.ExitStack() as opened:
                for _ in range(2):  # 10 MiB each, of 24 MiB
                    body = opened.enter_context(socket.create_connection(address))
                    body.sendall((head % (10 << 20)).encode() + b"--b\r\n")
                until(lambda: batching(stack).uploads["team blue"] == 2)
                answers = {small.status_code for small in (sent(stack, 10 << 20), sent(stack, 10 << 20))}
                assert answers == statuses
                assert sent(stack, 1000).status_code == 200
            until(lambda: not batching(stack).uploads["team blue"])
            assert sent(stack, 10 << 20).status_code == 200


def test_a_bucket_that_is_away_is_an_honest_refusal(server: Server, mine: S3, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    with Stack(({},), sections(server, tmp_path / "files", mine)) as stack:
        kept = upload(stack)
        mine.kill()
        with pytest.raises(openai.InternalServerError) as away:
            upload(stack)
        assert (away.value.status_code, away.value.code) == (503, "store_unavailable")
        with pytest.raises(openai.InternalServerError):
            openai_client(stack).files.content(kept.id)
        with pytest.raises(anthropic.APIStatusError) as theirs:
            anthropic_client(stack).messages.batches.create(**ONE)  # type: ignore[arg-type]
        assert theirs.value.status_code >= 500
        assert asked(stack) == 200
        mine.start()
        assert openai_client(stack).files.content(kept.id).read()
        assert len(openai_client(stack).files.list().data) == 1
        for secret in (KEY, KEY_ID):
            assert secret.encode() not in stack.output.getvalue()


def test_a_bucket_that_hangs_holds_up_no_request(
    server: Server, mine: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.command("FLUSHALL")
    soon = timedelta(seconds=3)
    monkeypatch.setitem(WAITS, "read_timeout", soon)
    monkeypatch.setitem(RETRIES, "retry_timeout", soon)
    with Stack(({},), sections(server, tmp_path / "files", mine)) as stack:
        mine.freeze()
        try:
            waiting = [asyncio.run_coroutine_threadsafe(hanging(stack), stack.loop) for _ in range(3)]
            assert asked(stack) == 200
            assert not any(one.done() for one in waiting)
            assert [one.result(60) for one in waiting] == [503] * 3
        finally:
            mine.thaw()
        assert upload(stack).bytes


async def hanging(stack: Stack) -> int:
    async with httpx.AsyncClient(timeout=60) as client:
        files, headers = {"file": ("a", b"{}")}, {"authorization": f"Bearer {ALICE}"}
        answer = await client.post(stack.url + "/v1/files", data={"purpose": "batch"}, files=files, headers=headers)
        return answer.status_code


@pytest.mark.long
def test_a_batch_waits_for_its_bucket(server: Server, mine: S3, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    with Stack(({"itl_ms": 10, "output_tokens": 5},), sections(server, tmp_path / "files", mine)) as stack:
        made = begin(stack, lines({f"c{n}": chat(f"say {n}") for n in range(200)}))
        until(lambda: stack.sim.ledger.completed > 20, 30)
        mine.kill()
        until(lambda: stack.events("batch left") != [], 60)
        before = stack.sim.ledger.completed
        assert before < 200
        mine.start()
        batching(stack).rests.clear()
        done = ended(stack, made, seconds=90)
        assert (done.status, done.request_counts.completed) == ("completed", 200)
        assert len(results(stack, done.output_file_id)) == 200
        (resumed,) = stack.events("batch resumed")
        assert stack.sim.ledger.completed - 200 <= resumed["repeated"]


def test_a_bucket_that_is_away_at_the_start_stops_no_gateway(server: Server, s3: S3, tmp_path: Path) -> None:
    config = sections(server, tmp_path / "files", s3)
    (tmp_path / "wrong").write_text("another")
    config["batches"]["bucket"]["secret_access_key_file"] = str(tmp_path / "wrong")
    with Stack(({},), config) as stack:
        (away,) = stack.events("bucket away")
        assert away["reason"] == "the bucket cannot be used: PermissionDeniedError"
        assert asked(stack) == 200
        with pytest.raises(openai.InternalServerError):
            upload(stack)


def test_the_environment_of_aws_changes_nothing(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_REGION"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    bucket(s3, tmp_path).check()


@pytest.mark.parametrize("kind", ["web identity", "container"])
def test_a_role_of_the_environment_is_lent_keys(
    kind: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And service and lender have a certificate that only `ca_file` knows."""
    server.command("FLUSHALL")
    (tmp_path / "s3").mkdir()
    (tmp_path / "token").write_text("who-the-pod-is")
    with (
        S3(tmp_path / "s3", tls=True) as s3,
        lender((KEY_ID, KEY), "who-the-pod-is", tmp_path / "s3" if kind == "web identity" else None) as lent,
    ):
        environment = {
            "web identity": {
                "AWS_ROLE_ARN": "arn:aws:iam::1:role/batches",
                "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
                "AWS_ENDPOINT_URL_STS": lent.url,
            },
            "container": {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{lent.url}/v1/credentials",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
            },
        }
        for name, value in environment[kind].items():
            monkeypatch.setenv(name, value)
        config = sections(server, tmp_path / "files", s3)
        section = config["batches"]["bucket"]
        config["batches"]["bucket"] = {name: section[name] for name in ("url", "name", "prefix")}
        with Stack(({},), config) as stack:  # the certificate is nobody's
            (away,) = stack.events("bucket away")
            assert away["reason"] == "the bucket cannot be used: GenericError"
        config["batches"]["bucket"]["ca_file"] = str(tmp_path / "s3" / "cert.pem")
        with Stack(({},), config) as stack:
            assert stack.events("bucket away") == []
            done = ended(stack, begin(stack, lines({"a": chat("hello")})))
            assert (done.status, done.request_counts.completed) == ("completed", 1)
            for secret in (KEY, KEY_ID, "who-the-pod-is"):
                assert secret.encode() not in stack.output.getvalue()
        role = environment[kind].get("AWS_ROLE_ARN", "")
        assert set(lent.asked) == {("who-the-pod-is", role)}


def test_a_bundle_that_is_none_is_a_fault(tmp_path: Path) -> None:
    _, keys = key("alice")
    path = tmp_path / "gateway.yaml"
    (tmp_path / "ca.pem").write_text("none")
    path.write_text(
        f"keys: {keys}\nredis: {{addresses: ['127.0.0.1:1']}}\nmodels: {{m: {{backend: vllm, workers: ['http://a:1']}}}}\n"
        "batches: {bucket: {url: 'https://a:1', name: files, ca_file: ca.pem}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(path, Available(backends={"vllm": frozenset()}, buckets=lambda: True), {})
    (fault,) = caught.value.faults
    assert str(fault).endswith(":4: batches.bucket.ca_file: names a file that holds no PEM certificates")


def test_the_sweep_takes_only_its_own_leftovers(server: Server, s3: S3, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    folder = tmp_path / "some" / "where"
    others = [aged(folder / name) for name in ("notes.txt", f"ab/file-{ID}", f"file-{ID}.txt", f"file-{ID}.lines/x")]
    others += [aged(tmp_path / f"file-{ID}"), aged(folder / f"file-{ID[::-1]}", 1)]
    own = [aged(folder / name) for name in (f"file-{ID}", f"batch_{ID}.input", f"msgbatch_{ID}.lines/12.3")]
    with Stack(({},), sections(server, tmp_path, s3)) as stack:
        until(lambda: stack.events("leftovers of batches removed") != [], 30)
        assert stack.events("leftovers of batches removed")[0]["files"] == 3
        assert [one for one in own if one.exists()] == []
        assert [one for one in others if not one.exists()] == []


def test_the_sweep_leaves_what_is_described(server: Server, s3: S3, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    with Stack(({},), sections(server, tmp_path, s3)) as stack:
        made = upload(stack)
        (place,) = tmp_path.rglob(made.id)
        aged(place)
        s3.look_again()
        sweep(stack)
        assert place.exists()


def test_notes_become_few_parts_and_are_read_in_order(s3: S3, tmp_path: Path) -> None:
    found = bucket(s3, tmp_path)
    notes: list[bytes] = []
    for lease in (2, 10):
        book = found.append_to("batch_a", lease)
        for number in range(20):
            notes.append(b"%d %d ok %b\n" % (lease, number, b"x" * 50_000))
            book.write(notes[-1])
        book.close()
    parts = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert len(parts) == 8  # of six notes each, and a last one
    assert list(found.noted("batch_a")) == notes
    found.remove(["batch_a"])
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == []


def test_a_write_that_failed_and_comes_late_changes_nothing(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = bucket(s3, tmp_path)
    book: Any = found.append_to("batch_a", 1)
    book.write(b"1 begun\n")
    late: list[tuple[str, bytes]] = []

    def fail(_: Any, place: str, text: bytes, **more: Any) -> None:
        late.append((place, text))
        raise OSError

    with monkeypatch.context() as patched:
        patched.setattr("gateway.features.batches.bucket.obstore.put", fail)
        with pytest.raises(OSError, match="the bucket cannot be used"):
            book.write(b"2 begun\n")
    book.write(b"1 ok {}\n")
    ((place, text),) = late
    obstore.put(found._store, place, text)  # the bucket itself: the write that came late
    assert list(found.noted("batch_a")) == [b"1 begun\n", b"2 begun\n", b"1 begun\n", b"1 ok {}\n"]


def test_a_file_is_lost_only_where_the_bucket_is_there(s3: S3, tmp_path: Path) -> None:
    found = bucket(s3, tmp_path / "files")
    found.check()
    assert found.lost(f"file-{ID}")
    aged(tmp_path / "files" / "some" / "where" / f"file-{ID}")
    s3.look_again()
    assert not found.lost(f"file-{ID}")
    with pytest.raises(FileNotFoundError):
        found.open("file-b")
    gone = bucket(s3, tmp_path / "files", name="never-made")
    with pytest.raises(OSError, match="the bucket cannot be used"):
        gone.lost(f"file-{ID}")


def test_the_extra_is_asked_for(tmp_path: Path) -> None:
    _, keys = key("alice")
    path = tmp_path / "gateway.yaml"
    path.write_text(
        f"keys: {keys}\nredis: {{addresses: ['127.0.0.1:1']}}\nmodels: {{m: {{backend: vllm, workers: ['http://a:1']}}}}\n"
        "batches: {bucket: {url: 'http://a:1', name: files, access_key_id_env: A, secret_access_key_env: B}}\n"
    )
    environ = {"A": "a", "B": "b"}
    known = Available(backends={"vllm": frozenset()}, buckets=lambda: False)
    with pytest.raises(ConfigError) as caught:
        load(path, known, environ)
    (fault,) = caught.value.faults
    assert str(fault).endswith(":4: batches.bucket: needs pip install 'dragoman[s3]'")
    held = load(path, Available(backends={"vllm": frozenset()}, buckets=lambda: True), environ)
    assert held.batches is not None
    assert held.batches.bucket is not None
    assert held.batches.bucket.held("secret_access_key") == "b"
    assert "'b'" not in repr(held.batches)
