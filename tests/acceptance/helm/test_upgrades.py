"""An upgrade keeps the copies that run in the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.helm.api import upgraded
from tests.acceptance.helm.chart import CHART, VALUES, Object, copy, find, objects
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
