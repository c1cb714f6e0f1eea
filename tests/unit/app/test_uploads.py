"""Uploads: refused before they are read, counted once, kept in files that are gone afterwards, and let go."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
import pytest

from gateway.config import Listen
from gateway.core.errors import GatewayError
from gateway.wire import multipart
from tests.support.harness import Stack, until
from tests.unit.app.hearing import ASKED, LARGE, SPEECH, files, gateway, send, told
from tests.unit.app.media import TRANSCRIBE, TYPE, Asked, Worker, begin, scripted, sound, text
from tests.unit.dialects.asking import keyed


def begun(stack: Stack, size: int, key: str = "none", sent: bytes = b"") -> socket.socket:
    """A connection on which an upload of `size` bytes is announced and `sent` is there."""
    host, port = stack.url.removeprefix("http://").split(":")
    line = socket.create_connection((host, int(port)), timeout=20)
    head = f"POST {TRANSCRIBE} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: {size}\r\n"
    line.sendall(head.encode() + f"content-type: {TYPE['content-type']}\r\n\r\n".encode() + sent)
    return line


def status_of(line: socket.socket) -> int:
    return int(line.makefile("rb").readline().split()[1])


def test_callers_are_refused_before_their_upload_is_read() -> None:
    key, keys = keyed(limits={"requests": 1})
    with scripted(text) as worker, gateway(worker, more=keys) as stack:
        with begun(stack, 1 << 20, "nobody") as line:
            assert status_of(line) == 401
        assert send(stack, sound(), authorization=f"Bearer {key}").status_code == 200
        with begun(stack, 1 << 20, key) as line:
            assert status_of(line) == 429
        assert len(worker.asked) == 1


def test_uploads_count_once() -> None:
    key, keys = keyed(limits={"requests": 3})
    with scripted(text) as worker, gateway(worker, more=keys) as stack:
        statuses = [send(stack, sound(), authorization=f"Bearer {key}").status_code for _ in range(4)]
        assert statuses == [200, 200, 200, 429]


def held(stack: Stack) -> int:
    return stack.gateway.deployment.runtime.budgets.uploads.reserved


def test_nothing_is_left_of_an_upload(hearing: tuple[Stack, Worker]) -> None:
    stack, _ = hearing
    for body in (sound(LARGE), sound(LARGE, model="nobody"), sound(LARGE)[:-5], sound(LARGE, stream="perhaps")):
        send(stack, body)
    until(lambda: held(stack) == 0 and files() == [])


def test_all_uploads_together_are_bounded() -> None:
    with scripted(text) as worker, gateway(worker, more={"listen": {"max_uploads_bytes": 3 << 20}}) as stack:
        waiting = begun(stack, 2 << 20)
        until(lambda: held(stack) == 2 << 20)
        assert told(send(stack, sound(LARGE))) == (503, "no_room_for_body")
        assert send(stack, sound()).status_code == 200, "small ones are not counted"
        waiting.close()
        until(lambda: held(stack) == 0)
        assert send(stack, sound(LARGE)).status_code == 200


def test_a_slow_upload_is_ended() -> None:
    listen = Listen(body_timeout_s=0.5)
    with scripted(text) as worker, gateway(worker, listen=listen) as stack, begun(stack, 1 << 20, sent=sound()) as line:
        assert status_of(line) == 408
        until(lambda: held(stack) == 0)
        assert worker.asked == []


def test_a_full_disk_is_told(hearing: tuple[Stack, Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    stack, _ = hearing

    def full(**_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert told(send(stack, sound(LARGE))) == (503, "no_room_for_upload")
    until(lambda: held(stack) == 0)


def test_a_file_that_is_lost_is_no_success(hearing: tuple[Stack, Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    stack, _ = hearing
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    got = send(stack, sound(LARGE))
    assert (got.status_code, got.json()["error"]["code"]) == (500, "upload_lost")


def test_a_client_that_leaves_while_it_uploads_is_let_go(hearing: tuple[Stack, Worker]) -> None:
    stack, worker = hearing
    before = len(worker.asked)
    line = begun(stack, 2 << 20, sent=sound(LARGE)[: 1 << 20])
    until(lambda: held(stack) > 0)
    line.close()
    until(lambda: held(stack) == 0 and files() == [])
    assert (stack.record()["outcome"], len(worker.asked)) == ("cancelled", before)


@pytest.mark.parametrize("path", [TRANSCRIBE, SPEECH])
def test_a_client_that_leaves_ends_the_workers_work(path: str) -> None:
    def script(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
        if path == SPEECH:
            begin(handler, "audio/wav", b"RIFF")
        worker.hold(handler)

    with scripted(script) as worker, gateway(worker) as stack:
        content = sound(LARGE) if path == TRANSCRIBE else json.dumps(ASKED).encode()
        kind = TYPE if path == TRANSCRIBE else {}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(stack.url + path, content=content, headers=kind, timeout=1)
        assert worker.gone.wait(20)
        until(lambda: held(stack) == 0 and files() == [])
        until(lambda: bool(stack.records()))
        assert stack.record()["outcome"] == "cancelled"


def test_a_worker_that_takes_nothing_does_not_fill_the_memory() -> None:
    """The upload waits in its file until the worker reads on."""
    go_on, asked = threading.Event(), []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            with line:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += line.recv(4096)
                if head.startswith(b"GET"):
                    line.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
                    continue
                asked.append(head)
                assert go_on.wait(20)
                size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                left = size - len(head.partition(b"\r\n\r\n")[2])
                while left:
                    left -= len(line.recv(min(left, 1 << 16)))
                line.sendall(
                    b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n{"text":"x"}'
                )

    thread = threading.Thread(target=serve)
    thread.start()
    worker = Worker(text)
    worker.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    read: list[int] = []
    with pytest.MonkeyPatch.context() as patch, gateway(worker) as stack:
        pread = os.pread

        def counted(file: int, size: int, at: int) -> bytes:
            read.append(size)
            return pread(file, size, at)

        patch.setattr(os, "pread", counted)
        found: list[httpx.Response] = []
        sending = threading.Thread(target=lambda: found.append(send(stack, sound(bytes(20 << 20)))))
        sending.start()
        until(lambda: bool(asked))
        time.sleep(0.3)
        waited = sum(read)
        go_on.set()
        sending.join()
        assert found[0].json() == {"text": "x"}
        assert waited < 12 << 20, "what the sockets' own buffers take"
        assert sum(read) == 20 << 20
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def least(work: Callable[[], object]) -> float:
    """The CPU seconds of `work` in this thread, the least of three times."""
    times = []
    for _ in range(3):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return min(times)


def test_no_upload_holds_the_loop() -> None:
    """What costs a parser the most, beside ordinary bytes of the same number."""
    edge = f"\r\n--{'x' * 60}".encode()
    head = f'--{"x" * 60}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'.encode()
    near = edge[:-1] + b"y"

    def upload(content: bytes) -> None:
        kept = io.BytesIO()
        reader = multipart.FormReader(b"multipart/form-data; boundary=" + b"x" * 60, kept.write)
        stream = io.BytesIO(head + content + edge + b"--\r\n")
        while block := stream.read(1 << 16):
            reader.feed(block)
        assert kept.tell() == len(content)

    def heads(options: bytes) -> None:
        for _ in range(100):
            reader = multipart.FormReader(b"multipart/form-data; boundary=x", len)
            with contextlib.suppress(GatewayError):
                reader.feed(b"--x\r\nContent-Disposition: form-data; name=a;" + options + b"\r\n\r\n\r\n")

    ordinary = least(lambda: upload(b"a" * (8 << 20)))
    for content in (b"\r" * (8 << 20), b"\r\n" * (4 << 20), b"-" * (8 << 20), near * ((8 << 20) // len(near))):
        assert least(partial(upload, content)) < 10 * ordinary
    ordinary = least(lambda: heads(b'x="%s"' % (b"a" * 4000)))
    for options in (b";" * 60, b'";' * 60, b"a=b;" * 60, b'"' * 4000, b'\\"' * 2000, b"=" * 4000, b" " * 4000):
        assert least(partial(heads, options)) < 10 * ordinary
