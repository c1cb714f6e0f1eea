"""The chart as the tests see it: helm, the value sets, what they render to."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.repo.tree import ROOT

HERE = Path(__file__).resolve().parent
CHART = ROOT / "helm" / "dragoman"
VALUES = HERE / "values"
HELM = HERE / "tools" / "node_modules" / "helm" / "helm"
SETS = tuple(sorted(path.stem for path in VALUES.glob("*.yaml")))
"""Names of the value sets."""
NAMESPACE = "llm"
KUBERNETES = "1.35.0"
"""What helm is told that the cluster is; image volumes need 1.33."""

Object = dict[str, Any]


class Refused(Exception):
    """helm refused to render; the text is what it said."""


def helm(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs helm. Raises FileNotFoundError where `make test` has not installed it."""
    if not HELM.is_file():
        raise FileNotFoundError(f"{HELM.relative_to(ROOT)}: run `make test`, which installs helm")
    # It looks for no cluster and keeps nothing. A fifth of its time goes to collecting garbage, and it ends at once.
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "KUBECONFIG": "/nonexistent", "GOGC": "off"}
    return subprocess.run([HELM, *words], capture_output=True, text=True, env=environment, timeout=60)


def template(values: Path | Mapping[str, Any], chart: Path = CHART, *more: str | Path) -> str:
    """What `helm template` prints for a file of values, or for values. Raises Refused."""
    given: list[str | Path] = ["--values", values] if isinstance(values, Path) else _set(values)
    words = ["template", "dragoman", chart, "--namespace", NAMESPACE, "--kube-version", KUBERNETES, *given, *more]
    done = helm(*words)
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


def _set(values: Mapping[str, Any]) -> list[str | Path]:
    return [word for key, value in values.items() for word in ("--set-json", f"{key}={json.dumps(value)}")]


@cache
def text(name: str) -> str:
    """The render of a value set, once for all tests of a process."""
    return template(VALUES / f"{name}.yaml")


def parsed(rendered: str) -> list[Object]:
    """The objects of a render. Raises ValueError where a mapping has one key twice."""
    return [one for one in yaml.load_all(rendered, Loader=_Strict) if one is not None]


@cache
def objects(name: str) -> tuple[Object, ...]:
    """The objects of a value set; nobody may change them."""
    return tuple(parsed(text(name)))


class _Strict(yaml.CSafeLoader):
    """Refuses two equal keys: Kubernetes takes the last one, which is never what was meant."""


def _mapping(loader: _Strict, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [key.value for key, _ in node.value]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"twice in a mapping: {', '.join(twice)}")
    return loader.construct_mapping(node, deep=True)


_Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def find(among: Sequence[Object], kind: str, name: str | None = None) -> Object:
    """The one object of a kind (and a name). Raises LookupError when there is none, or more than one."""
    found = [one for one in among if one["kind"] == kind and name in (None, one["metadata"]["name"])]
    if len(found) != 1:
        raise LookupError(f"{len(found)} objects {kind} {name or ''}")
    return found[0]


def pods(among: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    """(where it is from, metadata and spec) of every Pod that the objects make."""
    for one in among:
        name, spec = f"{one['kind']}/{one['metadata']['name']}", one.get("spec", {})
        if one["kind"] == "Pod":
            yield name, one
        elif one["kind"] in ("Deployment", "StatefulSet"):
            yield name, spec["template"]
        elif one["kind"] == "LeaderWorkerSet":
            yield f"{name} leader", spec["leaderWorkerTemplate"]["leaderTemplate"]
            yield f"{name} rank", spec["leaderWorkerTemplate"]["workerTemplate"]
        elif one["kind"] == "RayCluster":
            yield f"{name} leader", spec["headGroupSpec"]["template"]
            for group in spec["workerGroupSpecs"]:
                yield f"{name} rank", group["template"]


def container(among: Sequence[Object], kind: str, name: str) -> Object:
    """The chart's own container in a workload's Pod; of a group, its leader's."""
    found = [pod for where, pod in pods(among) if where.removesuffix(" leader") == f"{kind}/{name}"]
    if len(found) != 1:
        raise LookupError(f"{len(found)} Pods of {kind}/{name}")
    first: Object = found[0]["spec"]["containers"][0]
    return first


def copy(target: Path) -> Path:
    """A copy of the chart to change."""
    return Path(shutil.copytree(CHART, target / "dragoman"))
