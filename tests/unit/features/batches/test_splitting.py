"""The requests in a body, however it comes in pieces, and the lines in a file."""

from __future__ import annotations

import io
import json
import random
import re
import time
from typing import Any

import pytest

from gateway.core.errors import GatewayError
from gateway.features.batches.splitting import Splitter
from gateway.features.batches.storage import lines
from tests.support.sampled import sampled


def split(body: bytes, size: int, most: int = 10_000) -> list[bytes]:
    splitter, found = Splitter(most), []
    for at in range(0, len(body), size):
        found += list(splitter.feed(body[at : at + size]))
    splitter.end()
    return found


ITEMS: list[Any] = [
    {"a": '}{][",\\" \\\\'},
    {},
    {"b": [[{"c": {"d": "]}"}}], "\\", "e\u20ac"]},
    {"f": " " * 300, "g": None},
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100_000])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_body_in_pieces_is_the_same(size: int, count: int) -> None:
    for body in (json.dumps({"requests": ITEMS[:count]}), json.dumps({"requests": ITEMS[:count]}, indent=3) + "\n"):
        found = split(body.encode(), size)
        assert [json.loads(one) for one in found] == ITEMS[:count]


def test_random_items_are_found_at_any_cut() -> None:
    draw = random.Random(5)
    for _ in range(200):
        items: list[Any] = [
            {"".join(draw.choices('ab"\\{}[]:, ', k=draw.randrange(9))): draw.choice([1, "}", [{}], None, '"'])}
            for _ in range(draw.randrange(5))
        ]
        body = json.dumps({"requests": items}, indent=draw.choice([None, 1])).encode()
        assert [json.loads(one) for one in split(body, draw.randrange(1, 20))] == items


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"requests": [{}]',
        b'{"requests": [{}]} x',
        b'{"requests": [{}],"more": 1}',
        b'{"requests": [{},]}',
        b'{"requests": [,{}]}',
        b'{"requests": [{}{}]}',
        b'{"requests": [{} {}]}',
        b'{"requests": [1]}',
        b'{"requests": {}}',
        b'{"requests": [{',
        b'{"more": 1, "requests": []}',
        b" " * 3000,
        b'{"requests": [' + b" " * 3000,
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_another_body_is_refused(body: bytes, size: int) -> None:
    with pytest.raises(GatewayError, match="must be"):
        split(body, size)


@pytest.mark.parametrize("size", [1, 10, 1000])
def test_a_request_has_a_bound(size: int) -> None:
    item = json.dumps({"a": "x" * 50}).encode()
    assert split(b'{"requests": [%b]}' % item, size, len(item)) == [item]
    with pytest.raises(GatewayError, match="more than"):
        split(b'{"requests": [%b]}' % item, size, len(item) - 1)


def scanned(data: bytes, most: int = 1 << 20) -> tuple[list[tuple[int, bytes | None]], int]:
    """The lines of a file, and how many of them were read one by one."""
    read: list[int] = []

    class Counted(io.BufferedReader):
        def readline(self, size: int | None = -1, /) -> bytes:
            read.append(1)
            return super().readline(size)

    file, at, behind, found = Counted(io.BytesIO(data)), 0, 1, list[tuple[int, bytes | None]]()
    while behind != at:
        at = behind
        some, behind = lines(file, at, most)
        found += some
    return found, len(read)


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b" \n", b"\t\n\n"])
def test_blank_lines_cost_a_step_for_a_block_of_them(blank: bytes) -> None:
    most = 1 << 20
    data = blank * (most // len(blank)) + b"a\n" + blank * (most // len(blank)) + b" b " + blank
    (a, b), steps = scanned(data)
    each = blank.count(b"\n")
    assert (a, b) == ((most // len(blank) * each + 1, b"a"), (2 * (most // len(blank)) * each + 2, b"b"))
    assert steps < 2 * len(data) // io.DEFAULT_BUFFER_SIZE + 10


def test_lines_are_those_of_the_file() -> None:
    chance = random.Random(7)
    for _ in range(200):
        data = b"".join(chance.choices((b"\n", b" ", b"\r\n", b"abc", b"x" * 50, b"\x0b", b"{}"), k=60))
        expected = [
            (number, None if len(text.rstrip(b"\r\n")) > 40 else text.strip())
            for number, text in enumerate(data.split(b"\n"), 1)
            if text.strip()
        ]
        assert scanned(data, 40)[0] == expected


@pytest.mark.parametrize(
    "filling",
    sampled(
        [
            b"[],",
            b"[[[]]],",
            b'"",',
            b'"\\\\",',
            b'"\\"\\"\\"",',
            b"[" * 99 + b"]" * 99 + b",",
            b'{"":[""]},',
            b'{"":{}},',
            b'[""],',
            b'[[["",""]]],',
            b'["\\"",[],{}],',
        ],
        4,
    ),
)
def test_no_byte_costs_as_much_as_a_step_of_python(filling: bytes) -> None:
    """Beside a search for each bracket, quote and backslash."""
    item = b'{"a": [' + filling * ((1 << 20) // len(filling)) + b"0]}"
    body = b'{"requests": [' + item + b"]}"
    began = time.thread_time()
    assert split(body, 1 << 16, 2 << 20) == [item]
    took, began = time.thread_time() - began, time.thread_time()
    tokens = re.compile(rb'["\\\\{}\[\]]')
    at = 0
    while (found := tokens.search(body, at)) is not None:
        at = found.end()
    assert took < 0.7 * (time.thread_time() - began)
