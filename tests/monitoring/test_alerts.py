"""The alerts of the chart: about metrics that there are, each with its part of the runbooks and with both cases.

That they fire, and are quiet, is tested by `make test-monitoring` (test_prometheus.py).
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.monitoring.figures import KNOWN, OF_TARGETS
from tests.monitoring.promql import asked
from tests.repo.test_docs import anchors
from tests.repo.tree import ROOT

FILES = sorted((ROOT / "helm" / "dragoman" / "alerts").glob("*.yaml"))
RULES: list[dict[str, Any]] = [
    rule for path in FILES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]
]
CASES: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests" / "monitoring" / "alerts.yaml").read_text())["tests"]
PAGE = (ROOT / "docs" / "runbooks.md").read_text()
EACH = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])


def cases(alert: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Those in which it fires, and those in which it is quiet."""
    firing: list[dict[str, Any]] = []
    quiet: list[dict[str, Any]] = []
    for case in CASES:
        for test in case["alert_rule_test"]:
            if test["alertname"] == alert:
                (firing if test.get("exp_alerts") else quiet).append(case)
    return firing, quiet


def test_names_are_unique() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names))
    assert len(names) > 10


@EACH
def test_it_asks_for_metrics_and_labels_that_there_are(rule: dict[str, Any]) -> None:
    found = asked(rule["expr"])
    there = set(OF_TARGETS)
    for metric, labels in found.metrics.items():
        assert metric in KNOWN
        assert labels <= KNOWN[metric] | OF_TARGETS
        there |= KNOWN[metric]
    assert found.grouped <= there
    texts = " ".join(rule["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", texts)) <= there


@EACH
def test_it_fires_in_one_case_and_is_quiet_in_another(rule: dict[str, Any]) -> None:
    firing, quiet = cases(rule["alert"])
    assert [case["name"] for case in firing if not case["name"].startswith(f"{rule['alert']} fires")] == []
    assert [case["name"] for case in quiet if not case["name"].startswith(f"{rule['alert']} is quiet")] == []
    assert firing
    assert quiet
    for case in quiet:
        # Without its metrics any alert is quiet.
        held = {series["series"].partition("{")[0] for series in case["input_series"]}
        assert asked(rule["expr"]).metrics.keys() <= held, case["name"]


@EACH
def test_it_leads_to_its_runbook(rule: dict[str, Any]) -> None:
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{rule['alert'].lower()}"
    assert rule["alert"].lower() in anchors(PAGE)


@EACH
def test_its_runbook_says_what_it_means_and_what_to_do(rule: dict[str, Any]) -> None:
    part = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    (text,) = [one for one in part if one.splitlines()[0] == rule["alert"]]
    assert [word for word in ("**Means.**", "**Look.**", "**Do.**") if word not in text] == []


def test_no_runbook_is_left_of_an_alert_that_is_gone() -> None:
    assert set(re.findall(r"^## (Dragoman\w+)$", PAGE, re.MULTILINE)) == {rule["alert"] for rule in RULES}
