"""A simulated worker with its clients."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import openai
import pytest

from tests.support.simulated import Simulated


@pytest.fixture
async def sim() -> AsyncIterator[Simulated]:
    async with Simulated(models=("sim", "alias"), max_model_len=1024) as worker:
        yield worker


@pytest.fixture
async def http(sim: Simulated) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=sim.url) as client:
        yield client


@pytest.fixture
async def sdk(sim: Simulated) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{sim.url}/v1", api_key="none", max_retries=0) as client:
        yield client
