"""`make run` starts two programs and never leaves one: tried with stand-ins for the `dragoman` command."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config import Config
from scripts.run import readable, sights, welcome
from tests.repo.tree import ROOT
from tests.support.ports import free_port

# Serves 200 on every path; FAIL_<ROLE>=N makes that role exit with status 3 after N seconds.
STAND_IN = """\
#!{python}
import http.server, os, pathlib, signal, sys, threading
role = sys.argv[1]
print("noise of", role, flush=True)
if os.environ.get("BROKEN") == role:
    sys.exit("there is no model")
port = int(sys.argv[sys.argv.index("--port") + 1] if role == "worker" else os.environ["DRAGOMAN_LISTEN__PORT"])
pathlib.Path({notes!r}, role).write_text(str(os.getpid()) + " " + " ".join(sys.argv[1:]))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_): pass
if role == "serve":
    signal.signal(signal.SIGHUP, lambda *_: print("reads it again", flush=True))
server = http.server.HTTPServer(("127.0.0.1", port), Handler)
if after := os.environ.get("FAIL_" + role.upper()):
    threading.Timer(float(after), lambda: os._exit(3)).start()
server.serve_forever()
"""


class Started:
    """scripts/run.py with a stand-in, two free ports and a folder where the stand-ins note who they are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.worker_port = free_port(), free_port()
        self.command = folder / "dragoman"
        self.command.write_text(STAND_IN.format(python=sys.executable, notes=str(folder)))
        self.command.chmod(0o755)
        self.config = folder / "gateway.yaml"
        self.config.write_text(
            f"models:\n  small:\n    backend: openai\n    workers: [http://127.0.0.1:{self.worker_port}]\n"
        )
        self.stdin = subprocess.DEVNULL
        self.process: subprocess.Popen[str] | None = None

    def start(self, **environment: str) -> subprocess.Popen[str]:
        script = [sys.executable, "scripts/run.py", "--config", str(self.config), "--dragoman", str(self.command)]
        self.process = subprocess.Popen(
            script,
            cwd=ROOT,
            env={**os.environ, "DRAGOMAN_LISTEN__PORT": str(self.port), **environment},
            stdin=self.stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self.process

    def note(self, role: str) -> str:
        return (self.folder / role).read_text()

    def alive(self) -> list[str]:
        """Roles whose process still runs."""
        found = []
        for role in ("worker", "serve"):
            if (self.folder / role).exists():
                try:
                    os.kill(int(self.note(role).split()[0]), 0)
                except ProcessLookupError:
                    continue
                found.append(role)
        return found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Started]:
    run = Started(tmp_path)
    yield run
    if run.process is not None:
        run.process.terminate()
        with run.process:  # closes its pipes, also where a test left them half read
            run.process.wait(60)


