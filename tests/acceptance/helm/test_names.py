"""Names of objects: short enough for what Kubernetes makes of them, and never the same for two things."""

from __future__ import annotations

import json
import random
import re
import string
from itertools import cycle
from typing import Any

import pytest

from tests.acceptance.helm.chart import CHART, KUBERNETES, Object, helm, parsed, pods, template

MOST = {
    # Behind the name of a StatefulSet comes a hash of 10 characters and a dash, in a label of 63.
    "StatefulSet": 52,
    # And the number of a group.
    "LeaderWorkerSet": 51,
    # KubeRay refuses more than 50; two digits of the copy's number stand in it, of which one is drawn here.
    "RayCluster": 49,
    "Deployment": 63,
    "Service": 63,
}
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
KINDS: dict[str, dict[str, Any]] = {
    "Deployment": {},
    "StatefulSet": {"cache": {"mode": "claimPerReplica"}},
    "LeaderWorkerSet": {"nodes": 2},
    "RayCluster": {"nodes": 2, "multiNode": "RayCluster"},
}
OPEN: dict[str, Any] = {"auth": {"mode": "open"}, "redis": {"existingSecret": "redis"}}


def drawn(seed: int) -> list[str]:
    """Names of models that the schema takes: many begin or end alike, and are long or odd."""
    chance = random.Random(seed)
    letters = string.ascii_letters + string.digits
    begin = "".join(chance.choices(letters, k=chance.randint(1, 60)))
    ends = ["".join(chance.choices(letters + "._:/-", k=chance.randint(0, 60))) for _ in range(12)]
    return sorted({(begin + end)[:128] for end in ends})


def named(release: str, models: list[str]) -> list[Object]:
    """The objects of a release with models of each kind in turn. Raises AssertionError when helm refuses."""
    turns = zip(models, cycle(KINDS.values()), strict=False)
    values = {**OPEN, "models": {name: {"model": "org/m", **options} for name, options in turns}}
    words = [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]
    done = helm("template", release, CHART, "--kube-version", KUBERNETES, *words)
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


def slug(name: str) -> str:
    """The part of a short name in the names of objects: names that differ in nothing else are refused."""
    return re.sub("-+$", "", re.sub("[^a-z0-9]", "-", name.lower()))


@pytest.mark.parametrize("seed", range(4))
def test_names_fit_and_are_unique(seed: int) -> None:
    models = list({slug(name): name for name in drawn(seed)}.values())
    release = "".join(random.Random(seed).choices(string.ascii_lowercase, k=(5, 20, 40, 53)[seed]))
    among = named(release, models)
    names = [(one["kind"], one["metadata"]["name"]) for one in among]
    assert len(names) == len(set(names))
    assert set(KINDS) <= {kind for kind, _ in names}
    for kind, name in names:
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name), name
        assert len(name) <= MOST.get(kind, 253), (kind, name)
    for where, pod in pods(among):
        labels = pod["metadata"]["labels"]
        assert all(LABEL.fullmatch(value) for value in labels.values()), (where, labels)


@pytest.mark.long
def test_two_releases_with_long_names_share_none() -> None:
    begin = "a-release-with-a-name-as-long-as-helm-allows-it-x"
    one, other = (
        {
            (each["kind"], each["metadata"]["name"])
            for each in named(begin + end, [f"{'m' * 40}{number}" for number in range(len(KINDS))])
        }
        for end in "ab"
    )
    assert one.isdisjoint(other)


RELEASES = (
    *("dragoman", "dragoman-x", "dragoman-x-dragoman", "x", "x-dragoman", "my-dragoman-x", "dragoman-metrics"),
    *("dragoman-m-0", "d" * 40 + "-dragoman", "d" * 40),
)
MODELS = ("x", "dragoman", "x-dragoman", "dragoman-x", "Dragoman/x", "m-0", "x" * 18 + "dragoman", "x-metrics")


@pytest.mark.long
def test_no_two_releases_of_one_namespace_share_a_name() -> None:
    """Whatever models are called, and however much a release's name looks like that of another one's object."""
    owners: dict[tuple[str, str], str] = {}
    for release in RELEASES:
        for one in named(release, list(MODELS)):
            owner = owners.setdefault((one["kind"], one["metadata"]["name"]), release)
            assert owner == release, (one["kind"], one["metadata"]["name"])
    assert set(owners.values()) == set(RELEASES)


def test_short_names_stay_as_they_are() -> None:
    among = parsed(template({**OPEN, "models": {"Qwen/Qwen3-8B": {"model": "org/m"}}}))
    assert ("Deployment", "dragoman-qwen-qwen3-8b") in {(one["kind"], one["metadata"]["name"]) for one in among}
