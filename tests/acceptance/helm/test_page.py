"""The values that docs/kubernetes.md shows are values that the chart takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.helm.chart import template
from tests.acceptance.helm.test_guards import GOOD
from tests.repo.tree import ROOT

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
SHOWN = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
# What examples of scaling leave out because it was said before.
BEFORE = {"monitoring": {"prometheusAddress": "http://p:9090"}}


def test_there_are_examples() -> None:
    assert len(SHOWN) > 5


@pytest.mark.parametrize("shown", SHOWN, ids=lambda text: text.split("\n")[0])
def test_the_chart_takes_it(shown: str, tmp_path: Path) -> None:
    values: dict[str, Any] = yaml.safe_load(shown)
    base = {} if "auth" in values and "redis" in values else GOOD
    if "models" not in values:
        values["models"] = GOOD["models"]
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({**BEFORE, **base, **values}))
    assert "kind: Deployment" in template(file)


def test_secrets_that_the_page_makes_are_those_that_its_values_name() -> None:
    made = set(re.findall(r"create secret generic (\S+)", PAGE))
    named = set(re.findall(r"(?:existingSecret[:=] ?|HeadersSecret: \{name: )([a-z-]+)", PAGE))
    assert named == made
