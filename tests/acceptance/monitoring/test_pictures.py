"""The pictures of the dashboards: every panel is in them, with what its queries found."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from tests.acceptance.monitoring.dashboards import FILES, load
from tests.acceptance.monitoring.loaded import Seen, Series
from tests.acceptance.monitoring.pictures import IMAGES, drawn, legend, shown


def test_every_panel_is_drawn_whatever_its_queries_found() -> None:
    for path in FILES:
        panels = load(path)["panels"]
        samples = [(0.0, 0.5), (1.0, math.nan), (2.0, 3.0)]
        for found in ([], [Series({"model": "<m>", "worker": "w"}, samples)]):
            of = {(path.stem, panel["id"], target["refId"]): found for panel in panels for target in panel["targets"]}
            picture = ElementTree.fromstring(drawn(path, Seen(of, {}, {}, (0.0, 2.0))))
            texts = {one.text for one in picture.iter("{http://www.w3.org/2000/svg}text")}
            assert {panel["title"] for panel in panels} <= texts


def test_the_documents_have_a_picture_of_every_dashboard_with_its_panels() -> None:
    for path in FILES:
        picture = (IMAGES / f"dashboard-{path.stem}.svg").read_text()
        titles = [panel["title"] for panel in load(path)["panels"]]
        assert [title for title in titles if f">{title}<" not in picture] == [], "run `make screenshots`"


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (0.012, "s", "12 ms"),
        (2.0, "s", "2 s"),
        (0.5, "percentunit", "50 %"),
        (1234.0, "short", "1.23k"),
        (20_500_000.0, "bytes", "20.5MB"),
        (3.0, "reqps", "3 req/s"),
        (1.0, "bool_on_off", "on"),
        (math.nan, "short", "-"),
    ],
)
def test_values_have_their_unit(value: float, unit: str, said: str) -> None:
    assert shown(value, unit) == said


def test_a_series_is_called_as_the_panel_says() -> None:
    assert legend("{{model}} {{ worker }}", {"model": "m", "worker": "w"}) == "m w"
    assert legend("{{model}}", {}) == "value"
