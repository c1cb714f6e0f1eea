"""`dragoman logs`: which lines pass, how they look, and that a file is followed when it is rotated."""

from __future__ import annotations

import io
import json
from contextlib import ExitStack, suppress
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import httpx
import pytest

from gateway.cli.logs import _MOST_BYTES, _followed
from tests.support.commands import called
from tests.support.harness import Stack
from tests.unit.app.asking import CHAT, key
from tests.unit.cli.terminals import on_a_terminal


def record(**fields: Any) -> dict[str, Any]:
    return {
        "time": "2001-09-09T01:46:40.250Z",
        "level": "info",
        "event": "request",
        "id": "a",
        "key": "app",
        "model": "m",
        "outcome": "ok",
    } | fields


def down(**fields: Any) -> dict[str, Any]:
    return {"time": 1e9, "level": "warning", "event": "worker down", "model": "m", "worker": "http://w"} | fields


LINES = [
    record(),
    record(id="b", key="other", outcome="failed", code="timeout"),
    record(id="c", model="n", asked="gone"),
    record(id="d", model="n", alias="gpt-4o", outcome="refused"),
    down(),
    {"time": 1e9, "level": "error", "event": "log lines lost", "lost": 3},
]


def log(folder: Path, *lines: object) -> str:
    text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)
    (folder / "gateway.log").write_text(text)
    return str(folder / "gateway.log")


def shown(folder: Path, *words: str) -> list[str]:
    """What identifies the lines that pass: the id of a request, or the event."""
    done = called("logs", log(folder, *LINES), "--json", *words)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(record in LINES for record in records)
    assert (done.returncode, bool(done.stderr)) == ((0, False) if records else (1, True))
    return [record.get("id", record["event"]) for record in records]


@pytest.mark.parametrize(
    ("words", "passing"),
    [
        ("", ["a", "b", "c", "d", "worker down", "log lines lost"]),
        ("--key app", ["a", "c", "d"]),
        ("--key app --key other", ["a", "b", "c", "d"]),
        ("--model m", ["a", "b", "worker down"]),
        ("--model gpt-4o", ["d"]),
        ("--model gone", ["c"]),
        ("--outcome failed --outcome refused", ["b", "d"]),
        ("--level warning", ["worker down", "log lines lost"]),
        ("--level error", ["log lines lost"]),
        ("--id b", ["b"]),
        ("--id b --key app", []),
        ("--key nobody", []),
    ],
)
def test_filters_let_pass_what_all_of_them_do(words: str, passing: list[str], tmp_path: Path) -> None:
    assert shown(tmp_path, *words.split()) == passing


def test_wrong_filters_are_refused(tmp_path: Path) -> None:
    file = log(tmp_path, *LINES)
    for words in (("--level", "loud"), ("--outcome", "fine")):
        assert called("logs", file, *words).returncode == 2
    assert called("logs", "--follow").stderr.startswith("dragoman: --follow is for a file")
    missing = called("logs", str(tmp_path / "none"))
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)


def test_a_line_to_read_has_the_day_the_event_and_what_is_there(tmp_path: Path) -> None:
    (line,) = called("logs", log(tmp_path, record(duration_ms=1.5))).stdout.splitlines()
    day, clock, level, event, *fields = line.split()
    assert (day[:3], clock[-4:], level, event) == ("200", ".250", "info", "request")
    assert fields == ["id=a", "key=app", "model=m", "outcome=ok", "duration_ms=1.5"]


def test_a_log_of_an_older_version_is_read(tmp_path: Path) -> None:
    """Up to 0.9 times were Unix seconds, and what was not there was null."""
    new, old = called("logs", log(tmp_path, record(), record(time=1e9 + 0.25, code=None))).stdout.splitlines()
    assert old == new


