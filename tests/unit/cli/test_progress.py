"""The line that says how far a command is."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from gateway.cli import progress
from gateway.cli.progress import Progress, share
from tests.unit.cli.terminals import Terminal


def shown(error: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    moments = iter([1.0, 1.05, 1.2, 9.0])
    monkeypatch.setattr("sys.stderr", error)
    monkeypatch.setattr(progress, "monotonic", lambda: next(moments))
    with Progress() as line:
        for text in ("one", "two", "three"):
            line.show(text)
    return error.getvalue()


def test_on_a_terminal_it_is_replaced_now_and_then_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(Terminal(), monkeypatch) == "\rone\x1b[K\rthree\x1b[K\r\x1b[K"


def test_elsewhere_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(io.StringIO(), monkeypatch) == ""


def test_it_is_gone_after_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", error := Terminal())
    with contextlib.suppress(ValueError), Progress() as line:
        line.show("one")
        raise ValueError
    assert error.getvalue().endswith("\r\x1b[K")


def test_shares() -> None:
    assert [share(*one) for one in ((0, 3), (1, 3), (3, 3), (0, 0))] == ["0 %", "33 %", "100 %", "100 %"]


def test_each_command_that_takes_long_shows_it() -> None:
    """backup, restore, keys import, spend --rebuild."""
    folder = Path(progress.__file__).parent
    users = {path.stem for path in folder.glob("*.py") if "Progress()" in path.read_text()}
    assert users == {"backup", "restore", "keys", "spend"}
