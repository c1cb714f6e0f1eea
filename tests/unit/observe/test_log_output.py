"""The output of the log: nobody waits for it, and what it loses is counted."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import pytest

from gateway.observe.log import Log
from tests.unit.observe.logs import Output, record


class Blocked:
    """An output whose reader does not read."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go = threading.Event()
        self.taken = b""

    def write(self, data: bytes, /) -> int:
        self.entered.set()
        self.go.wait(60)
        self.taken += data
        return len(data)


def test_a_line_that_is_no_text_takes_no_other_along(log: Log, output: Output) -> None:
    log.event("info", "before")
    log.event("info", "listening", config="\udcff.yaml")
    log.event("info", "after")
    log.close()
    assert [line["event"] for line in output.lines()] == ["before", "log lines lost", "after"]
    assert log.lost == 1


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_line_that_nobody_expected_does_not_end_the_log(output: Output, form: str) -> None:
    log = Log("info", True, output, form)
    log.event("info", "before")
    log.event("info", "odd", value=object())
    log.event("info", "between")
    log.event("info", "after")
    log.close()
    log.writer.join(60)
    events = ("before", "odd", "between", "after", "log lines lost")
    found = [event for line in output.getvalue().decode().splitlines() for event in events if event in line]
    assert found == ["before", "log lines lost", "between", "after"]
    assert log.lost == 1


def test_prompts_that_wait_for_the_output_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = "\N{GRINNING FACE}" + "x" * 96  # 100 bytes as they come, four times that as text
    monkeypatch.setattr("gateway.observe.log._MOST_WAITING_BYTES", 2 * sys.getsizeof(wide))
    out = Blocked()
    log = Log("info", True, out)
    log.event("info", "first")
    assert out.entered.wait(60)
    for number in range(4):
        log.prompt(str(number), wide.encode())
    log.event("info", "last")
    assert log.lost == 2
    out.go.set()
    log.close()
    log.writer.join(60)
    lines = [json.loads(line) for line in out.taken.splitlines()]
    assert [line["event"] for line in lines] == ["first", "prompt", "prompt", "last", "log lines lost"]


def test_close_writes_what_is_left(output: Output) -> None:
    log = Log("info", True, output)
    for number in range(1000):
        log.event("info", "n", number=number)
    log.close()
    assert [line["number"] for line in output.lines()] == list(range(1000))


def test_nobody_waits_for_a_blocked_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.observe.log._BACKLOG", 500)
    monkeypatch.setattr("gateway.observe.log._LAST_WORDS_S", 0.05)
    out = Blocked()
    log = Log("info", True, out)
    log.event("info", "first")
    assert out.entered.wait(30)
    began = time.monotonic()
    for _ in range(1000):
        log.request(record())
    assert time.monotonic() - began < 20
    assert log.lost == 500
    log.close()
    assert time.monotonic() - began < 20
    out.go.set()
    log.writer.join(30)
    lines = [json.loads(line) for line in out.taken.splitlines()]
    assert [line["event"] for line in lines] == ["first", *["request"] * 500, "log lines lost"]
    assert lines[-1]["lost"] == 500


class Failing(Output):
    """Takes `room` bytes, then fails with `number` until there is more room, as a full disk or a pipe does."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.room = 10

    def write(self, data: Any, /) -> int:
        if self.room <= 0:
            raise OSError(self.number, os.strerror(self.number))
        taken = super().write(bytes(data[: self.room]))
        self.room -= taken
        return taken


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EPIPE])
def test_a_log_that_could_not_be_written_goes_on_and_counts_what_it_lost(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.observe.log._BACKLOG", 3)
    monkeypatch.setattr("gateway.observe.log._BATCH_S", 60)  # its own thread stays out of it
    out = Failing(number)
    log = Log("info", True, out)
    log.event("info", "first")
    log.flush()
    for name in ("second", "third", "fourth", "fifth", "sixth"):
        log.event("info", name)
        log.flush()
    assert len(out.getvalue()) == 10, "no more than the room there was"
    out.room = 1000
    log.flush()
    assert [line["event"] for line in out.lines()] == ["first", "second", "third", "fourth", "log lines lost"]
    assert out.lines()[-1]["lost"] == 2
    log.event("info", "seventh")
    log.flush()
    assert out.lines()[-1]["event"] == "seventh", "they are told once"
    assert log.lost == 2, "and counted for good"
    log.event("info", "afterwards")
    log.flush()
    assert out.lines()[-1]["event"] == "afterwards"
    log.close()


def test_the_log_of_a_process_goes_on_when_there_is_room_again() -> None:
    """By its own thread, on a file that the kernel refuses to let grow (RLIMIT_FSIZE)."""
    script = (
        "import resource, signal, sys, time\n"
        "from gateway.observe.log import Log\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50, resource.RLIM_INFINITY))\n"
        "log = Log('info', True)\n"
        "log.event('info', 'first', pad='x' * 100)\n"
        "while not log._unwritten: time.sleep(0.01)\n"
        "log.event('info', 'second')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "log.close()\n"
    )
    with tempfile.TemporaryFile() as file:
        subprocess.run([sys.executable, "-c", script], stdout=file, check=True, timeout=60)
        file.seek(0)
        assert [json.loads(line)["event"] for line in file.read().splitlines()] == ["first", "second"]


def test_an_output_without_a_reader_ends_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb", buffering=0) as out:
        log = Log("info", True, out)
        log.event("info", "nobody hears")
        log.request(record())
        log.close()
        log.writer.join(30)
        assert not log.writer.is_alive()


def test_a_closed_output_ends_the_log() -> None:
    out = io.BytesIO()
    out.close()
    log = Log("info", True, out)
    log.event("info", "nobody hears")
    log.writer.join(30)
    assert not log.writer.is_alive()
    log.close()


def test_an_output_that_takes_little_at_a_time_gets_all() -> None:
    class Grudging(Output):
        turn = 0

        def write(self, data: Any, /) -> int:
            self.turn += 1
            return None if self.turn % 3 == 0 else super().write(bytes(data[:7]))  # type: ignore[return-value]

    out = Grudging()
    log = Log("info", True, out)
    log.event("info", "a few words")
    log.close()
    assert out.lines()[0]["event"] == "a few words"
