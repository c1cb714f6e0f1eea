"""Each property of the chart holds, one place in the templates makes it so, and without that place it does not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.helm import properties_added, properties_gateway, properties_network, properties_workers
from tests.acceptance.helm.chart import CHART, VALUES, copy, objects, parsed, template
from tests.acceptance.helm.property import Off, Property, declared
from tests.support.sampled import sampled

ALL = (
    *declared(),
    *properties_gateway.ALL,
    *properties_workers.ALL,
    *properties_network.ALL,
    *properties_added.ALL,
)
SWITCHED = [(one, off) for one in ALL for off in one.off]


def named(value: object) -> str:
    return value.name if isinstance(value, Property) else value[1][:40] if isinstance(value, tuple) else ""


def test_properties_have_names_of_their_own() -> None:
    names = [one.name for one in ALL]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("one", ALL, ids=named)
def test_it_holds(one: Property) -> None:
    assert one.holds(objects(one.values))


@pytest.mark.parametrize(("one", "off"), sampled(SWITCHED, 24), ids=named)
def test_one_place_makes_it_so(one: Property, off: Off, tmp_path: Path) -> None:
    file, there, instead = off
    changed = copy(tmp_path) / "templates" / file
    text = (CHART / "templates" / file).read_text()
    assert text.count(there) == 1
    changed.write_text(text.replace(there, instead))
    rendered = parsed(template(VALUES / f"{one.values}.yaml", tmp_path / "dragoman", "--skip-schema-validation"))
    assert not one.held(rendered), f"{one.name}: nobody notices that {file} lacks: {there}"
