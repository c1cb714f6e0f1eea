"""The ranges that the views check are those that the dialect's page gives."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import msgspec
import pytest
from msgspec import Raw, Struct, inspect

from gateway.core.errors import GatewayError
from gateway.wire.openai.requests.bounds import RANGES
from gateway.wire.openai.requests.reading import read_chat, read_text
from gateway.wire.openai.requests.views import LONGEST_PATTERN, ChatBody, EmbedBody, TextBody
from tests.repo.tree import ROOT
from tests.unit.wire.openai.exchange import HI

PAGE = (ROOT / "docs/dialects/openai.md").read_text().partition("These ranges")[2].partition("The option `extras`")[0]
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
    assert ROWS.keys() - patterns <= known | RANGES.keys()


def refused(name: str, value: object) -> bool:
    raw = {name: Raw(msgspec.json.encode(value))}
    refusals = 0
    for read, own in ((read_chat, {"messages": HI}), (read_text, {"prompt": "hi"})):
        with contextlib.suppress(GatewayError):
            read(msgspec.json.encode({**own, name: value}), raw, {}, ())
            refusals -= 1
        refusals += 1
    assert refusals in (0, 2)
    return refusals == 2


@pytest.mark.parametrize("name", RANGES)
def test_the_page_gives_the_range_of_what_vllm_adds(name: str) -> None:
    low, high = min(ROWS[name]), max(ROWS[name])
    inside = 0.5 if (low, high) == (0, 1) else 1
    assert [value for value in (high, inside, None) if refused(name, value)] == []
    assert refused(name, low) == (name == "repetition_penalty")
    odd: list[object] = [low - 1, high + 1, "1", [], True, {}]
    assert [value for value in odd if not refused(name, value)] == []
