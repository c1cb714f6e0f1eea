"""How much one body may hold: exactly what is documented, whatever stands inside of strings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import Kind
from gateway.core.http import Request
from gateway.core.ports import Settings
from gateway.dialects import REGISTRY, create
from gateway.wire import bulk
from gateway.wire.bulk import MOST_MEMBERS, MOST_NESTED, MOST_STRINGS, MOST_VALUES, refuse_bulk
from gateway.wire.json import members
from tests.support.raised import raised


def refusal(body: bytes) -> str:
    error = raised(refuse_bulk, body)
    assert (error.kind, error.code) == (Kind.BAD_REQUEST, "too_many_values")
    return error.message.removeprefix("the request body holds more than ")


def array(item: bytes, count: int) -> bytes:
    return b'{"a":[' + b",".join([item] * count) + b"]}"


@pytest.mark.parametrize(
    ("item", "most", "words"),
    [
        (b"[]", MOST_NESTED - 2, "32768 objects and arrays"),
        (b"{}", MOST_NESTED - 2, "32768 objects and arrays"),
        (b'{"a":1,"b":2,"c":3}', (MOST_MEMBERS - 1) // 3, "65536 members of objects"),
        (b'""', MOST_STRINGS - 1, "131072 strings"),
        (b"1", MOST_VALUES + 1, "1048576 values"),
    ],
)
def test_the_bounds(item: bytes, most: int, words: str) -> None:
    refuse_bulk(array(item, most))
    assert refusal(array(item, most + 1)) == words


@pytest.mark.parametrize("text", [", ", "{[", "::", '\\",', "\\\\,", '{\\"a\\": [1, 2]},\\n', '\\\\\\"{,'])
def test_what_stands_in_a_string_is_no_value(text: str) -> None:
    body = b'{"a":"' + text.encode() * 600_000 + b'"}'
    refuse_bulk(body)
    assert json.loads(body)["a"]
    assert refusal(body[:-1] + b',"b":' + array(b"[]", MOST_NESTED) + b"}") == "32768 objects and arrays"


values = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a\\",:{}[]é\n', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(alphabet='a\\",:{}[]', max_size=4), inner, max_size=5)
    ),
    max_leaves=30,
)


def counted(value: Any) -> Iterator[str]:
    """One word for each thing in `value` that is counted."""
    if isinstance(value, str):
        yield "strings"
    elif isinstance(value, list | dict):
        yield "objects and arrays"
        yield from ["values"] * (len(value) - 1)
        if isinstance(value, dict):
            yield from ["members of objects", "strings"] * len(value)
        for inner in value.values() if isinstance(value, dict) else value:
            yield from counted(inner)


@given(value=st.dictionaries(st.text(max_size=2), values, max_size=5), ascii_only=st.booleans())
def test_it_counts_as_a_parser_does(value: dict[str, Any], ascii_only: bool) -> None:
    bounds = {"objects and arrays": 3, "members of objects": 5, "strings": 7, "values": 9}
    found = Counter(counted(value))
    with pytest.MonkeyPatch.context() as patched:
        for name, bound in zip(("NESTED", "MEMBERS", "STRINGS", "VALUES"), bounds.values(), strict=True):
            patched.setattr(bulk, f"MOST_{name}", bound)
        body = json.dumps(value, ensure_ascii=ascii_only).encode()
        # How much may be first in what is around it is bounded by how deep decoders go.
        separators = found["values"] + found["members of objects"]
        if separators > 1 and any(found[name] > most for name, most in bounds.items()):
            count, _, what = refusal(body).partition(" ")
            assert found[what] > int(count) == bounds[what]
        else:
            refuse_bulk(body)


def test_a_body_has_a_thousand_members_at_most() -> None:
    most = {f"a{number}": 1 for number in range(1000)}
    assert len(members(Request("POST", "/", [], json.dumps(most).encode()))) == 1000
    error = raised(members, Request("POST", "/", [], json.dumps({**most, "b": 1}).encode()))
    assert (error.kind, error.code) == (Kind.BAD_REQUEST, "too_many_values")


@pytest.mark.parametrize("name", REGISTRY)
def test_every_dialect_refuses_too_much(name: str) -> None:
    dialect = create(name, Settings())
    body = b'{"messages":[{"role":"user","content":' + array(b'{"type":"x"}', MOST_NESTED)[5:-1] + b"}]}"
    asking = {example.route for examples in dialect.examples.values() for example in examples}
    for route in dialect.routes:
        if route.method == "POST" and route.name in asking and not route.form:
            request = Request("POST", route.path, [], body, b"api-version=2024-05-01-preview", route.name)
            assert raised(dialect.read, request).code == "too_many_values"
