"""The command `dragoman` as a process, for tests, or in this one."""

from __future__ import annotations

import contextlib
import io
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from gateway import cli
from tests.repo.tree import ROOT
from tests.support.harness import HEALTH
from tests.support.records import Members, parsed

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}


def dragoman(*arguments: str, folder: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        env={**CLEAN, **environ},
    )


def called(*arguments: str, folder: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """As `dragoman`, but in this process: to start one takes a second. Not for `serve`: it takes over the signals."""
    out, error = io.StringIO(), io.StringIO()
    with (
        patch.dict(os.environ, CLEAN | environ, clear=True),
        contextlib.chdir(folder or "."),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(error),
    ):
        try:
            status = cli.main(arguments)
        except SystemExit as ended:
            status = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), error.getvalue())


class Serving:
    """`dragoman serve` with a configuration of its own, and its log. python serves, run in folder."""

    python: str | Path = sys.executable
    folder = ROOT

    def __init__(self, folder: Path, sections: dict[str, Any], *arguments: str) -> None:
        self.file = folder / "gateway.yaml"
        self.sections = {"listen": {"port": 0}, "health": HEALTH, **sections}
        self.write(self.sections)
        self._start("-m", "gateway.cli", "serve", "--config", str(self.file), *arguments)

    @classmethod
    def of(cls, file: Path, *words: str) -> Serving:
        """A Python that is told to serve in another way, by `words`; the configuration is in `file` already."""
        one = cls.__new__(cls)
        one.file = file
        one._start(*words)  # a second constructor of the same class
        return one

    def _start(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [self.python, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=CLEAN, cwd=self.folder
        )
        self.lines: list[Members] = []
        self._queue: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.url = self.admin = ""

    def write(self, sections: dict[str, Any]) -> None:
        self.file.write_text(yaml.safe_dump(sections))

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line)
        self._queue.put(b"")

    def event(self, name: str) -> Members:
        """The next log line of this event."""
        while True:
            line = self._queue.get(timeout=30)
            assert line, f"it ended without saying {name!r}: {self.lines}"
            self.lines.append(parsed(line))
            if self.lines[-1]["event"] == name:
                return self.lines[-1]

    def listening(self) -> str:
        self.url = self.event("listening")["address"]
        return self.url

    def end(self, seconds: float = 40) -> tuple[int, str]:
        """Exit status and standard error, once it has ended."""
        assert self.process.stderr is not None
        status = self.process.wait(seconds)
        self._reader.join(20)
        while not self._queue.empty():
            line = self._queue.get()
            if line:
                self.lines.append(parsed(line))
        return status, self.process.stderr.read().decode()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(20)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
