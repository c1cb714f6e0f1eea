"""Slots, queue, cache, clock, ledger and metrics of the simulated worker, and the worker as a process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.support.simulated import Simulated, main, tokenizer


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient() as made:
        yield made


def chat(text: str = "hello", **extra: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **extra}


async def metrics(client: httpx.AsyncClient, sim: Simulated) -> dict[str, float]:
    text = (await client.get(f"{sim.url}/metrics")).text
    out: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            extra = {k: v for k, v in sample.labels.items() if k not in ("engine", "model_name")}
            out[sample.name + (json.dumps(extra) if extra else "")] = sample.value
    return out


@given(st.text())
def test_the_tokenizer_is_reversible(text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert tokenizer.count(text) == len(tokens)
    assert all(128 <= token < 2**31 for token in tokens)


@given(st.integers(min_value=0))
def test_any_token_decodes_to_something(token: int) -> None:
    assert isinstance(tokenizer.piece(token), str)


async def test_slots_queue_and_503(client: httpx.AsyncClient) -> None:
    async with Simulated(slots=1, queue_limit=1, itl_ms=2) as sim:
        url = f"{sim.url}/v1/chat/completions"
        stalled = asyncio.create_task(client.post(url, json=chat(sim_fault="stall")))
        await sim.wait(running=1)
        queued = asyncio.create_task(client.post(url, json=chat("me too")))
        await sim.wait(waiting=1)
        now = await metrics(client, sim)
        assert (now["vllm:num_requests_running"], now["vllm:num_requests_waiting"]) == (1, 1)
        assert now['vllm:num_requests_waiting_by_reason{"reason": "capacity"}'] == 1
        assert now["vllm:kv_cache_usage_perc"] > 0
        refused = await client.post(url, json=chat("no room"))
        assert refused.status_code == 503
        assert refused.json()["error"]["type"] == "ServiceUnavailableError"
        stalled.cancel()
        assert (await queued).status_code == 200
        await sim.wait(running=0, aborted=1)
        now = await metrics(client, sim)
        assert now['vllm:admission_rejections_total{"reason": "max_num_queued_reqs"}'] == 1
        assert now["vllm:kv_cache_usage_perc"] == now["vllm:num_requests_running"] == 0


async def test_a_client_that_leaves_the_queue(client: httpx.AsyncClient) -> None:
    async with Simulated(slots=1) as sim:
        url = f"{sim.url}/v1/chat/completions"
        first, second = (asyncio.create_task(client.post(url, json=chat(sim_fault="stall"))) for _ in range(2))
        await sim.wait(waiting=1)
        for task in (second, first):
            task.cancel()
        await sim.wait(running=0, waiting=0, aborted=2)
        assert sim.engine.running == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_leaving_client_is_noticed_at_once(client: httpx.AsyncClient, stream: bool) -> None:
    async with Simulated(itl_ms=20) as sim:
        body = chat(max_tokens=5000, ignore_eos=True, stream=stream)
        asking = asyncio.create_task(client.post(f"{sim.url}/v1/chat/completions", json=body))
        await sim.wait(running=1)
        left = time.monotonic()
        asking.cancel()
        await sim.wait(running=0, aborted=1)
        entry = sim.entries[0]
        assert entry.state == "aborted"
        assert 0 <= entry.ended - left < 30
        assert sim.engine.running == sim.engine.blocks == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_the_clock(client: httpx.AsyncClient, stream: bool) -> None:
    async with Simulated(itl_ms=5, prefill_us_per_token=1000) as sim:
        body = chat("x" * 40 * 4, max_tokens=11, ignore_eos=True, stream=stream)
        began = time.monotonic()
        await client.post(f"{sim.url}/v1/chat/completions", json=body)
        assert 0.090 < time.monotonic() - began < 30
        (entry,) = sim.entries
        assert entry.tokens == 11
        now = await metrics(client, sim)
        assert now["vllm:inter_token_latency_seconds_count"] == 10
        assert 0.04 <= now["vllm:time_to_first_token_seconds_sum"] < 30


async def test_the_prefix_cache_saves_prefill(client: httpx.AsyncClient) -> None:
    async with Simulated(token_details=True) as sim:
        shared = "s" * 64 * 5
        counts = []
        for text in (shared + "one", shared + "two", "other"):
            body = chat(text, stream=True, stream_options={"include_usage": True})
            answer = await client.post(f"{sim.url}/v1/chat/completions", json=body)
            usage = json.loads(answer.text.split("\n\n")[-3].removeprefix("data: "))["usage"]
            counts.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert counts == [0, 80, 0]
        now = await metrics(client, sim)
        assert now["vllm:prefix_cache_hits_total"] == 80
        assert now["vllm:prefix_cache_queries_total"] == sum(entry.prompt_tokens for entry in sim.entries)
        salted = chat(shared + "one", cache_salt="tenant")
        answer = await client.post(f"{sim.url}/v1/chat/completions", json=salted)
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_small_cache_forgets(client: httpx.AsyncClient) -> None:
    async with Simulated(kv_blocks=8, token_details=True) as sim:
        for index in range(50):
            await client.post(f"{sim.url}/v1/completions", json={"prompt": chr(97 + index) * 64 * 4})
        assert len(sim.engine.prefix) <= 8


async def test_a_slow_reader_holds_the_worker_back() -> None:
    async with Simulated(max_model_len=10_000_000) as sim:
        reader, writer = await asyncio.open_connection("127.0.0.1", sim.port, limit=1024)
        body = json.dumps(chat(stream=True, max_tokens=1_000_000, ignore_eos=True)).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await reader.read(100)
        while not next(iter(sim.connections)).paused:  # noqa: ASYNC110 (a state of the socket, no event tells it)
            await asyncio.sleep(0)
        made = sim.entries[0].tokens
        assert made < 200_000
        while sim.entries[0].tokens == made:
            await reader.read(1 << 20)
        writer.close()
        await sim.wait(running=0, aborted=1)


async def test_keep_alive_pipelining_and_expiry() -> None:
    async with Simulated(keep_alive_s=0.05) as sim:
        reader, writer = await asyncio.open_connection("127.0.0.1", sim.port)
        writer.write(b"GET /health HTTP/1.1\r\n\r\n" * 3)
        answer = await asyncio.wait_for(reader.read(), 30)  # until the worker closes the idle connection
        assert answer.count(b"HTTP/1.1 200 OK") == 3
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", sim.port)
        writer.write(b"not http\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 30)).startswith(b"HTTP/1.1 400 ")
        writer.close()


async def test_loading_and_states(client: httpx.AsyncClient) -> None:
    async with Simulated(loading_s=0.05) as sim:
        assert (await client.get(f"{sim.url}/health")).status_code == 503
        assert (await client.post(f"{sim.url}/v1/chat/completions", json=chat())).status_code == 503
        async with asyncio.timeout(30):
            while (await client.get(f"{sim.url}/health")).status_code != 200:
                pass
        await client.post(f"{sim.url}/sim/state", json={"serving": False})
        assert (await client.get(f"{sim.url}/health")).status_code == 200
        assert (await client.post(f"{sim.url}/v1/chat/completions", json=chat())).status_code == 503
        await client.post(f"{sim.url}/sim/reset")
        assert (await client.post(f"{sim.url}/v1/chat/completions", json=chat())).status_code == 200


async def test_control(client: httpx.AsyncClient) -> None:
    async with Simulated() as sim:
        waiting = asyncio.create_task(client.get(f"{sim.url}/sim/wait?completed=1&running=0"))
        await client.post(f"{sim.url}/v1/chat/completions", json=chat(), headers={"X-Request-Id": "abc"})
        assert (await waiting).json()["met"] is True
        ledger = (await client.get(f"{sim.url}/sim/ledger")).json()
        (entry,) = ledger["entries"]
        assert (ledger["completed"], entry["id"], entry["state"], entry["status"]) == (
            1,
            "chatcmpl-abc",
            "completed",
            200,
        )
        assert ["x-request-id", "abc"] in entry["headers"]
        assert json.loads(entry["body"]) == chat()
        assert (await client.get(f"{sim.url}/sim/ledger?since={entry['number']}")).json()["entries"] == []
        assert (await client.get(f"{sim.url}/sim/wait?aborted=1&timeout=0.01")).json()["met"] is False
        assert (await client.get(f"{sim.url}/sim/wait?nonsense=1")).status_code == 400
        assert (await client.get(f"{sim.url}/sim/nonsense")).status_code == 404
        with pytest.raises(TimeoutError, match="completed"):
            await sim.wait(0.01, aborted=1)
        await client.post(f"{sim.url}/sim/reset")
        assert (await client.get(f"{sim.url}/sim/counters")).json()["received"] == 0


@asynccontextmanager
async def started(*flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The worker as a process, which is gone after the block whatever became of it."""
    command = (sys.executable, "-m", "tests.support.simulated", *flags)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            process.kill()
        await process.communicate()


@asynccontextmanager
async def serving(*flags: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The same on a free port, and its address."""
    async with started("--port", "0", *flags) as process:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
        assert line.startswith("listening on http://127.0.0.1:")
        yield process, line.split()[-1]


async def test_the_process_ends_cleanly(client: httpx.AsyncClient) -> None:
    body = chat(stream=True, max_tokens=100, ignore_eos=True)
    async with (
        serving("--model", "one", "--model", "two", "--itl-ms", "50") as (process, url),
        client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer,
    ):
        assert answer.status_code == 200
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_the_process_dies(client: httpx.AsyncClient) -> None:
    async with serving() as (process, url):
        with pytest.raises(httpx.TransportError):
            await client.post(f"{url}/v1/chat/completions", json=chat(sim_fault="die@1", stream=True))
        assert await asyncio.wait_for(process.wait(), 60) == 1


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "--prefill-us-per-token" in capsys.readouterr().out
    assert main(["--fault", "nonsense"]) == 2
    assert "unknown fault 'nonsense'" in capsys.readouterr().err


async def test_an_address_in_use_is_one_line() -> None:
    async with Simulated() as sim, started("--port", str(sim.port)) as process:
        _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    assert err.count(b"\n") == 1
