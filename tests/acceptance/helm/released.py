"""What a released chart made of its value sets that no upgrade can change: `released/VERSION.yaml`.

    python -m tests.acceptance.helm.released COMMIT VERSION [FOLDER]

writes the file of a version from its commit. FOLDER holds the value sets there (tests/acceptance/helm/values).

Kubernetes refuses an update of these fields (its API reference calls them immutable, or the validation of the kind
refuses the change), and helm ends such an upgrade half done.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from tests.acceptance.helm.chart import HERE, KUBERNETES, NAMESPACE, Object, helm, parsed
from tests.repo.tree import ROOT

RELEASED = HERE / "released"
# Of a StatefulSet all but these may not change.
_MUTABLE = {"replicas", "ordinals", "template", "updateStrategy", "persistentVolumeClaimRetentionPolicy"}
_MUTABLE |= {"minReadySeconds", "revisionHistoryLimit"}


def fixed(objects: Iterable[Object]) -> dict[str, Any]:
    """`Kind/name` -> what an upgrade must leave as it is, of each object. helm deletes hooks, and none is here."""
    return {
        f"{one['kind']}/{one['metadata']['name']}": _fixed(one)
        for one in objects
        if "helm.sh/hook" not in one["metadata"].get("annotations", {})
    }


def _fixed(one: Object) -> dict[str, Any]:
    spec = one.get("spec", {})
    match one["kind"]:
        case "Deployment":
            return {"selector": spec["selector"]}
        case "StatefulSet":
            claims = [_claim(claim) for claim in spec.get("volumeClaimTemplates", [])]
            return {name: value for name, value in spec.items() if name not in _MUTABLE} | {
                "volumeClaimTemplates": claims
            }
        case "PersistentVolumeClaim":
            return {name: value for name, value in spec.items() if name != "resources"}
        case "Service":
            return {"headless": spec.get("clusterIP") == "None"}
        case "RoleBinding" | "ClusterRoleBinding":
            return {"roleRef": one["roleRef"]}
        case "ConfigMap" | "Secret":
            return {"immutable": one.get("immutable", False)}
        case _:
            return {}


def _claim(claim: Object) -> Object:
    """The API server writes version and kind into each template: a chart may leave them out."""
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim}


def write(commit: str, version: str, folder: str) -> None:
    """Renders the value sets of a commit by the chart of that commit."""
    made = {}
    words = ["git", "archive", "--format=tar", commit, "helm/dragoman", folder]
    archive = subprocess.run(words, cwd=ROOT, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(scratch, filter="data")
        for values in sorted(Path(scratch, folder).glob("*.yaml")):
            place: list[str | Path] = [Path(scratch, "helm", "dragoman"), "--namespace", NAMESPACE]
            done = helm("template", "dragoman", *place, "--kube-version", KUBERNETES, "--values", values)
            if done.returncode:
                raise SystemExit(done.stderr)
            made[values.stem] = {"values": yaml.safe_load(values.read_text()), "fixed": fixed(parsed(done.stdout))}
    RELEASED.mkdir(exist_ok=True)
    (RELEASED / f"{version}.yaml").write_text(yaml.safe_dump(made, sort_keys=False, width=120))


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], (sys.argv[3:] or ["tests/acceptance/helm/values"])[0])
