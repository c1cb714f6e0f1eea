"""The command `dragoman`, as a process: what it prints, how it ends, what signals do to it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import yaml

from gateway import cli
from gateway.app import KNOWN
from gateway.auth import new_key
from gateway.cli.serve import _Serving
from gateway.config import Config, load
from gateway.dialects import REGISTRY
from gateway.observe.log import Log
from tests.harness import HEALTH, Stack
from tests.ports import free_port

CONFIG = Path(__file__).parent.parent / "gateway.yaml"
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}


def dragoman(*arguments: str, folder: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        env={**CLEAN, **environ},
    )


def called(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """As `dragoman`, but in this process: to start one takes a second. Not for `serve`: it takes over the signals."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder or "."), contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            status = cli.main(arguments)
        except SystemExit as ended:
            status = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), error.getvalue())


class Serving:
    """`dragoman serve` with a configuration of its own, and its log."""

    def __init__(self, folder: Path, sections: dict[str, Any], *arguments: str) -> None:
        self.file = folder / "gateway.yaml"
        self.sections = {"listen": {"port": 0}, "health": HEALTH, **sections}
        self.write(self.sections)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway.cli", "serve", "--config", str(self.file), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=CLEAN,
        )
        self.lines: list[dict[str, Any]] = []
        self._queue: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.url = self.admin = ""

    def write(self, sections: dict[str, Any]) -> None:
        self.file.write_text(yaml.safe_dump(sections))

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line)
        self._queue.put(b"")

    def event(self, name: str) -> dict[str, Any]:
        """The next log line of this event."""
        while True:
            line = self._queue.get(timeout=30)
            assert line, f"it ended without saying {name!r}: {self.lines}"
            self.lines.append(json.loads(line))
            if self.lines[-1]["event"] == name:
                return self.lines[-1]

    def listening(self) -> str:
        self.url = self.event("listening")["address"]
        return self.url

    def end(self, seconds: float = 40) -> tuple[int, str]:
        """Exit status and standard error, once it has ended."""
        assert self.process.stderr is not None
        status = self.process.wait(seconds)
        self._reader.join(20)
        while not self._queue.empty():
            line = self._queue.get()
            if line:
                self.lines.append(json.loads(line))
        return status, self.process.stderr.read().decode()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(20)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture(scope="module")
def workers() -> Iterator[Stack]:
    """Only for its simulated worker; the gateway before it is not used."""
    with Stack() as stack:
        yield stack


Serve = Callable[..., Serving]


@pytest.fixture
def serve(tmp_path: Path, workers: Stack) -> Iterator[Serve]:
    started: list[Serving] = []

    def start(**sections: Any) -> Serving:
        models = {"m": {"backend": "vllm", "upstream_model": "sim", "workers": [workers.sim.url]}}
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Serving(folder, {"models": models, **sections}))
        return started[-1]

    yield start
    for one in started:
        one.close()


def chat(**script: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "sim:" + json.dumps(script)}]}


def stream(url: str, body: dict[str, Any]) -> socket.socket:
    """A streamed request whose answer is read by the test, once its first token is here."""
    data = json.dumps({**body, "stream": True}).encode()
    client = socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])))
    client.settimeout(30)
    client.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data)
    )
    seen = b""
    while b"data: " not in seen:
        block = client.recv(1)
        assert block
        seen += block
    return client


def rest(client: socket.socket) -> bytes:
    received = b""
    with client:
        while block := client.recv(65536):
            received += block
    return received


# -- serve ----------------------------------------------------------------------------------------------------------


