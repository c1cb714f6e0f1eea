"""Real vLLM: started once through `dragoman worker vllm`, found by the gateway through a registry in Redis.

`make test-vllm` builds what is needed: .venv-vllm with vLLM on the CPU, and the small model in its form. To test with
one that runs already (on a GPU, say), name it: DRAGOMAN_TEST_ENGINE=http://host:port. It must have been started by
`dragoman worker vllm` with FLAGS below; the tests of starting and stopping (test_life.py) need their own engines.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.dialects import REGISTRY
from tests.support.harness import Stack, until
from tests.support.ports import free_port
from tests.support.redis_server import Server

ROOT = Path(__file__).resolve().parents[3]
HOME = ROOT / ".venv-vllm"
GIVEN = os.environ.get("DRAGOMAN_TEST_ENGINE")
CONTEXT = 1024
FLAGS = (
    *("--served-model-name", "smollm2", "--max-model-len", str(CONTEXT), "--enforce-eager"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)
START_S = 600.0


class Engine:
    """One vLLM behind one `dragoman worker vllm`, registered at `redis`."""

    def __init__(self, redis: Server, log: Path, *flags: str) -> None:
        self.log = log
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        environ = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
        command: list[str | Path] = [
            HOME / "bin" / "dragoman",
            "worker",
            "vllm",
            "--model",
            HOME / "smollm2",
            *FLAGS,
            *flags,
        ]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--register", f"redis://{redis.address}"]
        with log.open("wb") as out:
            self.popen = subprocess.Popen(command, env=environ, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)

    def ready(self) -> None:
        end = time.monotonic() + START_S
        while b"listening on" not in self.log.read_bytes():
            if self.popen.poll() is not None or time.monotonic() > end:
                pytest.fail(f"the engine did not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.2)

    def processes(self) -> list[int]:
        """The ids of vLLM's own processes: the worker's children, theirs, and so on."""
        listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        children: dict[int, list[int]] = {}
        for line in listed.splitlines():
            pid, parent = map(int, line.split())
            children.setdefault(parent, []).append(pid)
        found, todo = [], [self.popen.pid]
        while todo:
            new = children.get(todo.pop(), [])
            found += new
            todo += new
        return found

    def stop(self) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            try:
                self.popen.wait(30)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def start(redis: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Engine]]:
    """Starts engines; what still runs at the end is stopped."""
    if not (HOME / "installed").exists():
        pytest.fail("there is no .venv-vllm: run `make test-vllm`")
    engines: list[Engine] = []

    def begin(*flags: str) -> Engine:
        engines.append(Engine(redis, tmp_path_factory.mktemp("engine") / "log", *flags))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.stop()


@pytest.fixture(scope="session")
def worker(start: Callable[..., Engine]) -> Engine:
    """The engine that most tests share."""
    engine = start()
    engine.ready()
    _shared.append(engine)
    return engine


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """Straight to vLLM."""
    global _seen
    with httpx.Client(base_url=GIVEN or request.getfixturevalue("worker").url, timeout=120) as client:
        card = client.get("/v1/models").json()["data"][0]
        _seen = f"vLLM {client.get('/version').json()['version']}, model {card['id']} ({card['max_model_len']} tokens)"
        yield client


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest, engine: httpx.Client) -> Iterator[Stack]:
    """A gateway in front of it: the model `smollm2`, found through the registry."""
    model: dict[str, Any] = {"backend": "vllm"}
    config: dict[str, Any] = {"models": {"smollm2": model}}
    if GIVEN:
        # What its record in a registry would say.
        features = [
            "tools",
            "json",
            "json_schema",
            "regex",
            "beams",
            "completions",
            "logprobs",
            "token_ids",
            "prompt_tokens",
        ]
        features += ["no_repeat_ngram", "bad_word_tokens"]
        model |= {"workers": [GIVEN], "max_context": CONTEXT, "features": features}
    else:
        model["discover"] = {"redis": True}
        config["redis"] = {"addresses": [request.getfixturevalue("redis").address], "timeout_s": 10}
    config["dialects"] = {name: {"default_model": "smollm2"} for name in REGISTRY}
    config["health"] = {"timeout_s": 10, "interval_s": 10}
    config["log"] = {"level": "debug"}  # tells of each probe
    config["queue"] = {"cold_start_s": 60}  # nor does a test fail because a probe found the worker busy in its middle
    with Stack(workers=(), config=config) as stack:
        until(lambda: stack.gateway.deployment.fleets.ready, 60)
        yield stack
        stack.gateway.log.flush()
        lines = (line for line in stack.output.lines() if line["event"] != "request")
        _told.extend(line for line in lines if line["level"] != "debug" or line.get("found", "200") != "200")


@pytest.fixture(scope="session")
def gateway(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.url, timeout=120) as client:
        yield client


@pytest.fixture(autouse=True)
def present(request: pytest.FixtureRequest) -> None:
    """A gateway misses its worker for a moment when the machine stands still: no test begins in that moment."""
    if "gateway" in request.fixturenames:
        stack: Stack = request.getfixturevalue("stack")
        if not stack.gateway.deployment.fleets.ready and not _gone:
            _missed.append(request.node.nodeid)
            try:
                until(lambda: stack.gateway.deployment.fleets.ready, 60)
            except AssertionError:  # the test says what there is then
                _gone.append(request.node.nodeid)


_seen = ""
_missed: list[str] = []
"""The tests before which the gateway had no worker."""
_gone: list[str] = []
"""That before which it did not come back: nobody waits for it again."""
_told: list[dict[str, Any]] = []
"""What the gateway logged, but for requests and good probes."""
_shared: list[Engine] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which engine it was. After a failure, what happened to it: one that ends fails all tests that share it."""
    for test in _missed:
        terminalreporter.write_line(f"the gateway had no worker before {test}")
    if _missed or terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        for line in _told[-40:]:
            terminalreporter.write_line(f"gateway: {line}")
        for engine in _shared:
            ended = "" if engine.popen.returncode is None else f", ended with {engine.popen.returncode}"
            terminalreporter.write_line(f"worker's log{ended}:\n{engine.log.read_text()[-2000:]}")
    if _seen:
        count = len(terminalreporter.stats.get("passed", []))
        terminalreporter.write_line(f"engine: {_seen}; {count} checks passed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests that end engines come last."""
    items.sort(key=lambda item: item.path.name == "test_life.py")
