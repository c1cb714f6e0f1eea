"""The tables of docs/libraries.md name what is there. tests/repo/test_pages.py makes the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.libraries.library import DRIVERS, LIBRARIES, NODE, TABLE, Library, version
from tests.acceptance.libraries.readme import AGENTS, VARIABLES, readme_lines
from tests.acceptance.libraries.table import configuration

NODE_DRIVERS = {path.stem for path in Path(__file__).with_name("node").glob("*.mjs")} - {"drive"}


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: f"{one.environment}-{one.driver}")
def test_a_row(library: Library) -> None:
    line = configuration(library)
    assert "\n" not in line
    assert "http://127.0.0.1:8080" in line
    assert "url" not in line.replace("base_url", "").replace("_url", "").replace("URL", "")
    assert version(library)[0].isdigit()


def test_every_driver_has_a_row() -> None:
    assert {one.driver for one in LIBRARIES if one.environment == NODE} == NODE_DRIVERS
    assert {one.driver for one in LIBRARIES if one.environment != NODE} == {path.stem for path in DRIVERS.glob("*.py")}


def test_the_readme_has_a_line_for_every_client_of_the_agents() -> None:
    assert set(readme_lines()) == {*AGENTS, *VARIABLES, *(one.name for one in TABLE)}
    assert len({one.name for one in TABLE}) == len(TABLE)