def test_it_serves_reloads_and_ends(serve: Serve) -> None:
    one = serve()
    url = one.listening()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
    assert one.lines[-1]["config"] == "gateway.yaml"
    assert httpx.get(url + "/livez").text == "alive\n"
    assert httpx.get(url + "/readyz").status_code == 200
    assert httpx.post(url + "/v1/chat/completions", json=chat(text="hello")).status_code == 200

    models = one.sections["models"]
    one.write({**one.sections, "models": {"renamed": models["m"]}})
    one.process.send_signal(signal.SIGHUP)
    one.event("reloaded")
    assert [card["id"] for card in httpx.get(url + "/v1/models").json()["data"]] == ["renamed"]

    bad = {**one.sections, "models": {"m": models["m"], "n": {**models["m"], "bakend": "x"}}, "relay": {"drain_s": -1}}
    one.write(bad)
    one.process.send_signal(signal.SIGHUP)
    faults = one.event("reload refused, the old configuration stays")["faults"]
    text = one.file.read_text().splitlines()
    for key, where in (("models.n.bakend", "bakend"), ("relay.drain_s", "drain_s")):
        line = next(number for number, line in enumerate(text, 1) if where in line)
        assert any(fault.startswith(f"{one.file}:{line}: {key}: ") for fault in faults), faults
    assert [card["id"] for card in httpx.get(url + "/v1/models").json()["data"]] == ["renamed"]
    one.file.unlink()
    one.process.send_signal(signal.SIGHUP)
    one.event("reload refused, the old configuration stays")
    page = httpx.get(url + "/metrics").text
    assert 'dragoman_reloads_total{result="refused"} 2.0' in page
    assert 'dragoman_reloads_total{result="done"} 1.0' in page

    one.process.terminate()
    assert one.end() == (0, "")
    assert [line["event"] for line in one.lines[-2:]] == ["draining", "stopped"]


def test_keys_of_a_mounted_secret_come_and_go_without_a_signal(serve: Serve, tmp_path: Path) -> None:
    """As Kubernetes mounts it: the file is a link through a link to a folder, and that one is turned round."""
    keys = []
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        made = new_key("team-a")
        keys.append(made[0])
        (tmp_path / version / "keys.yaml").write_text(made[1])
    (tmp_path / "data").symlink_to("1")
    (tmp_path / "keys.yaml").symlink_to("data/keys.yaml")
    one = serve(auth="keys", keys_file=str(tmp_path / "keys.yaml"))
    url = one.listening()

    def statuses() -> list[int]:
        return [httpx.get(url + "/v1/models", headers={"api-key": key}).status_code for key in keys]

    assert statuses() == [200, 401]
    (tmp_path / "next").symlink_to("2")
    (tmp_path / "next").rename(tmp_path / "data")
    one.event("keys changed")
    one.event("reloaded")
    assert statuses() == [401, 200]
    (tmp_path / "data").unlink()
    one.event("reload refused, the old configuration stays")
    assert statuses() == [401, 200]


def test_a_reload_changes_what_a_client_may_do_and_tells_what_takes_a_restart(serve: Serve) -> None:
    one = serve()
    url = one.listening()
    fields = {f"x-{number}": "y" for number in range(20)}
    assert httpx.get(url + "/v1/models", headers=fields).status_code == 200
    port = free_port()
    listen = {"host": "::1", "port": port, "max_header_count": 16, "keep_alive_s": 5}
    one.write({**one.sections, "listen": listen, "metrics": {"listen": f"127.0.0.1:{port}"}})
    one.process.send_signal(signal.SIGHUP)
    said = one.event("a restart is needed for some changes to hold")
    assert (said["level"], said["keys"]) == ("warning", ["listen.host", "listen.port", "metrics.listen"])
    assert one.lines[-2]["event"] == "reloaded"
    assert httpx.get(url + "/v1/models", headers=fields).status_code == 431
    assert httpx.get(url + "/metrics").status_code == 200, "it has no other place yet"

    one.write(one.sections)
    one.process.send_signal(signal.SIGHUP)
    one.event("reloaded")
    assert httpx.get(url + "/v1/models", headers=fields).status_code == 200
    one.process.terminate()
    assert one.end() == (0, "")
    # The worker's load may be read at any time.
    last = [line["event"] for line in one.lines if line["event"] != "load of worker known"][-2:]
    assert last == ["draining", "stopped"], "what it began with takes no restart"


