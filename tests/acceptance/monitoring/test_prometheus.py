"""With a real Prometheus (`make test-monitoring`): alerts fire when they should, and every panel finds data."""

from __future__ import annotations

import asyncio
import math
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.monitoring import loaded
from tests.acceptance.monitoring.dashboards import FILES, load, panels
from tests.acceptance.monitoring.test_alerts import RULES
from tests.repo.tree import ROOT

pytestmark = pytest.mark.prometheus

EVERY = [(name, panel, target) for name, panel in panels() for target in panel["targets"] if not loaded.rare(target)]
EACH = pytest.mark.parametrize(
    ("board", "panel", "target"),
    [pytest.param(*one, id=f"{one[0]}: {one[1]['title']} {one[2]['refId']}") for one in EVERY],
)
ZERO = {
    "Bugs",
    "Decided alone",
    "Log lines lost",
    "Lost usage records",
    "Models without a worker",
    "Other models, second workers",
    "vLLM: preemptions",
    "vLLM: requests waiting",
}
"""Panels of which only 0 is good news, or whose figure the simulated worker never has."""


def tells(panel: Mapping[str, Any], found: Sequence[loaded.Series]) -> bool:
    """Whether the panel shows something with what its query found."""
    values = [value for one in found for _, value in one.samples if math.isfinite(value)]
    return any(values) or (bool(values) and panel["title"] in ZERO)


@pytest.fixture(scope="module")
def seen() -> loaded.Seen:
    return asyncio.run(loaded.seen(tells))


def test_promtool_takes_the_alerts() -> None:
    """One test for both, so that every slice has the cases."""
    for words in (
        "check rules helm/dragoman/alerts/dragoman.yaml",
        "test rules tests/acceptance/monitoring/alerts.yaml",
    ):
        done = subprocess.run(["promtool", *words.split()], cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_model_that_wakes_pages_nobody_and_a_broken_one_does(tmp_path: Path) -> None:
    """With the name of a model that sleeps, as `tests/acceptance/helm` shows that the chart puts it in."""
    rules = (ROOT / "helm/dragoman/alerts/dragoman.yaml").read_text()
    (tmp_path / "alerts.yaml").write_text(rules.replace('{model=~"$^"}', '{model=~"other|naps"}'))
    (tmp_path / "cases.yaml").write_text((ROOT / "tests/acceptance/monitoring/sleeping.yaml").read_text())
    done = subprocess.run(
        ["promtool", "test", "rules", "cases.yaml"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


@EACH
def test_every_query_finds_data(seen: loaded.Seen, board: str, panel: dict[str, Any], target: dict[str, Any]) -> None:
    found = seen.panels[board, panel["id"], target["refId"]]
    assert tells(panel, found), (target["expr"], found)


def test_panels_that_may_show_nothing_but_zeroes_exist() -> None:
    assert {panel["title"] for _, panel, _ in EVERY} >= ZERO


@pytest.mark.parametrize(
    ("board", "variable"),
    [(path.stem, one["name"]) for path in FILES for one in load(path)["templating"]["list"][1:]],
)
def test_every_variable_has_something_to_choose(seen: loaded.Seen, board: str, variable: str) -> None:
    assert seen.choices[board, variable]


def test_prometheus_evaluates_every_alert(seen: loaded.Seen) -> None:
    assert seen.rules.keys() == {rule["alert"] for rule in RULES}
    assert [(name, rule.get("lastError")) for name, rule in seen.rules.items() if rule["health"] != "ok"] == []