def wait_welcome(process: subprocess.Popen[str]) -> str:
    """All output up to the last line of the request to type, which an empty line follows."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("    -d "):
            assert process.stdout.readline() == "\n"
            break
    return "".join(lines)


def test_where_keys_are_needed_the_request_to_type_has_one() -> None:
    found = welcome("http://h", "m", "", keyed=True)
    assert "with a key for KEY:" in found
    assert " \\\n    -H 'authorization: Bearer KEY' \\\n    -d '" in found
    assert "KEY" not in welcome("http://h", "m", "", keyed=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_start_and_a_signal_stops_both(run: Started, number: signal.Signals) -> None:
    process = run.start()
    said = wait_welcome(process).splitlines()
    assert said[:2] == ["Loading the small model ...", "Starting the gateway ..."], "it says what takes so long"
    assert sorted(said[2:4]) == ["noise of serve", "noise of worker"], "what the programs logged comes next"
    assert said[-4] == "Type this in another terminal:"
    assert said[-2].startswith(f"  curl -N http://127.0.0.1:{run.port}/openai/v1/chat/completions ")
    asked = json.loads(said[-1].partition("'")[2].rpartition("'")[0])
    assert asked["stream"] is True
    assert asked["max_tokens"] <= 64
    assert run.alive() == ["worker", "serve"]
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert run.alive() == []


def test_the_welcome_says_how_to_see_what_goes_on() -> None:
    assert "DRAGOMAN_METRICS__LISTEN=127.0.0.1:9090 DRAGOMAN_CONSOLE__ENABLED=true make run" in sights(Config())
    listens = Config.model_validate({"metrics": {"listen": "0.0.0.0:9090"}})
    assert sights(listens).splitlines()[2:] == ["  .venv/bin/dragoman status --url http://127.0.0.1:9090"]
    console = Config.model_validate({"metrics": {"listen": "[::1]:9090"}, "console": {"enabled": True}})
    assert sights(console).splitlines()[2:] == [
        "  .venv/bin/dragoman status --url http://[::1]:9090",
        "  http://[::1]:9090/console",
    ]


def test_a_busy_admin_address_is_named_and_nothing_starts(run: Started) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        _, errors = run.start(DRAGOMAN_METRICS__LISTEN=place).communicate(timeout=60)
    assert f"cannot listen on {place} (Address already in use); set DRAGOMAN_METRICS__LISTEN" in errors
    assert list(run.folder.glob("worker")) == []


@pytest.mark.long
def test_sighup_reaches_the_gateway_and_stops_nothing(run: Started) -> None:
    process = run.start()
    wait_welcome(process)
    assert process.stdout is not None
    for _ in range(2):
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "reads it again\n", "the request to type was the last line"
    assert run.alive() == ["worker", "serve"]


@pytest.mark.long
def test_the_end_of_its_terminal_stops_both(run: Started) -> None:
    ours, run.stdin = os.openpty()
    process = run.start()
    os.close(run.stdin)
    wait_welcome(process)
    os.close(ours)
    process.send_signal(signal.SIGHUP)  # as the shell does
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert run.alive() == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("terminal", "configured", "told"),
    [(True, "auto", "console"), (True, "json", None), (False, "auto", None), (False, "console", None)],
)
def test_the_log_is_for_people_on_a_terminal_unless_it_is_asked_for_as_json(
    terminal: bool, configured: str, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    config = Config.model_validate({"log": {"format": configured}})
    assert readable(config).get("DRAGOMAN_LOG__FORMAT") == told


@pytest.mark.long
@pytest.mark.parametrize(("role", "named"), [("worker", "worker"), ("serve", "gateway")])
def test_the_end_of_one_is_the_end_of_both(run: Started, role: str, named: str) -> None:
    process = run.start(**{f"FAIL_{role.upper()}": "1.5"})
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.endswith(f"run: the {named} ended with status 3\n")
    assert run.alive() == []


@pytest.mark.long
@pytest.mark.parametrize(("role", "named"), [("worker", "worker"), ("serve", "gateway")])
def test_what_does_not_start_says_why(run: Started, role: str, named: str) -> None:
    process = run.start(BROKEN=role)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.splitlines() == ["Loading the small model ...", "Starting the gateway ..."][: 1 + (role == "serve")]
    assert errors == f"noise of {role}\nthere is no model\nrun: the {named} ended with status 1\n"
    assert run.alive() == []


@pytest.mark.long
def test_a_stop_during_the_start_leaves_nothing(run: Started) -> None:
    process = run.start()
    while process.poll() is None and not (run.folder / "worker").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert run.alive() == []


@pytest.mark.long
@pytest.mark.parametrize("which", ["port", "worker_port"])
def test_a_busy_port_is_named_and_nothing_starts(run: Started, which: str) -> None:
    port: int = getattr(run, which)
    with socket.create_server(("127.0.0.1", port)):
        process = run.start()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port} (Address already in use)" in errors
    assert list(run.folder.glob("worker")) == []


@pytest.mark.long
def test_a_model_file_is_passed_on(run: Started) -> None:
    model = run.folder / "other.gguf"
    model.touch()
    wait_welcome(run.start(MODEL_FILE=str(model)))
    assert run.note("worker").endswith(f"worker embedded --port {run.worker_port} --model-file {model}")


def test_a_missing_model_file_is_said(run: Started) -> None:
    _, errors = run.start(MODEL_FILE="gone.gguf").communicate(timeout=60)
    assert errors == "run: MODEL_FILE: there is no file gone.gguf\n"


def test_a_bad_configuration_is_said_without_a_traceback(run: Started) -> None:
    run.config.write_text("modles: {}\n")
    process = run.start()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.startswith("run: ")
    assert "modles" in errors
    assert "Traceback" not in errors
