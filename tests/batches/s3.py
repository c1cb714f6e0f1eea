"""A server of S3's protocol on a free port: `rclone serve s3`, in front of a folder; ended by its process id.

The objects of a bucket are the files of a folder of its name.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.deploy.proxies import certificate
from tests.harness import until
from tests.ports import free_port

KEY_ID, KEY = "AKIDEXAMPLE0000", "a-secret-that-nobody-may-log"
_BINARY = Path(sys.executable).parent / "rclone"


class S3:
    """directory: of buckets, and of the files with the pair of keys. tls: it speaks TLS with a certificate that no
    system knows, `cert.pem` there."""

    def __init__(self, directory: Path, *, tls: bool = False) -> None:
        self.port = free_port()
        self.tls = tls
        self._directory = directory
        if tls:
            certificate(directory)
        self._buckets = directory / "buckets"
        self._process: subprocess.Popen[bytes] | None = None

    def section(self, folder: Path, **options: Any) -> dict[str, Any]:
        """The options of a new bucket whose objects are files of `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        name = f"bucket-{len(os.listdir(self._buckets))}"
        (self._buckets / name).symlink_to(folder)
        self.look_again()
        pair = {f"{key}_file": str(self._directory / key) for key in ("access_key_id", "secret_access_key")}
        url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"
        bucket = {"url": url, "name": name, "prefix": "some/where"} | pair
        return {"bucket": bucket, **options}

    def look_again(self) -> None:
        """It remembers what it saw of the folder: what a test has changed there itself is seen from now on."""
        self.kill()
        self.start()

    def start(self) -> None:
        self._buckets.mkdir(exist_ok=True)
        (self._directory / "access_key_id").write_text(KEY_ID)
        (self._directory / "secret_access_key").write_text(KEY + "\n")
        words: list[str | Path] = [_BINARY, "serve", "s3", self._buckets, "--copy-links", "--config", os.devnull]
        words += ["--addr", f"127.0.0.1:{self.port}"]
        if self.tls:
            words += ["--cert", self._directory / "cert.pem", "--key", self._directory / "key.pem"]
        pair = f'"{KEY_ID},{KEY}"'
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._directory), "RCLONE_AUTH_KEY": pair}
        with open(self._directory / "log", "ab") as log:
            self._process = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
        until(self._answers, 60)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> S3:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
