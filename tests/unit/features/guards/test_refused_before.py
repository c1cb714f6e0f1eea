"""Requests that are refused before a guard spends a call on them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.clients import DIALECTS, usual
from tests.support.harness import Stack
from tests.support.standins.guard import guard
from tests.unit.app.asking import key
from tests.unit.features.guards.asking import config_of

LARGE = "word " * 40_000
STREAMING = [name for name in sorted(DIALECTS) if usual(name).answers(stream=True)]


# Heavy bodies take one way in all dialects.
@pytest.mark.parametrize(
    ("dialect", "text"), [*((name, "hello") for name in STREAMING), ("openai", LARGE)], ids=[*STREAMING, "openai heavy"]
)
def test_a_stream_too_many_is_refused_before_a_guard_is_asked(dialect: str, text: str) -> None:
    way = usual(dialect)
    secret, entry = key("one", limits={"streams": 1})
    with guard() as service:
        config: dict[str, Any] = {"keys": entry, "dialects": {dialect: {"default_model": "m"}}, **config_of(service)}
        body = {**way.body(text, stream=True, max_tokens=3), "model": "m"}
        with Stack(({"max_model_len": 200_000},), config) as stack:

            async def ask(client: httpx.AsyncClient) -> int:
                reply = await client.post(stack.url + way.path("m"), json=body, headers={"api-key": secret})
                return reply.status_code

            async def beside_one() -> int:
                async with httpx.AsyncClient(timeout=30) as client:
                    stack.sim.fault("stall@1")
                    held = asyncio.create_task(ask(client))
                    await stack.sim.wait(running=1)
                    stack.sim.fault("")
                    status = await ask(client)
                    held.cancel()
                    await asyncio.gather(held, return_exceptions=True)
                    return status

            assert stack.run(beside_one()) == 429
            assert len(service.asked) == 1
            stack.records()
            assert not stack.service("caps").streams.open
