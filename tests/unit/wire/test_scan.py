"""A text that the scan calls plain passes every check that it spares, and ordinary texts are plain."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.wire import scan
from gateway.wire.scan import is_plain, without_nulls

BUILT = is_plain(b"0")
needs_c = pytest.mark.skipif(not BUILT, reason="needs the scan in C")

WORDS = st.text(max_size=20) | st.sampled_from(["model", "a", "\U0001f600", "\u2028", "é", '"', "\\", "\x7f"])
NUMBERS = (
    st.integers(-(10**18) + 1, 10**18 - 1)
    | st.floats(-(2.0**99), 2.0**99, width=32)
    | st.sampled_from([0, -0.0, 1e-99, 1.5e10])
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc-_ é€", max_size=9), inner, max_size=4),
    max_leaves=12,
)
ODD: tuple[bytes, ...] = (
    b"",
    b'"',
    b"\\",
    b"\\u",
    b"\\ud83d",
    b"\\ude00",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xff",
    b"\x00",
    b"1",
    b"e9",
    b"9" * 19,
)
ODD += (
    b"[",
    b"]",
    b"{",
    b"}",
    b":",
    b",",
    b" ",
    b"\n",
    b"-",
    b".",
    b"+",
    b"0",
    b"NaN",
    b"nul",
    b'"a":',
    b"//",
    b"1e309",
)
as_msgpack = msgspec.msgpack.Encoder().encode


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def refused(word: str) -> None:
    raise ValueError(word)


def check(text: bytes) -> None:
    """Both readers take `text`, as the same value, and no name is given twice."""
    ours = msgspec.json.decode(text)
    assert as_msgpack(ours)
    assert ours == json.loads(text.decode(), object_pairs_hook=distinct, parse_constant=refused)


@given(VALUES, st.booleans(), st.sampled_from([(",", ":"), (", ", ": "), ("\n,\t", " :\r")]))
def test_ordinary_texts_are_plain(value: Any, ascii: bool, separators: tuple[str, str]) -> None:
    text = json.dumps(value, ensure_ascii=ascii, separators=separators).encode()
    if b"\\u" in text and any(b"\\u" in name for name in re.findall(rb'"[^"]*" ?\r?:', text)):
        return  # a name with an escape is looked at closely
    assert is_plain(text) is BUILT
    check(text)


@given(
    VALUES, st.booleans(), st.lists(st.tuples(st.integers(0, 400), st.sampled_from(ODD), st.integers(0, 3)), max_size=3)
)
def test_a_plain_text_passes_every_check(value: Any, ascii: bool, changes: list[tuple[int, bytes, int]]) -> None:
    """Pieces of an ordinary text are replaced by odd ones."""
    text = json.dumps(value, ensure_ascii=ascii).encode()
    for place, piece, size in changes:
        place %= len(text) + 1
        text = text[:place] + piece + text[place + size :]
    if is_plain(text):
        check(text)


@given(st.binary(max_size=12) | st.text('{}[]",:\\u0d8e1- ', max_size=14).map(str.encode))
def test_any_bytes(text: bytes) -> None:
    if is_plain(text):
        check(text)


@needs_c
def test_any_byte_at_any_place_of_a_string() -> None:
    """The scan reads eight bytes at once."""
    for place in range(18):
        for byte in range(256):
            text = b'"%b%c%b"' % (b"a" * place, byte, b"b" * (17 - place))
            try:
                check(text)
            except (ValueError, msgspec.DecodeError):
                assert not is_plain(text)
            else:
                assert is_plain(text)


CLOSER = [
    *(
        b"",
        b" ",
        b"{",
        b'{"a"',
        b'{"a":',
        b'{"a":1',
        b'{"a":1,',
        b'{"a":1,}',
        b"[1,]",
        b"[1",
        b"[",
        b"]",
        b"}",
        b"[}",
        b"{]",
    ),
    *(
        b"1 2",
        b"{}{}",
        b"{} x",
        b"nul",
        b"tru",
        b"fals",
        b"nulL",
        b"NaN",
        b"Infinity",
        b"-",
        b"01",
        b"-01",
        b"1.",
        b".5",
    ),
    *(b"1e", b"1e+", b"+1", b"1e100", b"-1e-100", b"1" + b"0" * 18, b"0x1", b"'a'", b'"', b'"\\', b'"\\"', b'"\\x"'),
    *(b'"\\u"', b'"\\u12"', b'"\\u12g4"', b'"\\ud83d"', b'"\\ud83d\\u0041"', b'"\\ud83dabcdef"', b'"\\ude00"'),
    *(b'"\n"', b'"\xff"', b'"\xed\xa0\x80"', b'"\xc3', b'"\xc3"', b'{"a":1,"a":2}', b'[{"x":{"a":1,"b":2,"a":3}}]'),
    *(b'{"\\u0061":1}', b'{"":1,"":2}', b"{1:2}", b'{"a" 1}', b'{"a",1}', b"\xef\xbb\xbf{}", b"[" * 65 + b"]" * 65),
]


def test_what_takes_a_closer_look() -> None:
    assert [text for text in CLOSER if is_plain(text)] == []


def nested(depth: int) -> bytes:
    return b'[{"a":' * (depth // 2) + b"0" + b"}]" * (depth // 2)


def names(count: int, size: int = 4) -> bytes:
    return b"{%b}" % b",".join(b'"%0*d":0' % (size, number) for number in range(count))


@needs_c
@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        (nested(64), nested(66)),
        (names(64), names(65)),
        (names(2, 64), names(2, 65)),
        (b'{"a":' * 7 + b'{"a":0}' + b"}" * 7, b'{"a":' * 70 + b"0" + b"}" * 70),
        (b"9" * 18, b"9" * 19),
        (b"[-%b.%b]" % (b"9" * 18, b"1" * 400), b"[-%b.0]" % (b"9" * 19)),
        (b"1E+99", b"1E+100"),
    ],
)
def test_bounds(within: bytes, beyond: bytes) -> None:
    assert is_plain(within)
    assert not is_plain(beyond)
    check(within)


@needs_c
def test_many_objects_one_after_another_are_plain() -> None:
    """Names count while their object is open."""
    assert is_plain(b"[%b]" % b",".join([names(60)] * 100))
    inner = b"0"
    for _ in range(10):  # 10 * 60 names at once
        inner = names(60)[:-1] + b',"x":%b}' % inner
    assert not is_plain(inner)


@needs_c
def test_a_raw_member_is_scanned_as_it_is() -> None:
    found = msgspec.json.decode(b'{"a": {"b": [1, "x"]}, "c": 1e999}', type=dict[str, Raw])
    assert is_plain(found["a"])
    assert not is_plain(found["c"])


NAMES = (b"one", b"on", b"other", b"a.b")
NULLED = re.compile(rb',"(?:one|on|other|a\.b)":null')
PIECES = st.sampled_from(
    [b',"one":null', b',"on":null', b',"a.b":null', b',"axb":null', b'{"one":null', b',"other":nul', b",", b"x"]
)


@given(st.lists(PIECES | st.binary(max_size=4), max_size=12).map(b"".join))
def test_nulls_are_removed(text: bytes) -> None:
    assert without_nulls(*NAMES)(text) == NULLED.sub(b"", text)


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module where C is not built."""
    monkeypatch.setitem(sys.modules, "gateway.wire._scan", None)
    yield importlib.reload(scan)
    monkeypatch.undo()
    importlib.reload(scan)


def test_without_c_every_text_is_looked_at(in_python: Any) -> None:
    assert not in_python.is_plain(b"{}")
    assert in_python.without_nulls(*NAMES)(b'{"x":0,"one":null,"a.b":null}') == b'{"x":0}'