def test_metrics_may_have_an_address_of_their_own(serve: Serve) -> None:
    """Clients do not see them there, and do not keep others from them."""
    one = serve(metrics={"listen": f"127.0.0.1:{free_port()}"}, listen={"port": 0, "max_connections": 1})
    url = one.listening()
    apart = one.lines[-1]["metrics"]
    assert httpx.get(url + "/metrics").status_code == 404
    with httpx.Client() as crowd:
        assert crowd.get(url + "/livez").status_code == 200
        assert "dragoman_draining 0.0" in httpx.get(apart + "/metrics").text
        assert httpx.get(apart + "/livez").text == "alive\n"
        assert httpx.get(apart + "/readyz").text == "ready\n"
        assert httpx.get(apart + "/v1/models").status_code == 404
        assert httpx.get(url + "/livez").status_code == 503, "it is crowded there"

    one.write({**one.sections, "metrics": {}})
    one.process.send_signal(signal.SIGHUP)
    assert one.event("a restart is needed for some changes to hold")["keys"] == ["metrics.listen"]
    assert httpx.get(url + "/metrics").status_code == 404, "no reload shows clients what was kept from them"
    assert httpx.get(apart + "/metrics").status_code == 200

    with httpx.Client(base_url=apart) as scraper:
        assert scraper.get("/metrics").status_code == 200
        one.process.terminate()
        one.event("draining")
        assert one.end() == (0, ""), "a scraper that keeps its connection delays nothing"


def test_a_stream_that_fits_the_grace_is_completed(serve: Serve, workers: Stack) -> None:
    one = serve()
    url = one.listening()
    running = stream(url, chat(text="a b c", fault="stall@2"))
    one.process.terminate()
    one.event("draining")
    refused = httpx.get(url + "/readyz")
    assert (refused.status_code, refused.text) == (503, "draining\n")
    assert httpx.get(url + "/livez").status_code == 200
    workers.loop.call_soon_threadsafe(workers.sim.go_on)
    received = rest(running)
    assert b"data: [DONE]\n\n" in received
    assert received.endswith(b"0\r\n\r\n")
    assert one.end() == (0, "")
    (record,) = [line for line in one.lines if line["event"] == "request"]
    assert record["outcome"] == "ok"


def test_a_stream_beyond_the_grace_ends_in_its_own_words(serve: Serve) -> None:
    one = serve(relay={"drain_s": 0.2})
    running = stream(one.listening(), chat(text="a b c", fault="stall@2"))
    one.process.send_signal(signal.SIGINT)
    received = rest(running)
    assert b'"code":"shutting_down"' in received
    assert b"[DONE]" not in received
    assert not received.endswith(b"0\r\n\r\n")
    assert one.end() == (0, "")


def test_one_that_is_idle_serves_on_for_its_notice_and_keeps_no_connection(serve: Serve) -> None:
    """A load balancer still sends to it, and who keeps a connection must go and find another gateway."""
    one = serve(relay={"notice_s": 60, "drain_s": 60})
    with httpx.Client(base_url=one.listening()) as client:
        assert "connection" not in client.get("/readyz").headers
        one.process.terminate()
        one.event("draining")
        assert client.get("/readyz").status_code == 503
        answer = client.post("/v1/chat/completions", json=chat(text="a b c"))
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert client.get("/livez").headers["connection"] == "close"
    one.process.terminate()
    assert one.end() == (0, "")


def test_a_notice_ends_by_itself(serve: Serve) -> None:
    one = serve(relay={"notice_s": 0.2})
    one.listening()
    one.process.terminate()
    assert one.end() == (0, "")


def test_a_second_signal_ends_it_at_once(serve: Serve) -> None:
    one = serve(relay={"drain_s": 60})
    running = stream(one.listening(), chat(text="a b c", fault="stall@2"))
    one.process.terminate()
    one.event("draining")
    one.process.terminate()
    status, error = one.end(20)
    assert (status, error) == (0, "")
    assert b"[DONE]" not in rest(running)


