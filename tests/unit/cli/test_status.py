"""`dragoman status`: views of a running gateway, live, once and as JSON; how it fails."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.commands import CLEAN, called, dragoman
from tests.support.harness import Stack
from tests.unit.app.asking import CHAT, key
from tests.unit.cli.terminals import on_a_terminal

KEY = "console-key-console-key"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(config={"metrics": {"listen": "127.0.0.1:9090"}}) as stack:
        yield stack


@pytest.fixture(scope="module")
def keyed() -> Iterator[Stack]:
    config = {"metrics": {"listen": "127.0.0.1:9090"}, "console": {"enabled": True, "key_env": "CONSOLE_KEY"}}
    with Stack(config=config, environ={"CONSOLE_KEY": KEY}) as stack:
        yield stack


def written(folder: Path, **sections: Any) -> str:
    path = folder / "gateway.yaml"
    models = {"m": {"backend": "vllm", "workers": ["http://127.0.0.1:9"]}}
    path.write_text(yaml.safe_dump({"models": models, **sections}))
    return str(path)


def test_one_view_where_the_output_is_no_terminal(stack: Stack) -> None:
    assert httpx.post(stack.url + "/v1/chat/completions", json=CHAT).status_code == 200
    for more in ((), ("--once",)):
        done = called("status", "--url", stack.admin_url, *more)
        assert (done.returncode, done.stderr) == (0, "")
        assert "\x1b" not in done.stdout
        lines = done.stdout.splitlines()
        assert lines[0].startswith("dragoman ")
        assert ": ready, up " in lines[0]
        assert any(line.split()[:3] == ["m", "1/1", "0"] for line in lines)
        assert any(line.split()[:3] == ["m", stack.sim.url, "ready"] for line in lines)


def test_json_is_the_state(stack: Stack) -> None:
    done = dragoman("status", "--url", stack.admin_url + "/", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["models"][0]["workers"][0]["address"] == stack.sim.url


@pytest.mark.long
def test_address_and_key_come_from_the_configuration(keyed: Stack, tmp_path: Path) -> None:
    port = keyed.admin_url.rpartition(":")[2]
    console = {"enabled": True, "key_env": "CONSOLE_KEY"}
    for host in ("127.0.0.1", "0.0.0.0"):
        path = written(tmp_path, metrics={"listen": f"{host}:{port}"}, console=console)
        done = dragoman("status", "--config", path, "--json", CONSOLE_KEY=KEY)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["ready"] is True


def test_a_key_from_a_file(keyed: Stack, tmp_path: Path) -> None:
    file = tmp_path / "key"
    refused = called("status", "--url", keyed.admin_url, "--json")
    assert refused.returncode == 1
    assert "--key-file" in refused.stderr
    file.write_text(KEY + "\n")
    assert called("status", "--url", keyed.admin_url, "--json", "--key-file", str(file)).returncode == 0
    file.write_text("two\nlines")
    assert called("status", "--url", keyed.admin_url, "--json", "--key-file", str(file)).returncode == 2


def test_without_a_state_it_fails_with_a_line_that_says_why(stack: Stack, tmp_path: Path) -> None:
    nobody, nowhere = "http://127.0.0.1:9", str(tmp_path / "none")
    for arguments, status, words in (
        (("--url", stack.url, "--once"), 1, "metrics.listen"),
        (("--url", stack.url + "/livez", "--once"), 1, "metrics.listen"),
        (("--url", stack.sim.url), 1, f"{stack.sim.url} is not the admin address of a gateway"),
        (("--url", nobody, "--once"), 1, f"no answer from {nobody}/status.json"),
        (("--config", written(tmp_path)), 2, "add `metrics: {listen: 127.0.0.1:9090}`"),
        (("--url", "127.0.0.1:9090"), 2, "--url must begin with"),
        (("--url", nobody, "--key-file", nowhere), 2, "No such file"),
    ):
        done = called("status", *arguments)
        assert (done.returncode, done.stdout) == (status, "")
        assert done.stderr.startswith("dragoman: ")
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
    for every in ("0", "nan", "-1", "x"):
        assert called("status", "--url", nobody, "--every", every).returncode == 2


def test_asked_where_clients_connect_it_names_the_option_and_the_port(stack: Stack, tmp_path: Path) -> None:
    port = int(stack.url.rpartition(":")[2])
    clients = f"{stack.url} is where clients connect (listen.port)"
    for listen, admin, wanted in (
        (port, "0.0.0.0:9095", "; the admin address is metrics.listen: give --url http://127.0.0.1:9095\n"),
        (port, "[::1]:9095", "; the admin address is metrics.listen: give --url http://[::1]:9095\n"),
        (port, None, ", and the configuration has no metrics.listen, the admin address: add `metrics: {listen: "),
        (9096, "0.0.0.0:9095", "; give --url the address of metrics.listen in the gateway's configuration\n"),
    ):
        path = written(tmp_path, listen={"port": listen}, metrics={"listen": admin} if admin else {})
        done = called("status", "--url", stack.url, "--config", path)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"{stack.url}/status.json answers 404: {clients}{wanted}" in done.stderr
    with Stack(config={"keys": key("app")[1]}) as keyed:
        done = called("status", "--url", keyed.url)
        assert f"answers 401: {keyed.url} is where clients connect (listen.port)" in done.stderr
    found = called("status", "--url", stack.url, folder=tmp_path)  # ./gateway.yaml, as for other commands
    assert "; give --url the address of metrics.listen" in found.stderr
    (tmp_path / "gateway.yaml").write_text("models: 1")
    assert "; give --url the address of metrics.listen" in called("status", "--url", stack.url, folder=tmp_path).stderr


def test_without_an_answer_it_says_whether_the_gateway_runs(stack: Stack, tmp_path: Path) -> None:
    port = int(stack.url.rpartition(":")[2])
    path = written(tmp_path, listen={"port": port}, metrics={"listen": "127.0.0.1:9"})
    runs = f"the gateway at {stack.url} was started with another metrics.listen: restart it"
    assert runs in called("status", "--config", path).stderr
    assert runs not in called("status", "--config", path, "--url", "http://127.0.0.1:10").stderr
    path = written(tmp_path, listen={"port": 11}, metrics={"listen": "127.0.0.1:9"})
    assert "does a gateway run with this metrics.listen?" in called("status", "--config", path).stderr


def test_a_gateway_without_a_console_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with Stack(config={"metrics": {"listen": "127.0.0.1:9090"}}) as stack:
        del stack.gateway._operations["/status.json"]  # as without the folder
        done = called("status", "--url", stack.admin_url)
        assert "lacks gateway/features/console" in done.stderr


def test_states_have_colours_on_a_terminal(stack: Stack) -> None:
    assert "\x1b[32mready\x1b[0m" in on_a_terminal("status", "--url", stack.admin_url, "--once")


@pytest.mark.long
def test_live_in_a_terminal_until_ctrl_c(stack: Stack) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "gateway.cli", "status", "--url", stack.admin_url, "--every", "0.2"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=CLEAN)
    os.close(theirs)
    try:
        seen = b""
        while seen.count(b"\x1b[H") < 3:  # three views
            seen += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        while not seen.endswith(b"\x1b[?1049l"):
            seen += os.read(ours, 65536)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert seen.startswith(b"\x1b[?1049h")
        assert stack.sim.url.encode() in seen
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        if process.stderr is not None:
            process.stderr.close()


def test_without_the_feature_that_has_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cli.status.has_feature", lambda name: name != "console")
    done = called("status", "--url", "http://127.0.0.1:9")
    said = "dragoman: this installation lacks gateway/features/console, which has the state\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)
