"""How records are written: moments in ISO 8601, and defaults that are there."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Struct

from gateway.core.written import Moment, always
from gateway.moments import iso, read, write

MIDNIGHT = 1795996800.0


class Line(Struct, omit_defaults=True):
    time: Moment
    name: str = always("")
    on: bool = always(False)
    other: str | None = None


def encoded(line: Line) -> bytes:
    return msgspec.json.encode(line, enc_hook=write)


def decoded(text: bytes) -> Line:
    return msgspec.json.decode(text, type=Line, dec_hook=read)


def test_what_is_always_there_is_written_and_none_is_not() -> None:
    text = encoded(Line(Moment(MIDNIGHT + 0.25)))
    assert text == b'{"time":"2026-11-30T00:00:00.250Z","name":"","on":false}'
    assert decoded(text) == Line(Moment(MIDNIGHT + 0.25))


@pytest.mark.parametrize("seconds", [MIDNIGHT - 0.0001, MIDNIGHT - 0.000_01, MIDNIGHT - 1e-6])
def test_the_day_before_midnight_stays(seconds: float) -> None:
    assert iso(seconds) == "2026-11-29T23:59:59.999Z"
    assert iso(seconds, "seconds") == "2026-11-29T23:59:59Z"


@pytest.mark.parametrize("time", ["1e9", "1000000000", '"2001-09-09T01:46:40Z"', '"2001-09-09T03:46:40.000+02:00"'])
def test_older_forms_are_read(time: str) -> None:
    assert decoded(f'{{"time":{time},"other":null}}'.encode()) == Line(Moment(1e9))


@pytest.mark.parametrize("time", ["true", "null", '"soon"', '"2001-09-09T01:46:40"', "[1]"])
def test_what_is_not_a_moment_is_refused(time: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoded(f'{{"time":{time}}}'.encode())


def test_nothing_else_is_written_by_chance() -> None:
    with pytest.raises(NotImplementedError):
        write(object())
