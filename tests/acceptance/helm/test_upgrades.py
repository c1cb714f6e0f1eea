"""An upgrade keeps the copies that run in the cluster, and each release can be upgraded by the chart as it is now."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.helm.api import upgraded
from tests.acceptance.helm.chart import CHART, VALUES, Object, copy, find, objects, parsed, template
from tests.acceptance.helm.released import RELEASED, fixed
from tests.support.sampled import sampled

WORKLOADS = [
    ("autoscaled", "Deployment", "dragoman"),
    ("autoscaled", "Deployment", "dragoman-busy"),
    ("autoscaled", "Deployment", "dragoman-seldom"),
    ("multi-node", "LeaderWorkerSet", "dragoman-scaled"),
]


def live(kind: str, name: str, copies: int) -> Object:
    """A workload in the cluster."""
    api = "leaderworkerset.x-k8s.io/v1" if kind == "LeaderWorkerSet" else "apps/v1"
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": {"replicas": copies}}


def copies(among: Any, kind: str, name: str) -> Any:
    """How many copies a render says, None when it says nothing."""
    return find(among, kind, name)["spec"].get("replicas")


@pytest.mark.parametrize(
    ("values", "kind", "name", "count"),
    sampled([(*one, count) for one in WORKLOADS for count in (0, 5)], 4, lambda case: case[-1]),
)
def test_an_autoscaled_workload_keeps_the_copies_that_run(
    values: str, kind: str, name: str, count: int, tmp_path: Path
) -> None:
    """A field that the upgrade leaves out would be taken away, and Kubernetes would set 1."""
    among = upgraded(VALUES / f"{values}.yaml", [live(kind, name, count)], tmp_path)
    assert copies(among, kind, name) == count
    others = [one for one in WORKLOADS if one[0] == values and one[2] != name]
    assert {copies(among, kind, other) for _, kind, other in others} <= {None}


@pytest.mark.parametrize(("values", "kind", "name"), WORKLOADS)
def test_without_a_cluster_there_is_no_number(values: str, kind: str, name: str) -> None:
    assert copies(objects(values), kind, name) is None


def test_without_an_autoscaler_the_values_rule(tmp_path: Path) -> None:
    among = upgraded(VALUES / "minimal.yaml", [live("Deployment", "dragoman", 7)], tmp_path)
    assert copies(among, "Deployment", "dragoman") == 2


def test_one_place_makes_it_so(tmp_path: Path) -> None:
    template = copy(tmp_path) / "templates" / "_pod.tpl"
    text = (CHART / "templates" / "_pod.tpl").read_text()
    assert text.count("lookup $version .kind") == 1
    template.write_text(text.replace("lookup $version .kind", 'lookup $version "Other"'))
    among = upgraded(
        VALUES / "autoscaled.yaml", [live("Deployment", "dragoman-busy", 5)], tmp_path, tmp_path / "dragoman"
    )
    assert copies(among, "Deployment", "dragoman-busy") is None


@pytest.mark.parametrize(
    ("running", "given", "namespace"),
    [
        ({"redis": {"addresses": ["a:6379"]}}, "", "dragoman"),
        ({"redis": {"addresses": ["a:6379"], "namespace": "shared"}}, "", "shared"),
        ({"redis": {"addresses": ["a:6379"], "namespace": "shared"}}, "other", "other"),
        ({"models": {}}, "", "llm.dragoman"),
        (None, "", "llm.dragoman"),
    ],
    ids=["0.1.0", "named", "chosen", "without-redis", "installed"],
)
def test_the_namespace_in_redis_stays(running: Object | None, given: str, namespace: str, tmp_path: Path) -> None:
    """Gateways and workers of another namespace would find nobody while the others are replaced."""
    values = yaml.safe_load((VALUES / "minimal.yaml").read_text())
    values["redis"]["namespace"] = given
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dragoman"}}
    among = upgraded(file, [config | {"data": {"gateway.yaml": yaml.safe_dump(running)}}] if running else [], tmp_path)
    gateways = yaml.safe_load(find(among, "ConfigMap", "dragoman")["data"]["gateway.yaml"])
    assert gateways["redis"]["namespace"] == namespace
    workers = [
        arguments[arguments.index("--namespace") + 1]
        for one in among
        if one["kind"] == "Deployment"
        for container in one["spec"]["template"]["spec"]["containers"]
        if "--namespace" in (arguments := container.get("args") or [])
    ]
    assert set(workers) == {namespace}


FORMER = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(RELEASED.glob("*.yaml"))}
RENAMED = {"ollama": "ollama_style", "ollama_native": "ollama", "azure": "azure_inference"}
"""Dialects up to 0.9. The chart refuses the former names: docs/upgrading.md asks for the new ones."""


def by_new_names(values: Any) -> Any:
    """`values` with the new names of dialects, and nothing else changed."""
    found = deepcopy(values)
    config = found.get("gateway", {}).get("config", {})
    if "dialects" in config:
        config["dialects"] = {RENAMED.get(name, name): options for name, options in config["dialects"].items()}
    for host in (host for where in ("ingress", "httpRoute") for host in found.get(where, {}).get("hosts", [])):
        if "dialects" in host:
            host["dialects"] = [RENAMED.get(name, name) for name in host["dialects"]]
    return found


@pytest.mark.parametrize(
    ("version", "name"),
    sampled([(version, name) for version, sets in FORMER.items() for name in sets], 8, lambda case: case[0]),
)
def test_a_release_upgrades_with_its_values(version: str, name: str) -> None:
    """The values are still accepted, no object goes, and no field changes that Kubernetes would refuse to change."""
    former = FORMER[version][name]
    assert former["fixed"].items() <= fixed(parsed(template(by_new_names(former["values"])))).items()


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", ("spec", "selector"), {"matchLabels": {"app": "other"}}),
        ("StatefulSet", ("spec", "serviceName"), "other"),
        ("StatefulSet", ("spec", "volumeClaimTemplates", 0, "spec", "accessModes"), ["ReadWriteMany"]),
        ("PersistentVolumeClaim", ("spec", "accessModes"), ["ReadWriteOncePod"]),
        ("Service", ("spec", "clusterIP"), "None"),
        ("ConfigMap", ("immutable",), True),
        ("Service", ("metadata", "name"), "other"),
    ],
)
def test_what_kubernetes_refuses_to_change_is_noticed(kind: str, path: tuple[Any, ...], value: Any) -> None:
    among = [
        one for name in ("everything", "several-models", "openshift") for one in objects(name) if one["kind"] == kind
    ]
    one = deepcopy(next(one for one in among if fixed([one]) and _at(one, path[:-1]) is not None))
    before = deepcopy(fixed([one]))
    _at(one, path[:-1])[path[-1]] = value
    assert fixed([one]) != before


def _at(one: Any, path: tuple[Any, ...]) -> Any:
    """What an object has at a path, None when it lacks the path."""
    for step in path:
        if not (isinstance(step, int) or step in one):
            return None
        one = one[step]
    return one
