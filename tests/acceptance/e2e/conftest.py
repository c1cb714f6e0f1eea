"""A gateway with the root gateway.yaml and the real small model, as processes, once for the folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# On a machine that stands still for seconds no worker is dead, and no gateway is overloaded.
PATIENT = {
    "DRAGOMAN_HEALTH__INTERVAL_S": "10",
    "DRAGOMAN_HEALTH__TIMEOUT_S": "10",
    "DRAGOMAN_LISTEN__SHED_LAG_S": "0",
}


@contextmanager
def command(*arguments: str) -> Iterator[str]:
    """Runs `dragoman ARGUMENTS` until the block ends; the address it says it listens on."""
    words = [sys.executable, "-m", "gateway.cli", *arguments]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **PATIENT})
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "listening" in line:
                yield line[line.index("http://") :].split('"')[0].strip()
                break
        else:
            pytest.fail(f"dragoman {arguments[0]} ended with {process.wait()}")
    finally:
        process.terminate()
        process.communicate(timeout=180)
    assert process.returncode == 0


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with command("worker", "embedded", "--port", "0", "--parallel", "2") as worker:
        config = tmp_path_factory.mktemp("gateway") / "gateway.yaml"
        text = (ROOT / "gateway.yaml").read_text()
        assert "http://127.0.0.1:8081" in text
        assert "port: 8080" in text
        config.write_text(text.replace("http://127.0.0.1:8081", worker).replace("port: 8080", "port: 0"))
        with command("serve", "--config", str(config)) as address:
            yield address
