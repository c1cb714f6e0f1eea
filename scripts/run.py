"""Starts the gateway and the embedded worker together, and stops both together: `make run`.

    python scripts/run.py [--config gateway.yaml] [--model-file FILE.gguf]

The worker listens where the configuration's first model expects it. On SIGHUP the gateway reads its
configuration again. Exit status: 0 after Ctrl-C, SIGTERM or the end of its terminal, 1 when either could not start or
ended by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from gateway.config import Config, ConfigError, load

ROOT = Path(__file__).resolve().parent.parent
POLL_S = 0.1
READ_S = 2.0
"""Seconds to wait for the last lines of a program that has ended. A child of it may still hold its output open."""
HELD_LINES = 50
QUIET_S = 0.5
"""Seconds without a line, once both are ready, after which they have logged their start."""
LONGEST_TALK_S = 5.0
QUESTION = "What is the capital of Japan?"
"""The small model's first words are sure on every CPU: it is greedy, and no other token comes near. That of France it
answers in French on some, to the end of its context."""
MOST_TOKENS = 64
START_S = 120.0
"""Seconds until a program must be ready. A model file of some gigabytes on a slow disk takes long to read."""


class Failed(Exception):
    """Ends the run. The message is for the person who started it."""


class Stop:
    """Counts requests to stop, and those to read the configuration again. It raises nothing: an exception could strike
    between the start of a program and its entry in the list of children."""

    def __init__(self) -> None:
        self.count = 0
        self.reloads = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._asked)
        self._terminals = [descriptor for descriptor in range(3) if os.isatty(descriptor)]
        signal.signal(signal.SIGHUP, self._hung_up)

    def _hung_up(self, number: int, frame: FrameType | None) -> None:
        """A closed terminal sends SIGHUP too. It is none any more by then, and nobody is left to type Ctrl-C."""
        if all(map(os.isatty, self._terminals)):
            self.reloads += 1
        else:
            self.count += 1

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


class Child:
    """A program in its own process group: a terminal's Ctrl-C reaches this script only, which stops both in order.

    Its output is held back until `show`. If it ends before that, its last lines are printed, because they say why.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self.last_line_at = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **environment},
        )
        self._held: deque[bytes] = deque(maxlen=HELD_LINES)
        self._shown = False
        self._turn = threading.Lock()
        self._reader = threading.Thread(target=self._read, name=name, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.last_line_at = time.monotonic()
            with self._turn:
                if self._shown:
                    put(line)
                else:
                    self._held.append(line)

    def show(self) -> None:
        """Prints the program's output: what was held back, and what comes from now on."""
        with self._turn:
            put(b"".join(self._held))
            self._shown = True

    def check(self) -> None:
        """Raises Failed if the program has ended."""
        status = self.process.poll()
        if status is not None:
            self._reader.join(READ_S)
            if not self._shown:
                sys.stderr.buffer.write(b"".join(self._held))
                sys.stderr.buffer.flush()
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            raise Failed(f"the {self.name} {how}")

    def stop(self, grace_s: float, hurry: Callable[[], bool]) -> None:
        """Ends the whole process group: SIGTERM, then SIGKILL after `grace_s` or as soon as `hurry` is true."""
        if self.process.poll() is None:
            self.process.terminate()
            end = time.monotonic() + grace_s
            while self.process.poll() is None and time.monotonic() < end and not hurry():
                time.sleep(POLL_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def put(lines: bytes) -> None:
    """Prints lines. A reader that has left is no reason to stop."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(lines)
        sys.stdout.buffer.flush()


def refuse_busy(host: str, port: int, hint: str) -> None:
    """Raises Failed if the address is in use, with a hint that the programs themselves cannot give."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: closed connections of an earlier run may linger at this port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Failed(f"cannot listen on {host}:{port} ({error.strerror}); {hint}") from None


def wait_ok(url: str, children: Sequence[Child], stop: Stop) -> None:
    """Until GET `url` answers 200 or a stop is asked for. Raises Failed when a child ends or time is up."""
    end = time.monotonic() + START_S
    while not stop.count:
        for child in children:
            child.check()
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (OSError, urllib.error.URLError):
            pass
        if time.monotonic() > end:
            raise Failed(f"{url} did not answer 200 within {START_S:.0f} s")
        time.sleep(POLL_S)


def wait_quiet(children: Sequence[Child], stop: Stop) -> None:
    """Until the programs have logged their start, so that nothing comes after the request to type."""
    began = time.monotonic()
    while not stop.count and time.monotonic() < began + LONGEST_TALK_S:
        if time.monotonic() - max(began, *(child.last_line_at for child in children)) > QUIET_S:
            return
        time.sleep(POLL_S)


def address(host: str, port: int) -> str:
    """The base URL of what listens there, for this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def admin(config: Config) -> tuple[str, int] | None:
    """Host and port of `metrics.listen`."""
    if config.metrics.listen is None:
        return None
    host, _, port = config.metrics.listen.rpartition(":")
    return host.strip("[]"), int(port)


def sights(config: Config) -> str:
    """How to see what the gateway does."""
    place = admin(config)
    if place is None:
        return (
            "To watch it in a terminal and in a browser, start it with an admin address:\n\n"
            "  DRAGOMAN_METRICS__LISTEN=127.0.0.1:9090 DRAGOMAN_CONSOLE__ENABLED=true make run"
        )
    url = address(*place)
    console = f"\n  {url}/console" if config.console.enabled else ""
    return f"To see what it does:\n\n  .venv/bin/dragoman status --url {url}{console}"


def welcome(base: str, model: str, seen: str, keyed: bool) -> str:
    """The last of the output: a request to type. It streams, and its answer is short. keyed: clients show keys."""
    asked = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "stream": True}
    body = json.dumps({**asked, "max_tokens": MOST_TOKENS, "temperature": 0})
    return (
        f"\nDragoman listens on {base}, model {model}. Ctrl-C stops it.\n\n"
        f"{seen}\n\n"
        f"Type this in another terminal{', with a key for KEY' if keyed else ''}:\n\n"
        f"  curl -N {base}/openai/v1/chat/completions -H 'content-type: application/json' \\\n"
        + ("    -H 'authorization: Bearer KEY' \\\n" if keyed else "")
        + f"    -d '{body}'\n"
    )


def readable(config: Config) -> Mapping[str, str]:
    """The gateway's environment: its log is a pipe to this script, and is for people if this script's output is."""
    for_people = config.log.format == "auto" and sys.stdout.isatty()
    return {"DRAGOMAN_LOG__FORMAT": "console"} if for_people else {}


def run(dragoman: Sequence[str], config_file: Path, config: Config, model_file: str | None, stop: Stop) -> None:
    """Starts both, waits for the end, stops both. Raises Failed."""
    if not config.models:
        raise Failed(f"{config_file.name} names no model")
    name, model = next(iter(config.models.items()))
    if not model.workers:
        raise Failed(f"model {name} lists no worker")
    worker = urlsplit(model.workers[0])
    if worker.hostname not in {"127.0.0.1", "localhost", "::1"} or worker.port is None:
        raise Failed(f"the first worker of model {name} is {model.workers[0]}: only one on this machine can be started")
    refuse_busy(config.listen.host, config.listen.port, "set DRAGOMAN_LISTEN__PORT to another port")
    if (place := admin(config)) is not None:
        refuse_busy(*place, "set DRAGOMAN_METRICS__LISTEN to another address")
    refuse_busy(worker.hostname, worker.port, f"stop that program, or change the worker's port in {config_file.name}")

    embedded = [*dragoman, "worker", "embedded", "--port", str(worker.port)]
    if model_file:
        embedded += ["--model-file", model_file]
    base = address(config.listen.host, config.listen.port)
    children: list[Child] = []
    try:
        print(f"Loading {model_file or 'the small model'} ...", flush=True)
        children.append(Child("worker", embedded, {}))
        wait_ok(f"{model.workers[0]}{config.health.path}", children, stop)
        if not stop.count:
            print("Starting the gateway ...", flush=True)
            children.append(Child("gateway", [*dragoman, "serve", "--config", str(config_file)], readable(config)))
            wait_ok(f"{base}/readyz", children, stop)
            wait_quiet(children, stop)
        if not stop.count:
            for child in children:
                child.show()
            print(welcome(base, name, sights(config), config.auth == "keys"), flush=True)
        reloads = 0
        while not stop.count:
            for child in children:
                child.check()
            if reloads != stop.reloads:
                reloads = stop.reloads
                children[-1].process.send_signal(signal.SIGHUP)
            time.sleep(POLL_S)
    finally:
        # Stop the gateway first, because its running replies need the worker.
        asked = stop.count
        for child in reversed(children):
            child.stop(config.relay.drain_s + 5, lambda: stop.count > asked)


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/run.py", description="Gateway and embedded worker together.")
    parser.add_argument("--config", type=Path, default=ROOT / "gateway.yaml", help="gateway.yaml to serve")
    parser.add_argument(
        "--model-file",
        default=os.environ.get("MODEL_FILE"),
        help="GGUF file instead of the small model that is installed",
    )
    parser.add_argument(
        "--dragoman", default=Path(sys.executable).with_name("dragoman"), type=Path, help="the installed command"
    )
    options = parser.parse_args()
    stop = Stop()
    try:
        if options.model_file and not Path(options.model_file).is_file():
            raise Failed(f"MODEL_FILE: there is no file {options.model_file}")
        if not options.dragoman.exists():
            raise Failed("the `dragoman` command is not installed beside this interpreter: start this by `make run`")
        run([str(options.dragoman)], options.config, load(options.config), options.model_file, stop)
    except (Failed, ConfigError) as failure:
        print(f"run: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
