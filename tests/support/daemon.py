"""A server as a process on a port of its own, for tests: started, frozen, killed, and ended by its process id."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support.harness import until
from tests.support.ports import free_port


class Daemon:
    """Its output goes to the file `log` of its directory. words and environ: its command line and environment."""

    greeting = b""
    """What it must answer before it counts as started; if empty, a connection is enough."""

    def __init__(self, directory: Path, port: int | None = None) -> None:
        self.port = port or free_port()
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def words(self) -> Sequence[str | Path]:
        raise NotImplementedError

    def environ(self) -> Mapping[str, str] | None:
        """None: as it is here."""
        return None

    def start(self) -> None:
        """Returns once it answers."""
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(self.words(), env=self.environ(), stdout=log, stderr=log)
        try:
            until(self._answers, 60)
        except BaseException:
            self.kill()
            raise

    def _answers(self) -> bool:
        # Another server could answer at a port that this one could not have.
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as link:
            link.sendall(self.greeting)
            return not self.greeting or bool(link.recv(64))
        return False

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def freeze(self) -> None:
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
