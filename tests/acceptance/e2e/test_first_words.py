"""A newcomer's first minutes beside a build: the request that `make run` prints is answered, and is its last line."""

from __future__ import annotations

import sys

import pytest

from bench.first_words import busy, start
from tests.support.ports import free_port

# Its busy loops take all CPUs from the tests beside it.
pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="busy loops are pinned to CPUs")]


def test_the_printed_request_is_answered_beside_a_busy_loop_on_each_cpu() -> None:
    with busy():
        found = start(free_port(), free_port())
    assert found.after == "", "nothing is printed behind the request"
    assert found.text is not None, "the stream ends as it should"
    assert "Tokyo" in found.text
