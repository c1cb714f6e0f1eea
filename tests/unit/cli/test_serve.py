"""`dragoman serve`: what it logs, how it ends, what signals do to it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import yaml

from gateway.app import KNOWN
from gateway.auth import new_key
from gateway.cli.serve import _Serving
from gateway.config import Config, ConfigError, Listen, load
from gateway.observe.log import Log
from tests.support.commands import Serving, called
from tests.support.harness import Stack
from tests.support.ports import free_port
from tests.support.standins.serving import Answering, serving


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


def serve_by(folder: Path, workers: Stack, *words: str) -> Serving:
    """A Python that is told by `words` to serve in another way."""
    config = {"listen": {"port": 0}, "models": {"m": {"backend": "vllm", "workers": [workers.sim.url]}}}
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump(config))
    return Serving.of(file, *words, "serve", "--config", str(file))


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


@pytest.mark.long
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


def test_a_worker_s_key_that_is_replaced_is_sent_without_a_signal(serve: Serve, tmp_path: Path) -> None:
    class Answer(Answering):
        def do_GET(self) -> None:
            self.answer(200)

        def do_POST(self) -> None:
            self.posted()
            self.answer(400, self.headers["authorization"].encode())
            sent.append(self.headers["authorization"])

    sent: list[str] = []
    key = tmp_path / "key"
    key.write_text("the-first-key")
    with serving(Answer) as worker:
        model = {"backend": "vllm", "upstream_model": "sim", "workers": [worker], "api_key_file": str(key)}
        one = serve(models={"m": model})
        url = one.listening() + "/v1/chat/completions"
        httpx.post(url, json=chat())
        (tmp_path / "next").write_text("the-second-key")
        (tmp_path / "next").rename(key)
        one.event("keys changed")
        one.event("reloaded")
        httpx.post(url, json=chat())
    assert sent == ["Bearer the-first-key", "Bearer the-second-key"]


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_a_stream_beyond_the_grace_ends_in_its_own_words(serve: Serve) -> None:
    one = serve(relay={"drain_s": 0.2})
    running = stream(one.listening(), chat(text="a b c", fault="stall@2"))
    one.process.send_signal(signal.SIGINT)
    received = rest(running)
    assert b'"code":"shutting_down"' in received
    assert b"[DONE]" not in received
    assert not received.endswith(b"0\r\n\r\n")
    assert one.end() == (0, "")


@pytest.mark.long
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


@pytest.mark.long
def test_a_notice_ends_by_itself(serve: Serve) -> None:
    one = serve(relay={"notice_s": 0.2})
    one.listening()
    one.process.terminate()
    assert one.end() == (0, "")


@pytest.mark.long
def test_a_second_signal_ends_it_at_once(serve: Serve) -> None:
    one = serve(relay={"drain_s": 60})
    running = stream(one.listening(), chat(text="a b c", fault="stall@2"))
    one.process.terminate()
    one.event("draining")
    one.process.terminate()
    assert one.end(20) == (0, "")
    assert b"[DONE]" not in rest(running)


@pytest.mark.long
def test_a_taken_port_is_one_clear_line(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        one = serve(listen={"port": port})
        assert one.end() == (1, f"dragoman: cannot listen on 127.0.0.1:{port}: Address already in use\n")
    assert one.lines == []


@pytest.mark.long
def test_it_opens_no_door_to_other_machines_without_keys(serve: Serve) -> None:
    one = serve(listen={"host": "0.0.0.0", "port": 0})
    status, error = one.end()
    assert status == 2
    assert re.fullmatch(r"\S+gateway\.yaml:\d+: listen\.host: is open to other machines .*\n", error)
    checked = called("check", str(one.file))
    assert (checked.returncode, checked.stderr) == (2, error)


@pytest.mark.long
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


@pytest.mark.long
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
    one = serve_by(tmp_path, workers, str(script))
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
        serve.processes.listeners = signalled(serve.processes.listeners)
    elif moment == "compose":
        serve.Gateway = signalled(serve.Gateway)
    elif moment == "probe":
        app.Gateway.start = signalled(app.Gateway.start)
sys.exit(gateway.cli.main(sys.argv[3:]))
"""
MOMENTS = ["import", "load", "listen", "compose", "probe"]


