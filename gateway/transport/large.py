"""The time that large reads may take in one turn of the event loop, for all workers together.

A read that ends an event of megabytes takes as long as decoding the event does. If several workers ended theirs in the
same turn, all other requests would wait for the sum.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from gateway.light_task import Arrived

BUDGET_S: Final = 0.005
"""The longest time that large reads take in one turn before the others wait for the next one."""


class LargeReads:
    """The seconds that large reads of one event loop took in this turn, and the connections whose reads wait for a
    later one. Each passes on its read in `take_in`, and reports to `spend` how long that took."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._waiting: deque[Arrived] = deque()
        self._scheduled = False

    @property
    def allowed(self) -> bool:
        """Whether another one may be passed on in this turn."""
        return self._spent < BUDGET_S and not self._waiting

    def spend(self, seconds: float) -> None:
        self._spent += seconds
        self._schedule()

    def wait(self, connection: Arrived) -> None:
        """Has `connection` take in what was read for it in a later turn, after those that wait already."""
        self._waiting.append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._scheduled = False
        self._spent = 0.0
        try:
            while self._waiting:
                self._waiting.popleft().take_in()
                if self._spent >= BUDGET_S:
                    break
        finally:
            if self._waiting:
                self._schedule()
