"""The alerts of the chart: about metrics that there are, each with its part of the runbooks and with both cases.

That they fire, and are quiet, is tested by `make test-monitoring` (test_prometheus.py).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.monitoring.figures import KNOWN, OF_TARGETS
from tests.acceptance.monitoring.promql import asked
from tests.repo.test_docs import anchors
from tests.repo.tree import ROOT
from tests.support.harness import Stack
from tests.unit.observe.test_metrics import samples

FILES = sorted((ROOT / "helm" / "dragoman" / "alerts").glob("*.yaml"))
RULES: list[dict[str, Any]] = [
    rule for path in FILES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]
]
CASES: list[dict[str, Any]] = yaml.safe_load(
    (ROOT / "tests" / "acceptance" / "monitoring" / "alerts.yaml").read_text()
)["tests"]
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


# -- counters begin at 0 ----------------------------------------------------------------------------------------------

# A series that appears with its first event shows Prometheus no increase. Of these alerts that delays the first sign by
# one reading of the metrics: they ask for many events over minutes.
BORN_LATER = {
    "dragoman_requests_total": "one status of many, asked for over 20 minutes",
    "dragoman_time_to_first_token_seconds_bucket": "a share of many streams",
}
WATCHED = {
    selector: rule["alert"]
    for rule in RULES
    for selector in re.findall(r"(?:increase|rate|resets)\((\w+(?:\{[^}]*\})?)\[", rule["expr"])
    if selector.partition("{")[0] not in BORN_LATER
}


def _matches(selector: str, name: str, labels: dict[str, str]) -> bool:
    metric, _, rest = selector.rstrip("}").partition("{")
    tests = re.findall(r'(\w+)(=|!=)"([^"]*)"', rest)
    return metric == name and all((labels.get(one) == value) is (sign == "=") for one, sign, value in tests)


def test_each_counter_that_an_alert_watches_is_there_before_its_first_event(tmp_path: Path) -> None:
    """As a gateway's first page shows it: for every model and every worker that is configured."""
    config = {
        "models": {
            "m": {"kv_events": {}, "price": {"input": 1, "output": 1}},
            "n": {"backend": "openai", "workers": ["http://127.0.0.1:9"]},
        },
        "accounting": {"redis_stream": "usage"},
        "spend": {"currency": "EUR"},
        "budgets": [{"name": "month", "amount": 1}],
        "redis": {"addresses": ["127.0.0.1:9"]},
        "batches": {"directory": str(tmp_path)},
    }
    with Stack(config=config) as stack:
        page = samples(stack.gateway.metrics.page().decode())
        workers = set(stack.gateway.deployment.workers)
    shown = [(name, dict(labels), value) for (name, labels), value in page.items()]
    assert len(WATCHED) > 8
    for selector in WATCHED:
        found = [(labels, value) for name, labels, value in shown if _matches(selector, name, labels)]
        assert found, selector
        if "bucket" not in selector and "_count" not in selector:
            assert {value for _, value in found} == {0.0}, selector
        label_names = KNOWN[selector.partition("{")[0]]
        if "worker" in label_names and "cache" not in selector:
            assert {(labels["model"], labels["worker"]) for labels, _ in found} == workers
        elif "model" in label_names and "cache" not in selector:
            assert {labels["model"] for labels, _ in found} == {"m", "n"}


@EACH
def test_cases_in_which_it_fires_begin_as_a_gateway_does(rule: dict[str, Any]) -> None:
    counted = asked(rule["expr"]).counted
    for case in cases(rule["alert"])[0]:
        for series in case["input_series"]:
            if series["series"].partition("{")[0] in counted:
                assert re.match(r"0[x+ ]", series["values"]), (case["name"], series)


@EACH
def test_releases_are_kept_apart(rule: dict[str, Any]) -> None:
    """What is summed over gateways is summed over those of one release: its namespace, and its job."""
    for labels in re.findall(r"\b(?:by|on) \(([^)]+)\)", rule["expr"]):
        assert {"namespace", "job"} <= set(labels.split(", ")) or rule["alert"] == "DragomanScrapeFailing"


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
