"""A gateway that was installed is tried: its version, and a reply and a stream from a simulated worker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scripts.release.version import ROOT

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("DRAGOMAN_", "PYTHON", "VIRTUAL_"))}
"""The environment without what would lead an installation astray."""
DRAGOMAN = ROOT / ".venv" / "bin" / "dragoman"
"""This checkout's own, for workers."""
PATIENCE_S = 300.0


class NotProved(Exception):
    """Something that is to be released does not do what it should."""


@contextmanager
def running(folder: Path, words: Sequence[str]) -> Iterator[str]:
    """Runs `words` until the block ends. Yields the address that the command says it listens on."""
    process = subprocess.Popen(words, cwd=folder, env=CLEAN, stdout=subprocess.PIPE, text=True)
    late = threading.Timer(PATIENCE_S, process.kill)
    late.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            # A gateway's log names workers before that.
            if found := re.search(r"\blistening\b.*?(http://[\d.:]+)", line):
                yield found[1]
                break
        else:
            raise NotProved(f"{words} ended with {process.wait()}")
    finally:
        late.cancel()
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def serves(folder: Path, command: Sequence[str], worker: Sequence[str], native: bool = True) -> str:
    """Tries the gateway that `command` starts, on a simulated worker that the command `worker` starts; both take the
    arguments of `dragoman`. Returns what the gateway reports as its version. Raises NotProved."""
    said = subprocess.run([*command, "--version"], cwd=folder, env=CLEAN, check=True, capture_output=True, text=True)
    reported = said.stdout.strip()
    if f"native relay: {'yes' if native else 'no'}" not in reported:
        raise NotProved(f"{command}: {reported}")
    with running(folder, [*worker, "worker", "simulated", "--port", "0", "--model", "m"]) as address:
        config = {"listen": {"port": 0}, "models": {"m": {"backend": "vllm", "workers": [address]}}}
        (folder / "gateway.yaml").write_text(json.dumps(config))
        with running(folder, [*command, "serve", "--config", "gateway.yaml"]) as gateway:
            for stream in (False, True):
                text = chat(gateway, stream)
                if not text.endswith("data: [DONE]\n\n" if stream else "}"):
                    raise NotProved(f"{command}: a reply ended with {text[-80:]!r}")
    return reported


def chat(gateway: str, stream: bool) -> str:
    """The body of a reply to a chat request."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    request = urllib.request.Request(
        f"{gateway}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return str(reply.read().decode())
