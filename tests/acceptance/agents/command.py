"""Agents of the command line, run without a terminal against a gateway, with nothing of this machine's own settings.

Their model is the simulated worker: `conversation` is a prompt that tells it what to say in each round.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from tests.acceptance.libraries.drive import ADDRESS
from tests.acceptance.libraries.readme import readme_lines

PACKAGES = Path(__file__).parent / "node" / "node_modules"


class Ran(NamedTuple):
    """code is the exit status; events are the lines of JSON that the agent printed; said is all that it printed."""

    code: int
    events: list[dict[str, Any]]
    said: str


def version(package: str) -> str:
    """As locked."""
    lock = json.loads((PACKAGES.parent / "package-lock.json").read_text())
    return str(lock["packages"][f"node_modules/{package}"]["version"])


def line(client: str, url: str) -> str:
    """The line of configuration that docs/clients.md has for this client, with the gateway at `url`."""
    return readme_lines()[client].replace(ADDRESS, url)


def setting(client: str, url: str) -> dict[str, str]:
    """The same, of a client whose line is, or begins with, environment variables."""
    words = takewhile(lambda word: re.match(r"[A-Z_]+=", word), shlex.split(line(client, url)))
    return dict(word.split("=", 1) for word in words)


def options(client: str, url: str) -> list[str]:
    """The options that follow the command of a line."""
    return shlex.split(line(client, url))[len(setting(client, url)) + 1 :]


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """A tool call of a round."""
    return {"name": name, "arguments": arguments}


def conversation(
    *rounds: Mapping[str, Any], words: str = "Do as you are told.", asked: Mapping[str, Any] | None = None
) -> str:
    """A prompt by which the simulated worker replies with one round after the other, and to messages with the words of
    `asked` as those say. The scripts are those of tests/support/simulated/plan.py."""
    return f"{words} sim:" + json.dumps({"rounds": rounds, "asked": asked or {}})


def assert_each_begins_with_the_last(prompts: list[dict[str, Any]]) -> None:
    """Whether the workers' prefix caches hold: a prompt, as a worker reads it, is the one before it and more."""
    assert len(prompts) > 1
    for before, after in pairwise(prompts):
        assert after["tools"] == before["tools"]
        assert after["messages"][: len(before["messages"])] == before["messages"]


@contextmanager
def watched() -> Iterator[tuple[str, list[bytes]]]:
    """(the address of a proxy that lets nothing through, the first bytes of what was asked of it)."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client, contextlib.suppress(OSError):  # it may reset the connection as it ends
                    asked.append(client.recv(200))

        thread = threading.Thread(target=refuse)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def run(
    arguments: list[str],
    home: Path,
    environ: Mapping[str, str],
    timeout: float = 400,
    asks: tuple[str, ...] = (),
) -> Ran:
    """Runs an agent in `home`/work, with `home` as its home. Fails if it wanted to reach a host whose name does
    not begin as one of `asks` does."""
    folder = home / "work"
    folder.mkdir(exist_ok=True)
    with watched() as (proxy, asked):
        found = subprocess.run(
            arguments,
            cwd=folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(home),
                "LANG": "C.UTF-8",
                "SHELL": "/bin/bash",
                "HTTPS_PROXY": proxy,
                "HTTP_PROXY": proxy,
                "NO_PROXY": "127.0.0.1",
                "no_proxy": "127.0.0.1",
                **environ,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
        )
    said = found.stdout.decode()
    lines = [line.split(b"\r\n")[0].decode() for line in asked]
    strayed = [line for line in lines if not line.removeprefix("CONNECT ").startswith(asks)]
    assert not strayed, f"it wanted to leave this machine: {strayed}"
    return Ran(found.returncode, [json.loads(line) for line in said.splitlines() if line.startswith("{")], said)
