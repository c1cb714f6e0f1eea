"""Where Redis is."""

from __future__ import annotations

import pytest

from gateway.redis import split_address


@pytest.mark.parametrize(
    ("address", "parts"), [("localhost:6379", ("localhost", 6379)), ("[::1]:7000", ("::1", 7000)), ("a:1", ("a", 1))]
)
def test_addresses(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts
