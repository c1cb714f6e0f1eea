"""Processes of a benchmark: their CPUs, and the CPU time of a whole process tree (Linux only)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

TICK = os.sysconf("SC_CLK_TCK")


class BenchError(Exception):
    """The benchmark cannot continue; the message says why and what to do."""


class Stopped(BenchError):
    """SIGINT or SIGTERM came."""

    status = 1

    @classmethod
    def watch(cls) -> None:
        """Notes signals from now on. An exception would look like a protocol's failure to the event loop."""

        def note(number: int, frame: FrameType | None) -> None:
            cls.status = 128 + number

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, note)

    @classmethod
    def check(cls) -> None:
        """Raises when a signal was noted."""
        if cls.status != 1:
            raise cls("stopped")


def _stat(pid: str) -> list[str] | None:
    """Fields of /proc/<pid>/stat from the third (state) on, or None when the process is gone."""
    try:
        text = Path("/proc", pid, "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is a name in parentheses and may itself hold spaces and parentheses.
    return text[text.rindex(")") + 2 :].split()


def cpu_seconds(root: int) -> float:
    """User and system time of `root` and all its descendants.

    The time of children that were waited for is part of their parent's figure, so that the sum never falls while the
    tree loses members. Resolution: one clock tick a process (10 ms on most kernels).
    """
    return sum(_tree(root).values()) / TICK


def cpu_seconds_now(root: int) -> float:
    """Time on a processor of all threads that `root` and its descendants have now, to the nanosecond.

    From /proc/<pid>/task/<tid>/schedstat (kernels with CONFIG_SCHED_INFO). For short windows, in which a clock tick
    is too coarse; a thread that ends takes its time along.
    """
    total = 0
    for pid in tree(root):
        for path in Path("/proc", str(pid), "task").glob("*/schedstat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                total += int(path.read_text().split()[0])
    return total / 1e9


def tree(root: int) -> list[int]:
    """`root` and all its descendants."""
    return list(_tree(root))


def _tree(root: int) -> dict[int, int]:
    """Process -> clock ticks used, of `root` and all its descendants."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := _stat(entry)) is not None:
            children.setdefault(int(stat[1]), []).append(int(entry))
            # utime, stime, cutime, cstime: fields 14 to 17 of proc(5)
            ticks[int(entry)] = sum(map(int, stat[11:15]))
    if root not in ticks:
        raise BenchError("a measured process died during the run")
    found: dict[int, int] = {}
    pending = [root]
    while pending:
        pid = pending.pop()
        found[pid] = ticks[pid]
        pending += children.get(pid, [])
    return found


def cores() -> tuple[set[int], set[int]]:
    """CPUs for (the measured subject, worker and load generator): a core each, if there are two."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) == 1:
        return set(allowed), set(allowed)
    return {allowed[0]}, set(allowed[1:3])


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """A server started for the benchmark, in a process group of its own; its output goes to `log`."""

    def __init__(self, name: str, command: Sequence[str], cpus: set[int], log: Path) -> None:
        self.name, self.log = name, log
        with log.open("wb") as output:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: os.sched_setaffinity(0, cpus),
            )

    def wait_ready(self, url: str, seconds: float = 30) -> None:
        """Until GET `url` answers 200."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            Stopped.check()
            if self.popen.poll() is not None:
                raise BenchError(f"{self.name} ended with status {self.popen.returncode}:\n{self.tail()}")
            try:
                with urllib.request.urlopen(url, timeout=1):
                    return
            except (OSError, urllib.error.URLError):
                time.sleep(0.05)
        raise BenchError(f"{self.name} was not ready within {seconds:.0f} s:\n{self.tail()}")

    def wait_listening(self, port: int, seconds: float = 10) -> None:
        """Until it takes connections."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            Stopped.check()
            try:
                with socket.create_connection(("127.0.0.1", port), 1):
                    return
            except OSError:
                time.sleep(0.05)
        raise BenchError(f"{self.name} was not ready within {seconds:.0f} s:\n{self.tail()}")

    def tail(self) -> str:
        """The last lines of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def stop(self) -> None:
        """Ends the process and whatever it started."""
        for number, seconds in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            try:
                os.killpg(self.popen.pid, number)
            except ProcessLookupError:
                break
            try:
                self.popen.wait(seconds)
            except subprocess.TimeoutExpired:
                continue
        self.popen.wait()
