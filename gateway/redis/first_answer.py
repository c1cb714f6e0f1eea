"""Asks one of several addresses that all know the same, where any of them may be dead or far."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class FirstAnswer(Generic[Answer]):
    """The first answer of `addresses`. The next one is asked at once when one fails, and after `step` seconds when all
    asked so far are silent; those keep their chance. `ask` must close what it opened also when it is cancelled."""

    def __init__(self, addresses: Sequence[str], ask: Callable[[str], Awaitable[Answer]], step: float) -> None:
        self._addresses = list(addresses)
        self._ask = ask
        self.step = step
        self._asking: set[asyncio.Task[Answer]] = set()

    async def answer(self) -> Answer:
        """Begins with who answered last. Raises the last error when all fail. The caller's deadline ends it where all
        are silent."""
        waiting = list(self._addresses)
        pending: dict[asyncio.Task[Answer], str] = {}
        failure: BaseException = ConnectionError("nobody to ask")
        try:
            while waiting or pending:
                if waiting:
                    address = waiting.pop(0)
                    pending[self._begin(address)] = address
                step = self.step if waiting else None
                done, _ = await asyncio.wait(pending, timeout=step, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    address = pending.pop(task)
                    error = task.exception()
                    if error is None:
                        self._addresses.remove(address)
                        self._addresses.insert(0, address)
                        return task.result()
                    failure = error
            raise failure
        finally:
            for task in pending:
                task.cancel()

    def _begin(self, address: str) -> asyncio.Task[Answer]:
        async def ask() -> Answer:
            return await self._ask(address)

        task = asyncio.create_task(ask())
        self._asking.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Answer]) -> None:
        self._asking.discard(task)
        if not task.cancelled():
            task.exception()  # else asyncio logs an error that came together with an answer

    async def close(self) -> None:
        """Waits until those that were cancelled have closed their connections."""
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
