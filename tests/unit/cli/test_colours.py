"""Colours: where there are some, and of which words."""

from __future__ import annotations

import io
import re

import pytest

from gateway.cli.colours import coloured
from tests.unit.cli.terminals import Terminal


def painted(line: str) -> list[str]:
    """The words that have a colour."""
    found = coloured(line, Terminal())
    assert re.sub(r"\x1b\[\d*m", "", found) == line
    return re.findall(r"\x1b\[3\dm(.*?)\x1b\[0m", found)


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("m  http://gpu-1:8000  ready      3  8", ["ready"]),
        ("m  http://gpu-1:8000  down: connection_refused (does not listen)  0  -", ["down"]),
        ("m  http://gpu-1:8000  ready, failed last: timeout", ["ready"]),
        ("dragoman 1.2.3: no worker is ready, up 5s, 0 under way, no limits", ["no worker is ready"]),
        ("dragoman 1.2.3: ready (not read yet: keys), up 5s", ["ready"]),
        ("app  blue  abcd  revoked  store", ["revoked"]),
        ("2026-11-29 12:34:56.789 warning worker down  model=m", ["warning"]),
        ("2026-11-29 12:34:56.789 info    request  outcome=failed", ["failed"]),
        ("gateway.yaml: 1 model, 0 keys, 13 dialects: good, but for 2 warnings", ["good"]),
        ("warning: limit few, model m: it is small", ["warning"]),
        ("worker: m http://w: down: timeout: the worker did not answer", ["down"]),
        ("already  errors  downtown  model=ready-made  a ready one", []),
    ],
)
def test_states_have_colours_and_no_other_words(line: str, words: list[str]) -> None:
    assert painted(line) == words


def test_there_are_none_for_who_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "m  w  ready"
    assert coloured(line, io.StringIO()) == line
    for name, value, wanted in (("NO_COLOR", "1", False), ("NO_COLOR", "", True), ("TERM", "dumb", False)):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            assert (coloured(line, Terminal()) != line) == wanted
