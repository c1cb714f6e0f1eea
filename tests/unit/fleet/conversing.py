"""Workers of a pool, and conversations that are sent to them."""

from __future__ import annotations

import random

from gateway.config import Breaker, Queue
from gateway.core.messages import Chat, Message, Text
from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.pick import PickPolicy
from gateway.fleet.pool import Pool
from gateway.fleet.worker import Worker

SESSION = frozenset([b"x-session-id"])


def workers(count: int, max_in_flight: int | None = None) -> list[Worker]:
    breaker = Breaker(failures=2, eject_s=10, slowstart_s=10)
    found = [Worker(f"http://w{number}", breaker, max_in_flight) for number in range(count)]
    for worker in found:
        worker.ready = True
    return found


def pool(members: list[Worker], policy: PickPolicy) -> Pool:
    return Pool(members, policy, Queue(), 0.5, clock=lambda: 0.0, sessions=SESSION, salted=True)


def text(seed: str, size: int) -> str:
    return "".join(random.Random(seed).choices("abcdefghij ", k=size))


def conversation(name: str, turns: int, size: int = 2000, system: str = "You help.") -> Chat:
    messages = [Message("system", (Text(system),))]
    for turn in range(turns):
        messages.append(Message("user", (Text(text(f"{name} asks {turn}", size)),)))
        if turn < turns - 1:
            messages.append(Message("assistant", (Text(text(f"{name} hears {turn}", size)),)))
    return Chat(model="m", messages=tuple(messages))


async def send(one: Pool, op: Chat, *headers: tuple[bytes, bytes]) -> tuple[Worker, RoutingFacts]:
    """A request that is over at once."""
    routing = one.routing(op, list(headers))
    worker = await one.acquire((), 0, routing)
    one.release(worker, routing)
    return worker, routing
