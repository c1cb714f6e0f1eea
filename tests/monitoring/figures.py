"""Every metric that a dashboard or an alert may ask for, with its labels."""

from __future__ import annotations

import re

from tests.repo.tree import ROOT
from workers.simulated.metrics import Metrics

_ROW = re.compile(r"^\| `(?P<name>dragoman_\w+)` \| (?P<labels>[^|]*)\| (?P<text>.*) \|$", re.MULTILINE)
_HEAD = re.compile(r"^### `(?P<name>dragoman_\w+)`\n\n(?P<kind>\w+); (?P<labels>.*)\.$", re.MULTILINE)
_SAMPLE = re.compile(r"^(?P<name>vllm:\w+)\{(?P<labels>.*)\} \S+$", re.MULTILINE)
OF_TARGETS = {"namespace", "job", "instance", "pod"}
"""Labels that Prometheus itself adds."""


def _gateway() -> dict[str, set[str]]:
    """From the pages: the table of production.md, and metrics.md where it is there."""
    found: dict[str, set[str]] = {}
    for row in _ROW.finditer((ROOT / "docs" / "production.md").read_text()):
        found |= _series(row["name"], row["labels"], row["text"].startswith("histogram"))
    page = ROOT / "docs" / "metrics.md"
    for head in _HEAD.finditer(page.read_text() if page.exists() else ""):
        found |= _series(head["name"], head["labels"], head["kind"] == "Histogram")
    return found


def _series(name: str, labels: str, histogram: bool) -> dict[str, set[str]]:
    names = set(re.findall(r"`(\w+)`", labels))
    if not histogram:
        return {name: names}
    return {f"{name}_bucket": names | {"le"}, f"{name}_count": names, f"{name}_sum": names}


def _vllm() -> dict[str, set[str]]:
    page = Metrics().render("m", 1, running=0, waiting=0, usage=0, queries=0, hits=0, rejections=0)
    return {sample["name"]: set(re.findall(r'(\w+)="', sample["labels"])) for sample in _SAMPLE.finditer(page)}


KNOWN: dict[str, set[str]] = {**_gateway(), **_vllm(), "up": set()}
