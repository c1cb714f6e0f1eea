"""A server of S3's protocol on a free port: `rclone serve s3`, in front of a folder; ended by its process id.

The objects of a bucket are the files of a folder of its name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.daemon import Daemon
from tests.support.standins.serving import certificate

KEY_ID, KEY = "AKIDEXAMPLE0000", "a-secret-that-nobody-may-log"
_BINARY = Path(sys.executable).parent / "rclone"


class S3(Daemon):
    """directory: of buckets, and of the files with the pair of keys. tls: it speaks TLS with a certificate that no
    system knows, `cert.pem` there."""

    def __init__(self, directory: Path, *, tls: bool = False) -> None:
        super().__init__(directory)
        self.tls = tls
        if tls:
            certificate(directory)
        self._buckets = directory / "buckets"

    def section(self, folder: Path, **options: Any) -> dict[str, Any]:
        """The options of a new bucket whose objects are files of `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        name = f"bucket-{len(os.listdir(self._buckets))}"
        (self._buckets / name).symlink_to(folder)
        self.look_again()
        pair = {f"{key}_file": str(self.directory / key) for key in ("access_key_id", "secret_access_key")}
        url = f"{'https' if self.tls else 'http'}://{self.address}"
        bucket = {"url": url, "name": name, "prefix": "some/where"} | pair
        return {"bucket": bucket, **options}

    def look_again(self) -> None:
        """It remembers what it saw of the folder: what a test has changed there itself is seen from now on."""
        self.kill()
        self.start()

    def start(self) -> None:
        self._buckets.mkdir(exist_ok=True)
        (self.directory / "access_key_id").write_text(KEY_ID)
        (self.directory / "secret_access_key").write_text(KEY + "\n")
        super().start()

    def words(self) -> Sequence[str | Path]:
        served = (_BINARY, "serve", "s3", self._buckets, "--copy-links", "--config", os.devnull, "--addr", self.address)
        files = ("--cert", self.directory / "cert.pem", "--key", self.directory / "key.pem")
        return (*served, *files) if self.tls else served

    def environ(self) -> Mapping[str, str]:
        pair = f'"{KEY_ID},{KEY}"'
        return {"PATH": os.environ["PATH"], "HOME": str(self.directory), "RCLONE_AUTH_KEY": pair}
