"""The requests in a body, however it comes in pieces."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from gateway.batches.splitting import Splitter
from gateway.core.errors import GatewayError


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