@pytest.mark.long
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_during_the_start_ends_it_quietly_or_reloads(
    tmp_path: Path, workers: Stack, number: str, moment: str
) -> None:
    one = serve_by(tmp_path, workers, "-c", STARTING, number, moment)
    try:
        if number == "SIGHUP":
            url = one.listening()
            one.event("reloaded")
            assert httpx.get(url + "/readyz").status_code == 200
            one.process.terminate()
        assert one.end(40) == (0, "")
    finally:
        one.close()


@pytest.mark.long
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


def test_signals_are_taken_over_before_anything_large_is_imported() -> None:
    code = "import sys; before = set(sys.modules); import gateway.cli.starting; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    small = "gateway signal threading thread weakrefset weakref itertools types enum functools collections operator"
    assert {name.strip("_") for name in imported} <= {*small.split(), "future", "keyword", "reprlib"}


@pytest.mark.parametrize(
    ("error", "bug"), [(FileNotFoundError(), False), (ssl.SSLError(), False), (ValueError(), False), (KeyError(), True)]
)
async def test_what_cannot_be_put_to_use_is_refused_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, bug: bool
) -> None:
    """Whatever it is: the watch over changed keys goes on. A bug is logged with its place."""
    path = tmp_path / "gateway.yaml"
    path.write_text("models: {m: {backend: vllm, workers: ['http://127.0.0.1:9']}}")
    said = io.BytesIO()
    with socket.socket() as listener:
        config = load(path, KNOWN, {})
        log = Log("info", True, said, "json")
        serving = _Serving(config, str(path), [listener], log)
        serving._server.listening.set()  # as if it listened

        async def fail(config: Config) -> None:
            raise error

        monkeypatch.setattr(serving._gateway, "reload", fail)  # a reload that goes wrong
        await serving._reload()  # as by SIGHUP
        await serving._gateway.close()  # never started
        await asyncio.to_thread(log.close)
    lines = [json.loads(line) for line in said.getvalue().splitlines()]
    (line,) = [line for line in lines if line["event"] == "reload refused, the old configuration stays"]
    assert line["faults"] == [f"gateway.yaml: (file): could not be put to use: {type(error).__name__}"]
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == ([error] if bug else [])


@pytest.mark.parametrize("how", ["done", "refused", "failed"])
async def test_the_thread_that_reads_hands_over_the_interpreter_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Python hands it over every 5 ms by default, and each system call of a request waits for that."""
    path = tmp_path / "gateway.yaml"
    path.write_text("models: {m: {backend: vllm, workers: ['http://127.0.0.1:9']}}")
    before, usual, seen = sys.getswitchinterval(), 0.005, list[float]()  # other tests may have lowered it
    sys.setswitchinterval(usual)
    with socket.socket() as listener:
        config = load(path, KNOWN, {})
        serving = _Serving(config, str(path), [listener], Log("info", True, io.BytesIO(), "json"))
        serving._server.listening.set()  # as if it listened

        def read() -> Any:
            seen.append(sys.getswitchinterval())
            if how == "refused":
                raise ConfigError(())
            return config

        async def put_to_use(config: Any) -> None:
            seen.append(sys.getswitchinterval())
            if how == "failed":
                raise OSError

        monkeypatch.setattr(serving, "_load", read)
        monkeypatch.setattr(serving._gateway, "reload", put_to_use)  # seen from within
        await serving._reload()  # as by SIGHUP
        await serving._gateway.close()  # never started
    assert len(seen) == (1 if how == "refused" else 2)
    assert max(seen) <= 0.001 < usual == sys.getswitchinterval()
    sys.setswitchinterval(before)


def test_too_few_open_files_are_reported_with_what_to_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    log = SimpleNamespace(event=lambda level, event, **fields: told.append(fields))
    monkeypatch.setattr("gateway.cli.serve.fitting_connections", lambda most: 7)
    listen = _Serving._fitting(cast(Any, SimpleNamespace(_log=log)), Listen(max_connections=10))  # without a server
    assert listen.max_connections == 7
    remedy = "raise `ulimit -n` (systemd: LimitNOFILE), or lower listen.max_connections"
    assert told == [{"max_connections": 7, "remedy": remedy}]