def test_a_taken_port_is_one_clear_line(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        one = serve(listen={"port": port})
        status, error = one.end()
    assert status == 1
    assert error == f"dragoman: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    assert one.lines == []


def test_it_opens_no_door_to_other_machines_without_keys(serve: Serve) -> None:
    one = serve(listen={"host": "0.0.0.0", "port": 0})
    status, error = one.end()
    assert status == 2
    assert re.fullmatch(r"\S+gateway\.yaml:\d+: listen\.host: is open to other machines .*\n", error)
    checked = called("check", str(one.file))
    assert (checked.returncode, checked.stderr) == (2, error)


def test_what_uvicorn_and_asyncio_say_goes_to_the_log(serve: Serve) -> None:
    """A stalled upload outlives the grace of uvicorn itself: whatever it says of that is structured, or unsaid."""
    one = serve(relay={"drain_s": 0})
    url = one.listening()
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))) as client:
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\ncanary-5e")
        httpx.get(url + "/livez")
        one.process.terminate()
        client.settimeout(30)
        assert client.recv(65536).startswith(b"HTTP/1.1 503 ")
    assert one.end() == (0, "")
    assert "canary-5e" not in json.dumps(one.lines)


def test_an_error_in_the_application_is_told_without_its_words(tmp_path: Path, workers: Stack) -> None:
    """What nobody caught reaches the server's own logger."""
    script = tmp_path / "broken.py"
    script.write_text(
        "import sys\n"
        "from gateway import app, cli\n"
        "async def broken(self, scope, receive, send):\n"
        "    raise RuntimeError('canary-5e')\n"
        "app.Gateway._readyz = broken\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    config = {"listen": {"port": 0}, "models": {"m": {"backend": "vllm", "workers": [workers.sim.url]}}}
    (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(config))
    one = Serving.__new__(Serving)
    one.process = subprocess.Popen(
        [sys.executable, str(script), "serve", "--config", str(tmp_path / "gateway.yaml")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=CLEAN,
    )
    one.lines, one._queue = [], queue.Queue()
    one._reader = threading.Thread(target=one._read)
    one._reader.start()
    try:
        assert httpx.get(one.listening() + "/readyz").status_code == 500
        said = one.event("library")
        assert (said["level"], said["logger"], said["error"]) == ("error", "gateway.server.cycle", "RuntimeError")
        assert said["text"] == "the application raised an exception"
        assert any("broken.py" in place for place in said["trace"])
        one.process.terminate()
        assert one.end() == (0, "")
        assert "canary-5e" not in json.dumps(one.lines)
    finally:
        one.close()


STARTING = """
import importlib, os, signal, sys
number, moment = signal.Signals[sys.argv[1]], sys.argv[2]

def signalled(before):
    def wrapped(*given, **named):
        os.kill(os.getpid(), number)
        return before(*given, **named)
    return wrapped

if moment == "import":
    importlib.import_module = signalled(importlib.import_module)
import gateway.cli
if moment != "import":
    import gateway.cli.serve as serve, gateway.app as app
    if moment == "load":
        serve.configuration = signalled(serve.configuration)
    elif moment == "listen":
        serve._listen = signalled(serve._listen)
    elif moment == "compose":
        serve.Gateway = signalled(serve.Gateway)
    elif moment == "probe":
        app.Gateway.start = signalled(app.Gateway.start)
sys.exit(gateway.cli.main(sys.argv[3:]))
"""
MOMENTS = ["import", "load", "listen", "compose", "probe"]


def start_with(tmp_path: Path, workers: Stack, number: str, moment: str) -> Serving:
    """`dragoman serve` that gets a signal at one moment of its start."""
    config = {"listen": {"port": 0}, "models": {"m": {"backend": "vllm", "workers": [workers.sim.url]}}}
    one = Serving.__new__(Serving)
    one.file = tmp_path / "gateway.yaml"
    one.file.write_text(yaml.safe_dump(config))
    one.process = subprocess.Popen(
        [sys.executable, "-c", STARTING, number, moment, "serve", "--config", str(one.file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=CLEAN,
        cwd=CONFIG.parent,
    )
    one.lines, one._queue = [], queue.Queue()
    one._reader = threading.Thread(target=one._read)
    one._reader.start()
    return one


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_an_end_during_the_start_is_quiet(tmp_path: Path, workers: Stack, number: str, moment: str) -> None:
    one = start_with(tmp_path, workers, number, moment)
    try:
        assert one.end(40) == (0, "")
    finally:
        one.close()


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_hangup_during_the_start_reloads_once_it_has_started(tmp_path: Path, workers: Stack, moment: str) -> None:
    one = start_with(tmp_path, workers, "SIGHUP", moment)
    try:
        url = one.listening()
        one.event("reloaded")
        assert httpx.get(url + "/readyz").status_code == 200
        one.process.terminate()
        assert one.end(40) == (0, "")
    finally:
        one.close()


def test_a_keys_file_that_hangs_stops_no_request(serve: Serve, tmp_path: Path) -> None:
    """A FIFO, as a mount that does not answer: opened in the ordinary way it keeps its reader for ever."""
    secret, entry = new_key("team-a")
    keys = tmp_path / "keys.yaml"
    keys.write_text(entry)
    one = serve(auth="keys", keys_file=str(keys))
    url = one.listening()
    keys.unlink()
    os.mkfifo(keys)
    one.process.send_signal(signal.SIGHUP)
    (fault,) = one.event("reload refused, the old configuration stays")["faults"]
    assert "not a regular file" in fault
    assert httpx.get(url + "/v1/models", headers={"api-key": secret}).status_code == 200


# -- the other commands ---------------------------------------------------------------------------------------------


def test_a_reader_that_has_had_enough_ends_a_command_without_a_traceback() -> None:
    """As in `dragoman routes | head -3`."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as output:
        command = [sys.executable, "-m", "gateway.cli", "routes", "--config", str(CONFIG)]
        ended = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, timeout=300, env=CLEAN)
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_check_names_fallbacks_whose_context_is_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    context = "fallback_on: [context_length], max_context: 100"
    path.write_text(
        "models:\n"
        f"  a: {{backend: vllm, workers: ['http://127.0.0.1:1'], fallback: [c], {context}}}\n"
        f"  b: {{backend: vllm, workers: ['http://127.0.0.1:2'], fallback: [c, d], {context}}}\n"
        "  c: {backend: vllm, workers: ['http://127.0.0.1:3'], max_context: 100}\n"
        "  d: {backend: vllm, workers: ['http://127.0.0.1:4']}\n"
    )
    said = [line for line in called("check", str(path)).stderr.splitlines() if "fallback_on" in line]
    assert said == ["hole: fallback_on context_length, model a: no fallback has a longer context"]


def test_check_names_token_limits_that_one_request_uses_up(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "models:\n"
        "  a: {backend: vllm, workers: ['http://127.0.0.1:1'], max_context: 1000}\n"
        "  b: {backend: vllm, workers: ['http://127.0.0.1:2'], max_context: 1000}\n"
        "  short: {backend: vllm, workers: ['http://127.0.0.1:3'], max_context: 999}\n"
        "  open: {backend: vllm, workers: ['http://127.0.0.1:4']}\n"
        "  e: {backend: vllm, workers: ['http://127.0.0.1:5'], max_context: 1000, features: [embeddings]}\n"
        "limits:\n"
        "  - {name: small, kind: tokens, limit: 1000, scope: [key], match: {model: [a, short, open, e]}}\n"
        "  - {name: large, kind: tokens, limit: 1001, scope: [key]}\n"
        "  - {name: tried, kind: tokens, limit: 10, scope: [key], shadow: true}\n"
        "  - {name: often, kind: requests, limit: 10, scope: [key]}\n"
    )
    said = [line for line in called("check", str(path)).stderr.splitlines() if line.startswith("hole: limit ")]
    assert said == [
        "hole: limit small, model a: a request without max_tokens reserves all of the limit of 1000, "
        "which is not above max_context (1000)"
    ]


def test_check_names_the_models_whose_workers_cannot_be_told_a_salt(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "models:\n"
        "  v: {backend: vllm, workers: ['http://127.0.0.1:1']}\n"
        "  t: {backend: tgi, workers: ['http://127.0.0.1:2']}\n"
        f"keys: {{a: {{hash: 'sha256:{'ab' * 32}'}}}}\n"
        "cache_salt: {secret_file: salt}\n"
    )
    (tmp_path / "salt").write_text("canary-5e-" * 4)
    found = called("check", str(path))
    assert found.returncode == 0
    said = [line for line in found.stderr.splitlines() if "cache_salt" in line]
    assert said == ["hole: cache_salt, model t (tgi): all callers share what its workers cache"]
    assert "canary" not in found.stderr


def test_check_says_everything_at_once_and_never_a_traceback(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("listen:\n  prot: 1\nmodels:\n  m:\n    backend: nothing\n    workers: [ftp://x]\n")
    found = dragoman("check", str(bad))
    assert (found.returncode, found.stdout) == (2, "")
    lines = found.stderr.splitlines()
    assert len(lines) == 3
    assert all(re.match(rf"{re.escape(str(bad))}:\d+: [\w.]+: ", line) for line in lines), lines
    missing = called("check", str(tmp_path / "none.yaml"))
    assert missing.returncode == 2
    assert len(missing.stderr.splitlines()) == 1


def test_check_finds_its_file_as_serve_does_and_says_what_is_good(tmp_path: Path) -> None:
    model = "{backend: vllm, workers: ['http://127.0.0.1:1']}"
    (tmp_path / "gateway.yaml").write_text(
        f"models: {{a: {model}, b: {model}}}\ndialects: {{azure: {{enabled: false}}}}\n"
    )
    (tmp_path / "other.yaml").write_text(f"models: {{a: {model}}}\nkeys: {{a: {{hash: 'sha256:{'ab' * 32}'}}}}\n")
    here = dragoman("check", folder=tmp_path)
    good = f"gateway.yaml: 2 models, 0 keys, {len(REGISTRY) - 1} dialects: good\n"
    assert (here.returncode, here.stdout, here.stderr) == (0, good, "")
    other = f"other.yaml: 1 model, 1 key, {len(REGISTRY)} dialects: good\n"
    assert called("check", "other.yaml", folder=tmp_path).stdout == other
    assert called("check", "--config", "other.yaml", folder=tmp_path).stdout == other
    assert dragoman("check", folder=tmp_path, DRAGOMAN_CONFIG="other.yaml").stdout == other
    alone = json.dumps({"a": {"backend": "tgi", "workers": ["http://127.0.0.1:1"]}})
    (tmp_path / "gateway.yaml").unlink()
    said = dragoman("check", folder=tmp_path, DRAGOMAN_MODELS=alone)
    holes = len(said.stderr.splitlines())
    assert said.stdout == f"environment: 1 model, 0 keys, {len(REGISTRY)} dialects: good, but for {holes} holes\n"
    strict = dragoman("check", "--strict", folder=tmp_path, DRAGOMAN_MODELS=alone)
    assert (strict.returncode, strict.stdout, strict.stderr) == (1, "", said.stderr)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nothing",),
        ("check", "a", "--config", "b"),
        ("keys",),
        ("limits", "show", "--address", "10.0.0.0/8"),
        ("worker",),
        ("worker", "nothing"),
    ],
)
def test_wrong_use_is_explained(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: dragoman")


def test_the_schema_is_one_and_accepts_our_own_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    validator(schema).validate(yaml.safe_load(CONFIG.read_text()))
    with pytest.raises(jsonschema.ValidationError):
        validator(schema).validate({"listne": {}})


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"dragoman \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


def test_routes_lists_method_path_and_dialect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["routes"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {len(line) for line in lines} == {3, 5}
    assert ["GET", "/v1/models", "anthropic", "(with", "anthropic-version)"] in lines
    assert ["POST", "/v1/chat/completions", "openai"] in lines
    assert ["POST", "/openai/v1/chat/completions", "openai"] in lines
    assert ["GET", "/livez", "-"] in lines
    moved = tmp_path / "moved.yaml"
    moved.write_text(
        yaml.safe_dump(
            {
                "models": {"m": {"backend": "vllm", "workers": ["http://127.0.0.1:9"]}},
                "dialects": {"openai": {"prefixes": ["/elsewhere"]}},
                "metrics": {"enabled": False},
            }
        )
    )
    assert cli.main(["routes", "--config", str(moved)]) == 0
    paths = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert "/elsewhere/v1/chat/completions" in paths
    assert not {"/v1/chat/completions", "/metrics"} & set(paths)


def test_a_name_beyond_the_terminals_characters_is_shown_as_yaml_reads_it() -> None:
    made = dragoman("keys", "new", "--name", "clé", PYTHONIOENCODING="ascii")
    assert made.returncode == 0, made.stderr
    assert list(yaml.safe_load(made.stdout)) == ["clé"]


def test_a_new_key_opens_the_door(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["keys", "new", "--name", "team-a", "--team", "research"]) == 0
    said = capsys.readouterr()
    (key,) = re.findall(r"dgm_\w+", said.err)
    # What a redirection takes is a keys file, without the key.
    entry = yaml.safe_load(said.out)
    assert key not in said.out
    with Stack(config={"keys": entry}) as stack:
        url = stack.url + "/v1/models"
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers={"authorization": f"Bearer {key}"}).status_code == 200
        assert httpx.get(url, headers={"api-key": key[:-1] + ("a" if key[-1] != "a" else "b")}).status_code == 401
        assert [record["key"] for record in stack.records()][1:2] == ["team-a"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--name", "a\nb"], "the name must be 1 to 200 characters"),
        (["--name", "a", "--team", "b c"], "the team must be 1 to 200 characters"),
        (["--name", "jwt:alice"], "the name must not begin with jwt:"),
        (["--name", "dgm_k3v9q0x2mz_" + "a" * 43 + "_abcdef"], "the name looks like a key"),
    ],
)
def test_a_key_is_not_made_under_a_name_that_no_configuration_takes(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["keys", "new", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"dragoman: {said}")


def test_where_nobody_names_a_file_it_is_looked_for(tmp_path: Path) -> None:
    for found in (
        dragoman("serve", folder=tmp_path),
        called("check", folder=tmp_path),
        called("limits", "show", folder=tmp_path),
    ):
        assert (found.returncode, found.stdout) == (2, "")
        (line,) = found.stderr.splitlines()
        assert line.startswith("dragoman: no configuration file: give --config FILE, set DRAGOMAN_CONFIG, or ")
    half = dragoman("serve", folder=tmp_path, DRAGOMAN_LISTEN__PORT="http").stderr.splitlines()[1:]
    assert half == ["environment: DRAGOMAN_LISTEN__PORT: must be a whole number"]
    (tmp_path / "gateway.yaml").write_text("models: 1\n")
    (tmp_path / "other.yaml").write_text("models: 2\n")
    assert dragoman("serve", folder=tmp_path).stderr.startswith("gateway.yaml:1: models: ")
    named = dragoman("serve", folder=tmp_path, DRAGOMAN_CONFIG="other.yaml")
    assert named.stderr.startswith("other.yaml:1: models: ")
    assert len(named.stderr.splitlines()) == 1


@pytest.mark.parametrize("kind", cli.WORKERS)
def test_a_worker_explains_itself(kind: str) -> None:
    said = dragoman("worker", kind, "--help")
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith(f"usage: dragoman worker {kind}")


def test_signals_are_taken_over_before_anything_large_is_imported() -> None:
    code = "import sys; before = set(sys.modules); import gateway.cli.starting; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    small = {
        "__future__",
        "gateway",
        "signal",
        "_signal",
        "threading",
        "_thread",
        "_weakrefset",
        "_weakref",
        "itertools",
    }
    small |= {"types", "enum", "functools", "_functools", "collections", "_collections", "operator", "_operator"}
    assert imported <= small | {"keyword", "reprlib"}


async def test_what_cannot_be_put_to_use_is_refused_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is: the watch over changed keys goes on."""
    path = tmp_path / "gateway.yaml"
    path.write_text("models: {m: {backend: vllm, workers: ['http://127.0.0.1:9']}}")
    said = io.BytesIO()
    with socket.socket() as listener:
        config = load(path, KNOWN, {})
        log = Log("info", True, said, "json")
        serving = _Serving(config, str(path), [listener], log)
        serving._server.listening.set()

        async def fail(config: Config) -> None:
            raise FileNotFoundError

        monkeypatch.setattr(serving._gateway, "reload", fail)
        await serving._reload()
        await serving._gateway.close()
        await asyncio.to_thread(log.close)
    lines = [json.loads(line) for line in said.getvalue().splitlines()]
    (line,) = [line for line in lines if line["event"] == "reload refused, the old configuration stays"]
    assert line["faults"] == ["gateway.yaml: (file): could not be put to use: FileNotFoundError"]
