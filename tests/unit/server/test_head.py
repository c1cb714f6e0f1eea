"""Response heads."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

import pytest

from gateway.server.head import response_head


def test_a_head_is_its_status_line_the_date_and_the_fields() -> None:
    head = response_head(404, [(b"a", b"b"), (b"c", b"")], b"connection: close")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 404 Not Found"
    assert lines[1].startswith(b"date: ")
    assert lines[2:] == [b"a: b", b"c: ", b"connection: close", b"", b""]
    assert response_head(599, []).startswith(b"HTTP/1.1 599 \r\n")


@pytest.mark.parametrize("text", [b"a\r\nb: c", b"a\nb", b"a\rb", b"\r\n\r\n"])
def test_no_field_can_forge_a_line(text: bytes) -> None:
    for headers in ([(b"a", text)], [(text, b"a")]):
        with pytest.raises(ValueError, match="line ending"):
            response_head(200, headers)


def test_the_date_is_that_of_the_current_second(monkeypatch: pytest.MonkeyPatch) -> None:
    for now in (1_700_000_000.0, 1_700_000_000.9, 1_700_000_001.0, 1_800_000_000.5, 1_700_000_000.0):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        date = response_head(200, []).split(b"\r\n")[1].removeprefix(b"date: ").decode()
        assert parsedate_to_datetime(date).timestamp() == int(now)
        assert date.endswith(" GMT")
