"""The options of 0.1.0: this version reads them, or docs/upgrading.md says what became of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.acceptance.upgrade.versions import earlier
from tests.repo.tree import ROOT
from tests.support.commands import called

Schema = Mapping[str, Any]
Options = dict[str, Schema]


def options(schema: Schema, named: Schema, place: str = "") -> Iterator[tuple[str, Schema]]:
    """Each option, by the names on the way to it, with its schema; `[]` and `NAME` stand for any item."""
    if "$ref" in schema:
        schema = {**named[schema["$ref"].rpartition("/")[2]], **schema}
    for name, one in schema.get("properties", {}).items():
        option = f"{place}.{name}".removeprefix(".")
        yield option, one
        yield from options(one, named, option)
    for kind, of in (("items", "[]"), ("additionalProperties", ".NAME")):
        if isinstance(schema.get(kind), dict):
            yield from options(schema[kind], named, place + of)
    for one in schema.get("anyOf", ()):
        yield from options(one, named, place)


def words(schema: Schema) -> set[str]:
    """Those that the option can be, or have."""
    inner = [schema.get("items", {}), schema.get("propertyNames", {}), *schema.get("anyOf", ())]
    return set(schema.get("enum", ())).union(*map(words, filter(None, inner)))


@pytest.fixture(scope="module")
def both() -> tuple[Options, Options]:
    old, new = json.loads(earlier("schema")), json.loads(called("schema").stdout)
    return dict(options(old, old["$defs"])), dict(options(new, new["$defs"]))


def unnamed(found: set[str]) -> set[str]:
    """Those that the page does not name, by their own name."""
    page = (ROOT / "docs" / "upgrading.md").read_text()
    return {one for one in found if not re.search(rf"\b{one.rpartition('.')[2]}\b", page)}


def test_options_are_read_or_named_on_the_page(both: tuple[Options, Options]) -> None:
    old, new = both
    assert len(old) > 200
    assert unnamed(old.keys() - new.keys()) == set()


def test_words_of_options_are_read(both: tuple[Options, Options]) -> None:
    old, new = both
    gone = {one: words(old[one]) - words(new[one]) for one in old.keys() & new.keys()}
    assert {one: which for one, which in gone.items() if which} == {}


def test_other_defaults_are_named_on_the_page(both: tuple[Options, Options]) -> None:
    old, new = both
    leaves = {one for one in old.keys() & new.keys() if not isinstance(old[one].get("default"), dict)}
    assert unnamed({one for one in leaves if old[one].get("default") != new[one].get("default")}) == set()
