"""Load that comes at a rate whatever became of what came before, and what logs and ledgers say of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from msgspec import Struct

from tests.chaos.house import CHAT, House, Process
from tests.chaos.link import Answer, Link
from tests.chaos.row import SEED

HANG_S = 30.0
"""What is not answered by then hangs."""


class Asked(Struct):
    """One request, sent at `at` (monotonic, seconds). answer is None while there is none, where the connection broke,
    and of one that hung."""

    id: str
    at: float
    answer: Answer | None = None

    @property
    def status(self) -> int:
        """0 where there is no answer."""
        return self.answer.status if self.answer is not None else 0

    @property
    def ms(self) -> float:
        """Until the end of the answer."""
        return self.answer.seconds * 1000 if self.answer is not None else HANG_S * 1000


def told(one: Asked) -> bool:
    """It has a Retry-After."""
    return one.answer is not None and "retry-after" in one.answer.headers


class Load:
    """Requests to the first gateway; their ids begin with `name`. Connections are kept; more are opened when needed."""

    def __init__(self, at: House, name: str) -> None:
        self.asked: list[Asked] = []
        self._address = at.gateways[0].address
        self._name = name
        self._links: list[Link] = []

    async def ask(self, body: dict[str, Any]) -> Asked:
        one = Asked(f"{self._name}-{len(self.asked)}", time.monotonic())
        self.asked.append(one)
        link = self._links.pop() if self._links else Link(self._address)
        with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(HANG_S):
                one.answer = await link.post(CHAT, body, {"x-request-id": one.id})
        if one.answer is None:
            link.close()
        self._links.append(link)
        return one

    def since(self, start: float, end: float = float("inf")) -> list[Asked]:
        """What was sent in [start, end)."""
        return [one for one in self.asked if start <= one.at < end]

    def close(self) -> None:
        for link in self._links:
            link.close()


@contextlib.asynccontextmanager
async def paced(at: House, rate: float, body: dict[str, Any], name: str = "paced") -> AsyncIterator[Load]:
    """Sends chats like `body` `rate` times a second, at uneven times, each with words of its own, as conversations that
    have nothing in common; at the end waits for what is under way."""
    load, draw, over = Load(at, name), random.Random(SEED), False

    async def send() -> None:
        due = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while not over:
                words = {"role": "user", "content": f"{name} {len(load.asked)} {draw.random()}"}
                group.create_task(load.ask({**body, "messages": [words]}))
                due += draw.uniform(0.5, 1.5) / rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    sending = asyncio.create_task(send())
    try:
        yield load
    finally:
        over = True
        await sending
        load.close()


async def given(worker: Process, since: float = 0.0) -> list[dict[str, Any]]:
    """The requests for a reply that the worker's ledger has, in order; `request` is the gateway's id, or ""."""
    return [entry for entry in await worker.generated() if entry["started"] >= since]


async def tell(worker: Process, path: str, /, **said: Any) -> None:
    """One of the simulated worker's controls: /sim/faults, /sim/state."""
    answer = await worker.post(path, said)
    assert answer.status == 200, answer.body


def events(at: House, what: str, worker: Process, since: float = 0.0) -> list[float]:
    """When, by the monotonic clock, the first gateway's log says `what` of `worker`."""
    ahead = time.time() - time.monotonic()
    return [
        line["time"] - ahead
        for line in at.gateways[0].lines()
        if line.get("event") == what
        and line.get("worker") == f"http://{worker.address}"
        and line["time"] - ahead >= since
    ]


async def known(at: House) -> None:
    """Returns when the first gateway has found every worker ready: one may have started before them."""
    found = await until(lambda: all(events(at, "worker ready", worker) for worker in at.workers), 10)
    assert found, at.gateways[0].log.read_text()[-2000:]


async def until(met: Callable[[], bool], seconds: float) -> bool:
    """Whether it came true in time. What other processes write must be looked at again and again."""
    end = time.monotonic() + seconds
    while not met():
        if time.monotonic() >= end:
            return False
        await asyncio.sleep(0.05)
    return True
