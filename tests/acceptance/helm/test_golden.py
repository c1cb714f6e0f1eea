"""Golden renders: what a change of the chart changes is seen in review. `make renders` writes them anew."""

from __future__ import annotations

import pytest

from tests.acceptance.helm.chart import HERE, text

GOLDEN = HERE / "golden"
SHOWN = ("minimal", "autoscaled", "multi-node", "embedded")


def shown(name: str) -> str:
    """The render of a value set, without `helm test`: its script has tests of its own."""
    documents = text(name).split("---\n")
    return "---\n".join(one for one in documents if not one.startswith("# Source: dragoman/templates/tests/"))


@pytest.mark.parametrize("name", SHOWN)
def test_the_render_is_as_it_was(name: str) -> None:
    assert shown(name) == (GOLDEN / f"{name}.yaml").read_text(), "run `make renders` and review what changed"


def test_every_golden_render_is_compared() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(SHOWN)
