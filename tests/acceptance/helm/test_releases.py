"""Two releases in one namespace: what Prometheus, KEDA and Grafana know of one is not the other's."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest

from tests.acceptance.helm.chart import CHART, KUBERNETES, SETS, VALUES, Object, find, helm, objects, parsed, template

SELECTOR = re.compile(r"[a-z_:]+\{([^}]*)\}")


@cache
def release(name: str, values: str, *more: str) -> tuple[Object, ...]:
    file = VALUES / f"{values}.yaml"
    done = helm("template", name, CHART, "--namespace", "llm", "--kube-version", KUBERNETES, "--values", file, *more)
    assert done.returncode == 0, done.stderr
    return tuple(parsed(done.stdout))


def queries(among: tuple[Object, ...]) -> list[str]:
    """The queries of all triggers."""
    scaled = [one for one in among if one["kind"] == "ScaledObject"]
    return [trigger["metadata"]["query"] for one in scaled for trigger in one["spec"]["triggers"]]


def boards(among: tuple[Object, ...]) -> list[tuple[str, dict[str, Any]]]:
    """(file, dashboard) of all dashboards."""
    held = [one["data"] for one in among if one["metadata"]["name"].rpartition("-")[0].endswith("-dashboard")]
    return [(file, json.loads(text)) for data in held for file, text in data.items()]


@pytest.mark.parametrize("more", [(), ("--set", "monitoring.podMonitor.namespace=monitoring")], ids=["own", "other"])
def test_every_series_of_a_query_is_that_of_one_release(more: tuple[str, ...]) -> None:
    """The job is what a Prometheus operator makes of the monitor: a Service's name, or a PodMonitor's place."""
    for name in ("dragoman", "second"):
        among = release(name, "autoscaled", *more)
        monitor = find(among, "PodMonitor")["metadata"]
        service = next(
            one for one in among if one["kind"] == "Service" and one["metadata"]["name"].endswith("-metrics")
        )
        workers = f'job="{monitor.get("namespace", "llm")}/{monitor["name"]}"'
        found = [selector for query in queries(among) for selector in SELECTOR.finditer(query)]
        assert len(found) > 5
        for selector in found:
            job = workers if selector[0].startswith("vllm:") else f'job="{service["metadata"]["name"]}"'
            assert {'namespace="llm"', job} <= set(selector[1].split(","))
    assert set(queries(release("dragoman", "autoscaled"))).isdisjoint(queries(release("second", "autoscaled")))


def test_a_job_of_another_scrape_is_named_in_queries_and_alerts() -> None:
    given = "monitoring.serviceMonitor.job=gateways,monitoring.podMonitor.job=engines"
    among = release("dragoman", "autoscaled", "--set", f"{given},monitoring.prometheusRule.enabled=true")
    assert all('job="gateways"' in query and 'job="engines"' in query for query in queries(among))
    assert 'job="gateways"' in json.dumps(find(among, "PrometheusRule")).replace('\\"', '"')


@pytest.mark.long
def test_no_dashboard_of_one_release_takes_the_place_of_the_others() -> None:
    asked = ("--set", "monitoring.dashboards.enabled=true")
    one, other = (boards(release(name, "minimal", *asked)) for name in ("dragoman", "second"))
    assert len(one) == len(other) == len(list((CHART / "dashboards").glob("*.json")))
    for key in ("uid", "title"):
        assert {board[key] for _, board in one}.isdisjoint(board[key] for _, board in other)
    assert {file for file, _ in one}.isdisjoint(file for file, _ in other)
    elsewhere = [
        boards(release(name, "minimal", "--namespace", space, *asked))
        for space, name in (("a-b", "dragoman"), ("a", "b"))
    ]
    assert {file for file, _ in elsewhere[0]}.isdisjoint(file for file, _ in elsewhere[1])
    for file, board in (*one, *other):
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", board["uid"])
        shipped = json.loads((CHART / "dashboards" / f"{file.rpartition('_')[2]}").read_text())
        assert {**board, "uid": 0, "title": 0} == {**shipped, "uid": 0, "title": 0}
    assert one == boards(tuple(parsed(template(VALUES / "minimal.yaml", CHART, *asked))))


def asked_of(board: dict[str, Any]) -> list[str]:
    """The expressions of its panels and the choices of its variables."""
    panels = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return panels + [one["definition"] for one in board["templating"]["list"] if one["type"] == "query"]


def test_no_query_of_a_dashboard_is_that_of_another_release() -> None:
    asked = ("--set", "monitoring.dashboards.enabled=true")
    found = [
        [query for _, board in boards(release(name, "autoscaled", *asked)) for query in asked_of(board)]
        for name in ("dragoman", "second")
    ]
    for name, every in zip(("dragoman", "second-dragoman"), found, strict=True):
        series = [one for query in every for one in re.finditer(r"\b((?:dragoman_|vllm:)\w+)(\{[^}]*\})?", query)]
        assert len(series) > 100
        for one in series:
            job = f"llm/{name}-workers" if one[1].startswith("vllm:") else f"{name}-metrics"
            assert f'{{namespace="llm",job="{job}"' in (one[2] or ""), one
    assert set(found[0]).isdisjoint(found[1])
    assert {name for _, board in boards(release("dragoman", "autoscaled", *asked)) for name in choices(board)} == {
        "datasource", "limit", "model", "team"
    }  # fmt: skip


def choices(board: dict[str, Any]) -> list[str]:
    return [one["name"] for one in board["templating"]["list"]]


def test_where_one_job_is_unknown_the_reader_chooses_the_namespace() -> None:
    """The gateways' queries have their release's job all the same."""
    asked = ("--set", "monitoring.dashboards.enabled=true,monitoring.podMonitor.enabled=false")
    for _, board in boards(release("dragoman", "autoscaled", *asked)):
        text = "\n".join(asked_of(board))
        assert "dragoman_" in text
        assert not re.search(r"dragoman_\w+\{namespace=~", text)
        assert ("namespace" in choices(board)) is ("vllm:" in text)


@pytest.mark.parametrize("values", SETS)
def test_templates_of_claims_are_as_kubernetes_stores_them(values: str) -> None:
    """Without kind and version a server-side apply finds a difference for ever."""
    for one in objects(values):
        for claim in one["spec"].get("volumeClaimTemplates", []) if one["kind"] == "StatefulSet" else []:
            assert (claim["apiVersion"], claim["kind"]) == ("v1", "PersistentVolumeClaim")


def test_value_sets_have_claims_of_each_kind_of_workload() -> None:
    found = {
        one["metadata"]["labels"]["app.kubernetes.io/component"]
        for name in SETS
        for one in objects(name)
        if one["kind"] == "StatefulSet" and "volumeClaimTemplates" in one["spec"]
    }
    assert found == {"valkey", "worker"}
