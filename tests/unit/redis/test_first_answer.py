"""Whom of several addresses the gateway asks, and when: no dead and no far one decides."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway.redis.first_answer import FirstAnswer

NEVER = 3600.0
"""A step that no test waits for."""


class Machines:
    """What each address does; who was asked, and who is still being asked."""

    def __init__(self, **does: Callable[[], Awaitable[str]]) -> None:
        self.does = does
        self.asked: list[str] = []
        self.open: set[str] = set()

    async def ask(self, address: str) -> str:
        self.asked.append(address)
        self.open.add(address)
        try:
            return await self.does[address]()
        finally:
            await asyncio.sleep(0)  # closing takes a turn
            self.open.remove(address)


async def silent() -> str:
    await asyncio.Event().wait()
    raise AssertionError


async def live() -> str:
    return "live"


async def refuses() -> str:
    raise ConnectionRefusedError


async def test_many_silent_ones_hide_no_live_one_and_are_not_asked_next_time() -> None:
    machines = Machines(a=silent, b=silent, c=silent, d=silent, e=silent, f=live)
    first = FirstAnswer("abcdef", machines.ask, 0.001)
    async with asyncio.timeout(60):
        assert await first.answer() == "live"
        await first.close()
    assert machines.asked == list("abcdef")
    assert not machines.open
    machines.asked.clear()
    async with asyncio.timeout(60):
        assert await first.answer() == "live"
        await first.close()
    assert machines.asked[0] == "f"
    assert not machines.open


async def test_all_silent_ends_with_the_callers_deadline_and_leaves_nothing_open() -> None:
    machines = Machines(a=silent, b=silent)
    first = FirstAnswer("ab", machines.ask, 0.001)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await first.answer()
    await first.close()
    assert not machines.open


async def test_a_far_one_keeps_its_chance_while_others_are_asked() -> None:
    others_asked = asyncio.Event()

    async def far() -> str:
        await others_asked.wait()
        return "far"

    async def dead() -> str:
        others_asked.set()
        return await silent()

    machines = Machines(a=far, b=dead)
    first = FirstAnswer("ab", machines.ask, 0.001)
    async with asyncio.timeout(60):
        assert await first.answer() == "far"
        await first.close()
    assert machines.asked == ["a", "b"]
    assert not machines.open


async def test_an_error_asks_the_next_at_once() -> None:
    machines = Machines(a=refuses, b=refuses, c=live, d=live)
    first = FirstAnswer("abcd", machines.ask, NEVER)
    async with asyncio.timeout(60):
        assert await first.answer() == "live"
    assert machines.asked == ["a", "b", "c"]


async def test_the_last_error_is_raised_when_all_fail() -> None:
    machines = Machines(a=refuses, b=refuses)
    with pytest.raises(ConnectionRefusedError):
        await FirstAnswer("ab", machines.ask, NEVER).answer()
    assert not machines.open
