"""The dashboards of the chart, as Grafana reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.repo.tree import ROOT

FOLDER = ROOT / "helm" / "dragoman" / "dashboards"
FILES = sorted(FOLDER.glob("*.json"))
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    """(name of the dashboard, panel) of all."""
    for path in FILES:
        for panel in load(path)["panels"]:
            yield path.stem, panel


def filled(text: str, values: Mapping[str, str]) -> str:
    """`text` with its variables replaced, as Grafana does. Raises KeyError for one without a value."""
    return VARIABLE.sub(lambda match: values[match[1] or match[2]], text)