@pytest.mark.parametrize(
    "line",
    [
        "Traceback (most recent call last):",
        '{"time": 1, "level": "info"',
        '{"time": 1, "level": "info"}',
        '{"time": "now", "level": "info", "event": "request"}',
        '{"time": "2001-09-09T01:46:40", "level": "info", "event": "request"}',
        '{"time": true, "level": "info", "event": "request"}',
        '{"level": "info", "event": "request"}',
        '{"time": 1e300, "level": "info", "event": "request"}',
        '{"time": 1, "level": ["info"], "event": "request"}',
        '{"time": 1, "level": "info", "event": null}',
        "[1]",
        "[" * 9999,
        "",
    ],
)
def test_a_line_that_is_no_record_stays_as_it_is_unless_something_is_looked_for(line: str, tmp_path: Path) -> None:
    file = log(tmp_path, record(), line)
    assert called("logs", file).stdout.splitlines()[1:] == [line]
    assert len(called("logs", file, "--key", "app").stdout.splitlines()) == 1
    assert [json.loads(one) for one in called("logs", file, "--json").stdout.splitlines()] == [record()]


def test_nothing_in_a_log_moves_the_cursor(tmp_path: Path) -> None:
    done = called("logs", log(tmp_path, "a\x1b[2Jb\tc", record(key="\x1b[2J", event="request\r"), "é\u202e"))
    assert "a?[2Jb\tc\n" in done.stdout
    assert all(char.isprintable() or char in "\n\t" for char in done.stdout)


def test_a_line_of_any_length_takes_bounded_memory(tmp_path: Path) -> None:
    done = called("logs", log(tmp_path, "x" * (_MOST_BYTES + 9), record()), "--json")
    assert [json.loads(one) for one in done.stdout.splitlines()] == [record()]


def test_standard_input_is_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.TextIOWrapper(io.BytesIO(json.dumps(record()).encode()))
    monkeypatch.setattr("sys.stdin", text)
    assert json.loads(called("logs", "--json").stdout) == record()


def test_on_a_terminal_states_have_colours(tmp_path: Path) -> None:
    file = log(tmp_path, record(outcome="failed"), down(level="error"))
    plain = called("logs", file)
    seen = on_a_terminal("logs", file)
    assert "outcome=\x1b[31mfailed\x1b[0m" in seen
    assert " \x1b[31merror\x1b[0m" in seen
    assert "\x1b" not in plain.stdout + on_a_terminal("logs", file, NO_COLOR="1") + on_a_terminal(
        "logs", file, "--json"
    )


def test_a_file_is_followed_as_it_grows_and_when_it_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gateway.log"
    file.write_bytes(b"one\ntw")

    def grow(step: int) -> None:
        if step == 0:
            with file.open("ab") as more:
                more.write(b"o\nthree\n")
        elif step == 1:
            file.rename(tmp_path / "gateway.log.1")
        elif step == 2:
            file.write_bytes(b"four\nfive, which is long\n")
        elif step == 3:
            file.write_bytes(b"six\n")  # emptied in its place, as `copytruncate` does
        else:
            raise KeyboardInterrupt

    steps = iter(range(9))
    monkeypatch.setattr("gateway.cli.logs.sleep", lambda seconds: grow(next(steps)))
    found = []
    with ExitStack() as files, suppress(KeyboardInterrupt):
        for line in _followed(str(file), files):
            found.append(line)  # the end is an interrupt
    assert found == [b"one\n", b"two\n", b"three\n", b"four\n", b"five, which is long\n", b"six\n"]


def test_ctrl_c_ends_it_without_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gateway.cli.logs.sleep", interrupted)
    done: CompletedProcess[str] = called("logs", log(tmp_path, record()), "--follow", "--json")
    assert (done.returncode, done.stderr, json.loads(done.stdout)) == (0, "", record())


def test_the_log_of_a_gateway(tmp_path: Path) -> None:
    secret, entry = key("app")
    with Stack(config={"keys": entry}) as stack:
        for name in ("m", "nothing"):
            headers = {"authorization": f"Bearer {secret}", "x-request-id": f"req-{name}"}
            httpx.post(stack.url + "/v1/chat/completions", json={**CHAT, "model": name}, headers=headers, timeout=30)
        records = {one["id"]: one for one in stack.records()}
        file = tmp_path / "gateway.log"
        file.write_bytes(stack.output.getvalue())
    found = called("logs", str(file), "--key", "app", "--outcome", "refused", "--json")
    assert [json.loads(line) for line in found.stdout.splitlines()] == [records["req-nothing"]]
    assert "id=req-m " in called("logs", str(file), "--id", "req-m").stdout
