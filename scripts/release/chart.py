"""The chart, packed as `helm push` takes it to an OCI registry."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scripts.release.proof import NotProved
from scripts.release.version import ROOT, version

CHART = ROOT / "helm" / "dragoman"
HELM = ROOT / "tests" / "acceptance" / "helm" / "tools" / "node_modules" / "helm" / "helm"
VALUES = ROOT / "tests" / "acceptance" / "helm" / "values"


def build(folder: Path) -> None:
    """Writes dragoman-VERSION.tgz."""
    subprocess.run([HELM, "package", CHART, "--destination", folder], check=True, stdout=subprocess.DEVNULL)


def prove(folder: Path) -> Iterator[str]:
    """Lints the package, and renders each value set from it and from the source to the same text. Raises NotProved."""
    package = folder / f"dragoman-{version(ROOT)}.tgz"
    yield f"{package.name}: {package.stat().st_size / 1e3:.0f} kB"
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["tar", "--extract", "--gzip", "--file", package, "--directory", scratch], check=True)
        packed = Path(scratch, "dragoman")
        _helm("lint", "--strict", packed, "--values", VALUES / "minimal.yaml")
        sets = sorted(VALUES.glob("*.yaml"))
        for values in sets:
            words = ("--namespace", "llm", "--kube-version", "1.35.0", "--values", values)
            if _helm("template", "dragoman", packed, *words) != _helm("template", "dragoman", CHART, *words):
                raise NotProved(f"{package.name}: another render of {values.name} than the source's")
    yield f"lint, and {len(sets)} value sets: as from the source"


def publish(now: str) -> Iterator[str]:
    """The commands, with the registry and its owner in $REGISTRY."""
    yield f"helm push dist/dragoman-{now}.tgz oci://$REGISTRY/charts"
    yield f'cosign sign --yes "$REGISTRY/charts/dragoman:{now}"'


def _helm(*words: str | Path) -> str:
    done = subprocess.run([HELM, *words], capture_output=True, text=True)
    if done.returncode:
        raise NotProved(f"helm {words[0]}: {done.stdout}{done.stderr}")
    return done.stdout
