"""Where Redis is: addresses, and settings that contradict each other."""

from __future__ import annotations

import pytest

from gateway.redis import RedisSettings, split_address


@pytest.mark.parametrize(
    ("address", "parts"), [("localhost:6379", ("localhost", 6379)), ("[::1]:7000", ("::1", 7000)), ("a:1", ("a", 1))]
)
def test_addresses(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "settings",
    [
        {"addresses": ()},
        {"addresses": ("a",)},
        {"addresses": (":1",)},
        {"addresses": ("a:0",)},
        {"addresses": ("a:1", "b:2")},
        {"addresses": ("a:1",), "mode": "ring"},
        {"addresses": ("a:1",), "mode": "cluster", "db": 3},
        {"addresses": ("a:1",), "timeout": 0},
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        RedisSettings(**settings)  # type: ignore[arg-type]
