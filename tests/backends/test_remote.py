"""A remote endpoint of OpenAI's wire: TLS by one's own CA, a key from a file, a base path, another name."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness import Stack

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


class Remote(ThreadingHTTPServer):
    """Answers every POST with a chat, and remembers what it was asked."""

    def __init__(self, certificate: Path, key: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.asked: list[tuple[str, dict[str, str], Any]] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that does not trust us hangs up."""


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Remote

    def do_GET(self) -> None:
        self._answer(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        message = {"role": "assistant", "content": "hi"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        self._answer(200, {"id": "1", "object": "chat.completion", "created": 1, "choices": choices, "usage": usage})

    def _answer(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    crt, key = folder / "crt.pem", folder / "key.pem"
    shape = ["-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"]
    names = ["-subj", "/CN=remote", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(crt)]
    subprocess.run(["openssl", "req", *shape, *names], check=True, capture_output=True)
    return crt, key


@pytest.fixture
def remote(certificate: tuple[Path, Path]) -> Iterator[Remote]:
    server = Remote(*certificate)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def model(remote: Remote, **options: Any) -> dict[str, Any]:
    port = remote.server_address[1]
    worker = {"backend": "openai", "workers": [f"https://127.0.0.1:{port}/base"], "upstream_model": "provider/big"}
    return {"m": {**worker, **options}}


def test_everything_comes_from_the_configuration(
    remote: Remote, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("sk-remote\n")
    options = {"ca_file": str(certificate[0]), "api_key_file": str(tmp_path / "key"), "headers": {"x-project": "p"}}
    with Stack(workers=(), config={"models": model(remote, **options)}) as stack:
        answer = httpx.post(
            f"{stack.url}/v1/chat/completions",
            json=CHAT,
            headers={"authorization": "Bearer canary", "x-project": "canary"},
        )
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "hi"
    assert answer.json()["model"] == "m"
    ((path, headers, body),) = remote.asked
    assert path == "/base/v1/chat/completions"
    assert body["model"] == "provider/big"
    assert headers["authorization"] == "Bearer sk-remote"
    assert headers["x-project"] == "p"
    assert headers["host"] == f"127.0.0.1:{remote.server_address[1]}"
    assert "canary" not in json.dumps([headers, body])


def test_a_certificate_of_an_unknown_authority_is_not_believed(remote: Remote) -> None:
    with Stack(workers=(), config={"models": model(remote)}) as stack:
        answer = httpx.post(f"{stack.url}/v1/chat/completions", json=CHAT)
    assert answer.status_code == 503
    assert remote.asked == []
