"""Rules, and traffic of requests at random."""

from __future__ import annotations

import asyncio
import random

from gateway.config import Limit
from gateway.core.estimate import Cost
from gateway.core.usage import Usage
from gateway.ratelimit import Subject, SubjectLimiter
from gateway.ratelimit.model import Limited

RULES = (
    Limit(name="rpm", kind="requests", limit=20, per_s=5, scope=("key",)),
    Limit(name="paced", kind="requests", limit=20, burst=10, scope=("team", "model")),
    Limit(name="tpm", kind="tokens", limit=3000, scope=("team",)),
    Limit(name="slots", kind="concurrency", limit=9, scope=("key", "address")),
    Limit(name="shadow", kind="tokens", limit=500, scope=(), shadow=True),
)


async def traffic(limiter: SubjectLimiter, turns: int, seed: int) -> None:
    chance = random.Random(seed)

    async def client() -> None:
        for _ in range(turns):
            subject = Subject(
                key=f"k{chance.randrange(9)}",
                team=f"t{chance.randrange(4)}",
                model=f"m{chance.randrange(3)}",
                address=f"10.0.0.{chance.randrange(9)}",
            )
            try:
                async with asyncio.timeout(chance.choice([0.001, 1])):
                    lease = await limiter.reserve(subject, Cost(chance.randrange(500)))
            except (Limited, TimeoutError):
                continue
            if chance.random() < 0.1:
                await limiter.reset(subject)
            if chance.random() < 0.9:
                limiter.settle(
                    lease,
                    chance.choice([None, Usage(0, 0), Usage(0, 100), Usage(0, 900)]),
                    chance.choice(["finished", "unserved"]),
                )

    await asyncio.gather(*(client() for _ in range(20)))
    await limiter.flush()
