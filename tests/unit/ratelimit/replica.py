"""One process of `test_processes`: clients that ask as fast as they are let, and a log of what was admitted.

`python -m tests.unit.ratelimit.replica HOST:PORT SECONDS SKEW`; prints a JSON list of [time, tokens reserved, tokens
used].
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time

from gateway.config import Limit, Redis
from gateway.core.estimate import Cost
from gateway.core.usage import Usage
from gateway.ratelimit import Subject, SubjectLimiter
from gateway.ratelimit.model import Limited
from gateway.ratelimit.redis import batcher as skewed
from gateway.ratelimit.redis.store import RedisStore

CLIENTS = 12
WINDOW = 1.5
REQUESTS = Limit(name="rpm", kind="requests", limit=150, per_s=WINDOW)
TOKENS = Limit(name="tpm", kind="tokens", limit=9_000, per_s=WINDOW)
SLOTS = Limit(name="slots", kind="concurrency", limit=20)


async def ask(address: str, seconds: float) -> list[tuple[float, int, int]]:
    limiter = SubjectLimiter([REQUESTS, TOKENS, SLOTS], RedisStore(Redis(addresses=(address,), timeout_s=10.0)))
    await limiter.start()
    assert limiter.state == "strict"
    log: list[tuple[float, int, int]] = []
    until = time.monotonic() + seconds

    async def client() -> None:
        while time.monotonic() < until:
            reserved = random.choice((20, 50, 80))
            try:
                lease = await limiter.reserve(Subject(key="all"), Cost(reserved))
            except Limited as limited:
                wait = 0.02 if limited.code == "slots" else min(limited.retry_after or 0, 0.1)
                await asyncio.sleep(wait * random.uniform(0.3, 1))
                continue
            at = time.monotonic()
            used = random.randrange(reserved)
            log.append((at, reserved, used))
            await asyncio.sleep(random.uniform(0, 0.02))
            outcome = random.choice(("finished", "cancelled", "failed"))
            limiter.settle(lease, Usage(0, used), outcome)  # type: ignore[arg-type]

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    await limiter.close()
    return log


def main() -> None:
    address, seconds, skew = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    real = time.monotonic
    skewed.monotonic = lambda: real() + skew  # type: ignore[attr-defined]
    sys.stdout.write(json.dumps(asyncio.run(ask(address, seconds))))


if __name__ == "__main__":
    main()
