"""`python -m bench.first_words`: how long a newcomer waits for the first words of `make run`, on a busy machine.

For each start a fresh gateway and a fresh model, beside one busy loop on each CPU, as a build would be. The request is
the one that `make run` prints, run by a shell as it was printed. Exit status 1 if one answer's first words came too
late, if one is missing, or if the printed request is not the last of the output.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).resolve().parents[1]
LATEST_S = 5.0
LONGEST_S = 180.0
"""Until a start is given up, with its answer. Busy loops end by themselves after it."""
_BUSY = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"


class Answer(Struct, frozen=True):
    """ready_s: from `make run` to the printed request; first_s, whole_s: from typing it to the first word and to the
    end; text is None if the stream did not end as it should; after: what was printed behind the request."""

    ready_s: float
    first_s: float | None
    whole_s: float
    text: str | None
    after: str


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """A loop that never waits on each CPU that this process may use."""
    running = []
    for cpu in sorted(os.sched_getaffinity(0)):
        running.append(subprocess.Popen([sys.executable, "-c", _BUSY, str(LONGEST_S)]))
        os.sched_setaffinity(running[-1].pid, {cpu})
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def start(port: int, worker_port: int) -> Answer:
    """Starts gateway and model at these ports, types what they print, and stops both. Raises ValueError if they do not
    start."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "gateway.yaml")
        text = (ROOT / "gateway.yaml").read_text()
        config.write_text(
            text.replace("port: 8080", f"port: {port}").replace("127.0.0.1:8081", f"127.0.0.1:{worker_port}")
        )
        began = time.monotonic()
        run = subprocess.Popen(
            [sys.executable, "scripts/run.py", "--config", str(config)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        deadline = threading.Timer(LONGEST_S, run.kill)
        deadline.start()
        try:
            command = _printed(run)
            return _typed(command, run, time.monotonic() - began)
        finally:
            deadline.cancel()
            run.terminate()
            run.communicate()


def _printed(run: subprocess.Popen[str]) -> str:
    """The request that is printed, as it stands."""
    assert run.stdout is not None
    lines: list[str] = []
    for line in run.stdout:
        if lines or line.startswith("  curl "):
            lines.append(line)
        if lines and not line.endswith("\\\n"):
            return "".join(lines)
    raise ValueError("make run printed no request")


def _typed(command: str, run: subprocess.Popen[str], ready_s: float) -> Answer:
    began, first, said, done = time.monotonic(), None, "", False
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as shell:
        assert shell.stdout is not None
        for line in shell.stdout:
            data = line.removeprefix("data: ").strip()
            done = done or data == "[DONE]"
            if not data.startswith("{"):
                continue
            words = "".join(choice["delta"].get("content") or "" for choice in json.loads(data).get("choices", ()))
            if words and first is None:
                first = time.monotonic() - began
            said += words
    took = time.monotonic() - began
    # Up to the record of the request itself, in the log, nothing may stand behind the request.
    assert run.stdout is not None
    after = ""
    for line in run.stdout:
        if '"request"' in line or "chat/completions" in line:
            break
        after += line
    return Answer(ready_s, first, took, said if done else None, after.strip())


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.first_words", description=__doc__.partition("\n")[0])
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--port", type=int, default=18_080, help="of the gateway; the worker's is the next one")
    options = parser.parse_args()
    late = 0
    for number in range(options.starts):
        with busy():
            found = start(options.port, options.port + 1)
        fits = found.first_s is not None and found.first_s <= LATEST_S and found.text is not None and not found.after
        late += not fits
        first = f"{found.first_s:.2f}" if found.first_s is not None else "none"
        print(
            f"{number + 1:3}: ready {found.ready_s:.1f} s, first words {first} s, whole {found.whole_s:.2f} s:"
            f" {found.text!r}{'' if fits else '  <-- ' + (found.after or 'late')}",
            flush=True,
        )
    print(f"{options.starts - late} of {options.starts} within {LATEST_S:g} s")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
