"""The plots are drawn from tables of the documents."""

from __future__ import annotations

import pytest

from bench.routing.__main__ import HEADER
from bench.routing.plot import TABLE, main, rows
from tests.repo.tree import ROOT


def test_the_page_has_the_table_that_is_drawn() -> None:
    assert HEADER.startswith(TABLE)
    page = (ROOT / "docs" / "routing.md").read_text()
    found = {row.name: row for row in rows(page)}
    assert {"prefix", "prefix x3", "round_robin"} <= set(found)
    assert all(0 <= row.hits <= 1 <= row.work and row.p50_ms <= row.p99_ms for row in found.values())
    assert "images/routing.png" in page
    assert (ROOT / "docs" / "images" / "routing.png").read_bytes().startswith(b"\x89PNG")


def test_a_page_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no table"):
        rows("# Routing\n")
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err
