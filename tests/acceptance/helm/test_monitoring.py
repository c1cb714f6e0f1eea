"""Alerts, dashboards and queries: whatever files are there are taken, and they ask for metrics that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.observe.catalogue import FIGURES
from tests.acceptance.helm.chart import CHART, VALUES, Refused, copy, find, objects, parsed, template
from tests.support.harness import Stack

ALERTS = sorted((CHART / "alerts").glob("*.yaml"))
ANY = '{job!=""}'
METRIC = re.compile(r"\bdragoman_[a-z_]+")


def rules(path: Path) -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(path.read_text())["groups"]:
        yield from group["rules"]


def test_there_are_alerts() -> None:
    assert ALERTS


@pytest.mark.parametrize("path", ALERTS, ids=lambda path: path.stem)
def test_alerts_ask_for_metrics_that_there_are_and_say_what_they_mean(path: Path) -> None:
    for rule in rules(path):
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("critical", "warning"), rule
            assert {"summary", "description"} <= set(rule["annotations"]), rule
        asked = {re.sub(r"_(bucket|sum|count)$", "", name) for name in METRIC.findall(rule["expr"])}
        assert asked <= FIGURES.keys(), rule


def test_prometheus_reads_the_files_that_the_chart_renders() -> None:
    """Of each file, the object's spec is its content; gateways are those of the release, if its Service is scraped."""
    own = '{namespace="llm",job="dragoman-metrics"}'
    among = [one for one in objects("everything") if one["kind"] == "PrometheusRule"]
    assert [one["spec"] for one in among] == [yaml.safe_load(path.read_text().replace(ANY, own)) for path in ALERTS]
    unknown = template(VALUES / "everything.yaml", CHART, "--set", "monitoring.serviceMonitor.enabled=false")
    among = [one for one in parsed(unknown) if one["kind"] == "PrometheusRule"]
    assert [one["spec"] for one in among] == [yaml.safe_load(path.read_text()) for path in ALERTS]
    assert any(ANY in path.read_text() for path in ALERTS)


def test_alerts_know_the_models_that_sleep() -> None:
    """Where none does, the expression matches none."""
    ask = ("--set", "monitoring.prometheusRule.enabled=true")
    written = {
        "autoscaled": (
            "--set-json",
            'models.Nap/8\\.1={"model":"o/n","autoscaling":{"enabled":true,"minReplicas":0}}',
        ),
        "minimal": (),
    }
    expected = {"autoscaled": "Nap/8[.]1|seldom", "minimal": "$^"}
    for values, more in written.items():
        rule = find(parsed(template(VALUES / f"{values}.yaml", CHART, *ask, *more)), "PrometheusRule")
        found = [
            pattern
            for group in rule["spec"]["groups"]
            for one in group["rules"]
            for pattern in re.findall(r'\{model=~"([^"]*)"\}', one["expr"])
        ]
        assert found == [expected[values]] * 2


def test_runbooks_are_where_the_values_say() -> None:
    where = "monitoring.prometheusRule.filesUrl=https://git/x/"
    rule = find(parsed(template(VALUES / "everything.yaml", CHART, "--set", where)), "PrometheusRule")
    links = [one["annotations"]["runbook_url"] for group in rule["spec"]["groups"] for one in group["rules"]]
    assert {link.partition("#")[0] for link in links} == {"https://git/x/docs/runbooks.md"}


def test_further_files_are_taken_as_they_are(tmp_path: Path) -> None:
    chart = copy(tmp_path)
    dashboard = {"title": "Overview", "panels": [{"legendFormat": "{{model}}"}]}
    (chart / "dashboards").mkdir(exist_ok=True)
    (chart / "dashboards" / "mine.json").write_text(json.dumps(dashboard, indent=2))
    (chart / "alerts" / "more.yaml").write_text(
        "groups:\n  - name: more\n    rules:\n      - {alert: More, expr: up == 0}\n"
    )
    among = parsed(template(VALUES / "everything.yaml", chart))
    held = find(among, "ConfigMap", "dragoman-dashboard-mine")
    board = json.loads(held["data"]["llm_dragoman_mine.json"])
    assert board.pop("uid").startswith("mine-")
    assert board == {**dashboard, "title": "Overview (llm/dragoman)"}
    assert held["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert held["metadata"]["annotations"] == {"grafana_folder": "Dragoman"}
    assert find(among, "PrometheusRule", "dragoman-more")["spec"]["groups"][0]["rules"][0]["alert"] == "More"


def test_queries_of_the_autoscaler_ask_for_metrics_that_there_are() -> None:
    asked = set(METRIC.findall((CHART / "templates" / "_queries.tpl").read_text()))
    assert asked
    assert asked <= FIGURES.keys()


def test_a_request_to_a_model_without_workers_is_counted_which_wakes_it(unused_tcp_port: int) -> None:
    asleep = {"models": {"m": {"backend": "vllm", "workers": [f"http://127.0.0.1:{unused_tcp_port}"]}}}
    with Stack((), config=asleep) as stack:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        assert httpx.post(f"{stack.url}/v1/chat/completions", json=body).status_code in (502, 503)
        page = httpx.get(f"{stack.url}/metrics").text
    counted = [line for line in page.splitlines() if line.startswith("dragoman_requests_total") and 'model="m"' in line]
    assert [line.rpartition(" ")[2] for line in counted] == ["1.0"]


def test_nothing_of_it_is_rendered_unasked() -> None:
    kinds = {one["kind"] for one in objects("minimal")}
    assert kinds.isdisjoint({"ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject", "Ingress", "HTTPRoute"})


@pytest.mark.long
def test_every_alert_takes_a_threshold_or_says_that_it_has_none(tmp_path: Path) -> None:
    """Nothing but the number changes in its expression."""
    compared = {
        rule["alert"]: number[1]
        for path in ALERTS
        for rule in rules(path)
        if "alert" in rule and (number := re.search(r"[<>=]=? *(\d[\d.]*)", rule["expr"]))
    }
    others = {rule["alert"] for path in ALERTS for rule in rules(path) if "alert" in rule} - set(compared)
    assert len(compared) > 10
    changed = {name: {"threshold": 0.0625} for name in compared}

    def render(alerts: dict[str, Any]) -> dict[str, str]:
        values = yaml.safe_load((VALUES / "everything.yaml").read_text())
        values["monitoring"]["prometheusRule"]["alerts"] = alerts
        (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
        rule = find(parsed(template(tmp_path / "values.yaml")), "PrometheusRule")
        return {one["alert"]: one["expr"] for group in rule["spec"]["groups"] for one in group["rules"]}

    before, after = render({}), render(changed)
    for name, known in compared.items():
        place = re.compile(rf"([<>=]=? *){re.escape(known)}(?![\d.])")
        assert after[name] == place.sub(r"\g<1>0.0625", before[name]), name
        assert after[name] != before[name], name
    for name in others:
        with pytest.raises(Refused, match="compares with no number"):
            render({name: {"threshold": 1}})
