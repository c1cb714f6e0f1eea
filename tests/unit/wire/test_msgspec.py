"""Texts of msgspec's errors that `wire.json` reads. A version that words one differently fails here, by name."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from msgspec import Meta, Struct


class _Inner(Struct, forbid_unknown_fields=True):
    number: int


class _Body(Struct):
    items: list[_Inner] = []
    biases: dict[str, Annotated[float, Meta(le=1)]] = {}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"items":[{"number":1.0}]}', "Expected `int`, got `float` - at `$.items[0].number`"),
        (b'{"items":[{}]}', "Object missing required field `number` - at `$.items[0]`"),
        (b'{"items":[{"number":1,"x":1}]}', "Object contains unknown field `x` - at `$.items[0]`"),
        (b'{"biases":{"a":2}}', "Expected `float` <= 1.0 - at `$.biases[...]`"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"items":]', "JSON is malformed: invalid character (byte 9)"),
    ],
)
def test_an_error_has_its_text(body: bytes, text: str) -> None:
    with pytest.raises(msgspec.MsgspecError) as error:
        msgspec.json.decode(body, type=_Body)
    assert str(error.value) == text
