"""The dashboards of the chart: as their description says, whole, readable, and about metrics that there are.

That every query finds data is tested by `make test-monitoring` (test_prometheus.py).
"""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from gateway.observe.catalogue import FIGURES
from scripts.dashboards.__main__ import main
from tests.acceptance.monitoring.dashboards import FILES, FOLDER, VARIABLE, load, panels
from tests.acceptance.monitoring.figures import KNOWN, OF_TARGETS
from tests.acceptance.monitoring.promql import asked

NAMES = {"overview", "model", "team", "limits", "workers"}
BUILT_IN = {"__rate_interval", "__range"}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
ALL = [pytest.param(panel, id=f"{name}: {panel['title']}") for name, panel in panels()]


def test_there_is_one_for_each_subject() -> None:
    assert {path.stem for path in FILES} == NAMES


def test_they_are_what_their_description_makes(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_text() for path in FOLDER.iterdir()}, "run `make dashboards`"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_dashboard_can_be_loaded_beside_the_others(path: Path) -> None:
    board = load(path)
    assert board["uid"] == f"dragoman-{path.stem}"
    assert board["title"]
    assert board["description"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    for one, other in combinations(board["panels"], 2):
        assert not overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_reader_chooses_the_data_source_and_every_variable_is_declared(path: Path) -> None:
    board = load(path)
    first, *others = board["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    for one in others:
        metric, label = re.fullmatch(r"label_values\((\S+), (\w+)\)", one["definition"]).groups()  # type: ignore[union-attr] # Anything else fails the test, too.
        assert one["datasource"] == SOURCE
        assert metric in KNOWN
        assert label in KNOWN[metric] | OF_TARGETS
    declared = {one["name"] for one in board["templating"]["list"]}
    used = {a or b for a, b in VARIABLE.findall(path.read_text())} - BUILT_IN - {"__all"}
    assert used == declared


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_panel_obeys_the_choice_of_a_model(path: Path) -> None:
    """Gateways label it `model`, vLLM `model_name`. What has neither label is about gateways as a whole."""
    board = load(path)
    if "model" not in {one["name"] for one in board["templating"]["list"]}:
        return
    for panel in board["panels"]:
        for target in panel["targets"]:
            for metric, braces in re.findall(r"\b((?:dragoman_|vllm:)\w+)(\{[^}]*\})", target["expr"]):
                (label,) = {"model", "model_name"} & KNOWN[metric] or {""}
                assert not label or f'{label}=~"$model"' in braces, (panel["title"], target["expr"])


@pytest.mark.parametrize("panel", ALL)
def test_a_panel_says_what_it_shows_and_in_which_unit(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    assert {str(one["datasource"]) for one in [panel, *panel["targets"]]} == {str(SOURCE)}


@pytest.mark.parametrize("panel", ALL)
def test_queries_ask_for_metrics_and_labels_that_there_are(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        found = asked(target["expr"])
        there: set[str] = set(OF_TARGETS)
        assert found.metrics, target
        for metric, labels in found.metrics.items():
            assert metric in KNOWN, target
            assert labels <= KNOWN[metric] | OF_TARGETS, target
            there |= KNOWN[metric]
        assert found.grouped <= there, target
        assert all('namespace=~"$namespace"' in selector for selector in found.selectors), target
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= found.grouped, target
        assert all(name.endswith(("_total", "_bucket", "_count", "_sum")) for name in found.counted), target


def test_every_metric_of_the_gateway_is_on_a_dashboard() -> None:
    """Those by OpenTelemetry's names say the same once more."""
    shown = {metric for _, panel in panels() for one in panel["targets"] for metric in asked(one["expr"]).metrics}
    missing = [
        name for name in FIGURES if not name.startswith("gen_ai_") and shown.isdisjoint({name, f"{name}_bucket"})
    ]
    assert missing == []


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(
        one[at] < other[at] + other[size] and other[at] < one[at] + one[size] for at, size in (("x", "w"), ("y", "h"))
    )
