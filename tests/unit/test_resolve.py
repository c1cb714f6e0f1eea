"""Host names, by the system's resolver. No test asks a name server."""

from __future__ import annotations

import pytest

from gateway.resolve import look_up


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_an_address_stands_for_itself_once(address: str) -> None:
    assert await look_up(address, 80) == [address]


async def test_what_is_no_name_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match=r"\S"):
        await look_up("127.0.0.1", 80_000_000_000)
