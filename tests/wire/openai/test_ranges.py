"""The ranges that the views check are those that the dialect's page gives."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import pytest
from msgspec import Struct, inspect

from gateway.wire.openai.request_views import LONGEST_PATTERN, ChatBody, EmbedBody, TextBody
from tests.repo.tree import ROOT

PAGE = (
    (ROOT / "docs/dialects/openai.md").read_text().partition("These ranges")[2].partition("What is said of fields")[0]
)
ROWS = {
    name: {int(number) for number in re.findall(r"-?\d+", said)}
    for names, said in re.findall(r"^\| (`.*?) \| (.*) \|$", PAGE, re.MULTILINE)
    for name in re.findall(r"`([a-z_.]+)`", names)
}
VIEWS: tuple[type[Struct], ...] = (ChatBody, TextBody, EmbedBody)


def bounds(kind: inspect.Type) -> Iterator[float]:
    """Every bound of a value, and of what it holds."""
    for name in ("ge", "le", "gt", "lt", "min_length", "max_length"):
        bound = getattr(kind, name, None)
        if bound is not None:
            yield bound
    if isinstance(kind, inspect.UnionType):
        inner: tuple[inspect.Type, ...] = kind.types
    elif isinstance(kind, inspect.ListType):
        inner = (kind.item_type,)
    elif isinstance(kind, inspect.DictType):
        inner = (kind.key_type, kind.value_type)
    elif isinstance(kind, inspect.StructType):
        inner = tuple(field.type for field in kind.fields if field.name in ("role", "name", "function"))
    else:
        inner = ()
    for one in inner:
        yield from bounds(one)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_the_page_gives_every_range_and_no_other(view: type[Struct]) -> None:
    kind = inspect.type_info(view)
    assert isinstance(kind, inspect.StructType)
    for field in kind.fields:
        found = {int(bound) for bound in bounds(field.type)}
        if found:
            assert ROWS[field.encode_name] >= found, field.encode_name
            if field.encode_name != "max_tokens":  # a chat's begins at 1
                assert found == ROWS[field.encode_name], field.encode_name


def test_the_page_names_no_field_that_is_none() -> None:
    known = {field.encode_name for view in VIEWS for field in msgspec.structs.fields(view)}
    patterns = {name for name, found in ROWS.items() if found == {LONGEST_PATTERN} and name not in known}
    assert {name.partition(".")[0] for name in patterns} == {
        "structured_outputs",
        "guided_regex",
        "guided_grammar",
        "guided_whitespace_pattern",
        "",
    }
    assert ROWS.keys() - patterns <= known
