"""The length of the queues, as a scrape of a loaded gateway shows it."""

from __future__ import annotations

import asyncio

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.harness import Stack
from tests.unit.app.test_admission import waiting

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


def lengths(page: str) -> dict[str, float]:
    """Model -> what `dragoman_queue_length` says."""
    families = [one for one in text_string_to_metric_families(page) if one.name == "dragoman_queue_length"]
    return {sample.labels["model"]: sample.value for one in families for sample in one.samples}


def test_who_waits_for_a_worker_is_counted_until_it_leaves() -> None:
    async def three() -> dict[str, float]:
        async with httpx.AsyncClient(timeout=20) as client:
            url = f"{stack.url}/v1/chat/completions"
            asking = [asyncio.create_task(client.post(url, json=BODY)) for _ in range(3)]
            await waiting(stack, 2)
            found = lengths((await client.get(f"{stack.url}/metrics")).text)
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        return found

    # The one request that has the worker hears nothing from it.
    with Stack(({"fault": "stall"},), config={"models": {"m": {"max_in_flight": 1}}}) as stack:
        assert lengths(httpx.get(f"{stack.url}/metrics").text) == {"m": 0}
        assert stack.run(three()) == {"m": 2}
        stack.run(waiting(stack, 0))
        assert lengths(httpx.get(f"{stack.url}/metrics").text) == {"m": 0}
