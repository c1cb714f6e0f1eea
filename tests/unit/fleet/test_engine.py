"""What engines say of their load."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from gateway import backends
from gateway.config import Breaker
from gateway.core.ports import Gauges
from gateway.fleet.engine import Scraper, read_load, update_load
from gateway.fleet.worker import HALF_LIFE_S, OTHERS, EngineLoad, Worker
from tests.support.simulated import Simulated

GAUGES = Gauges("vllm:num_requests_running", "vllm:num_requests_waiting")
VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 4.0
"""
TGI = b"tgi_batch_current_size 2\ntgi_queue_size 5\n"
LLAMA = b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n"


@pytest.mark.parametrize("backend", backends.REGISTRY)
def test_the_gauges_of_each_engine(backend: str) -> None:
    gauges = backends.create(backend).gauges
    if gauges is None:
        return
    load = read_load(VLLM + TGI + LLAMA, gauges, 2)
    assert load is not None
    assert (load.running, load.waiting) in ((5, 4), (2, 5), (1, 0))
    assert load.others == max(0, load.running + load.waiting - 2)
    assert load.ranks == (2 if load.running == 5 else 1)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"vllm:num_requests_running 3",
        b"<html>",
        *(VLLM.replace(b" 4.0", wrong) for wrong in (b" --", b" -4", b" 1e999", b" 1e300")),
    ],
)
def test_what_is_no_load(text: bytes) -> None:
    assert read_load(text, GAUGES, 0) is None


async def test_a_simulated_worker_is_read_like_vllm() -> None:
    async with Simulated() as sim:
        load = read_load(sim.metrics_text().encode(), GAUGES, 0)
    assert load is not None
    assert load.others == 0


async def test_stale_figures_stop_counting_and_are_told() -> None:
    answers: list[bytes | None] = [VLLM, VLLM, None, None, VLLM, b"", b""]
    told: list[bool] = []
    loads: list[float] = []
    over = asyncio.Event()
    worker = Worker("http://w", Breaker(), None)
    worker.in_flight = 1

    async def fetch(model: str, worker: Worker) -> bytes:
        loads.append(worker.tokens + worker.others)
        if not answers:
            over.set()
            await asyncio.Event().wait()
        answer = answers.pop(0)
        if answer is None:
            raise OSError
        return answer

    scraper = Scraper(0.001, fetch, lambda model, worker, counts: told.append(counts))
    scraper.follow("m", [worker], GAUGES)
    async with asyncio.timeout(30):
        await over.wait()
    await scraper.close()
    others = 8 * OTHERS
    assert loads == [0, others, others, others, 0, others, others, 0]
    assert told == [True, False, True, False]


async def test_an_engine_is_read_less_often_while_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    idle, busy = (f"vllm:num_requests_running {count}\nvllm:num_requests_waiting 0\n".encode() for count in (0, 3))
    answers = [*[idle] * 11, None, None, None, None, busy, busy, busy, busy]
    pauses: list[float] = []
    between: list[int] = []
    over, pause = asyncio.Event(), asyncio.sleep

    async def fetch(model: str, worker: Worker) -> bytes:
        answer = answers.pop(0)
        between.append(len(pauses) - sum(between))
        if answer is None:
            raise OSError
        return answer

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if not answers:
            over.set()
        await pause(0 if answers else 60)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    scraper = Scraper(1.0, fetch, lambda model, worker, counts: None)
    scraper.follow("m", [Worker("http://a", Breaker(), None)], GAUGES)
    async with asyncio.timeout(30):
        await over.wait()
    await scraper.close()
    assert 0 <= pauses[0] < 1, "engines are not read all at once"
    assert set(pauses[1:]) == {1.0}
    assert between == [0, 1, 1, 4, 4, 4, 4, 4, 4, 8, 8, 8, 1, 1, 1, 4, 1, 1, 1]


async def test_a_request_of_ours_ends_the_pause_of_an_engine_that_did_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, times, pauses, pause = Worker("http://a", Breaker(), None), 0, [0], asyncio.sleep

    async def fetch(model: str, worker: Worker) -> bytes:
        nonlocal times
        times += 1
        pauses.append(0)
        return b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"

    async def sleep(seconds: float) -> None:
        pauses[-1] += 1
        if times == 6 and pauses[-1] == 2:
            worker.in_flight = 1
        await pause(0 if times < 8 else 60)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    scraper = Scraper(1.0, fetch, lambda model, worker, counts: None)
    scraper.follow("m", [worker], GAUGES)
    async with asyncio.timeout(30):
        while times < 8:
            await pause(0)
    await scraper.close()
    assert pauses[4:8] == [4, 4, 2, 1]


async def test_an_engine_with_requests_that_nobody_waits_for_is_read_twice_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, pause = Worker("http://a", Breaker(), None), asyncio.sleep
    pauses: list[float] = []

    async def fetch(model: str, worker: Worker) -> bytes:
        worker.background = worker.in_flight = int(len(pauses) < 4)
        return VLLM

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await pause(0 if len(pauses) < 6 else 60)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    scraper = Scraper(2.0, fetch, lambda model, worker, counts: None)
    scraper.follow("m", [worker], GAUGES)
    async with asyncio.timeout(30):
        while len(pauses) < 6:
            await pause(0)
    await scraper.close()
    assert pauses[1:] == [0.5, 0.5, 0.5, 2.0, 2.0]


async def test_workers_that_left_are_not_read() -> None:
    async def fetch(model: str, worker: Worker) -> bytes:
        return VLLM

    one, other = (Worker(f"http://{name}", Breaker(), None) for name in "ab")
    scraper = Scraper(60, fetch, lambda model, worker, counts: None)
    scraper.follow("m", [one, other], GAUGES)
    scraper.follow("m", [other], GAUGES)
    scraper.follow("n", [one], GAUGES)
    assert set(scraper._tasks) == {("m", other), ("n", one)}  # a worker that nobody follows is not read
    await scraper.close()


async def test_a_bug_is_not_taken_for_an_engine_that_is_away() -> None:
    async def fetch(model: str, worker: Worker) -> bytes:
        raise TypeError("a bug")

    scraper = Scraper(60, fetch, lambda model, worker, counts: None)
    with pytest.raises(TypeError):
        await scraper.look("m", Worker("http://a", Breaker(), None), GAUGES)


def test_the_work_that_an_engine_has_done() -> None:
    """Over all ranks: prompts without what was cached, and replies at four times their tokens."""
    counters = b"".join(
        b'vllm:%b_total{engine="%d"} %d\n' % (name, rank, count)
        for rank in (0, 1)
        for name, count in ((b"prompt_tokens", 1_000), (b"prefix_cache_hits", 400), (b"generation_tokens", 50))
    )
    gauges = backends.create("vllm").gauges
    assert gauges is not None
    load = read_load(VLLM + counters, gauges, 0)
    assert load is not None
    assert load.computed == 2 * (600 + 4 * 50)
    less = read_load(VLLM, gauges, 0)
    assert less is not None
    assert less.computed is None


def test_recent_work_fades_and_survives_a_restart_of_the_engine() -> None:
    worker = Worker("http://w", Breaker(), None)

    def told(computed: float | None, counted: float = 10_000) -> float | None:
        worker.report_load(EngineLoad(0, 0, 0, computed, counted), HALF_LIFE_S)
        return worker.recent

    assert told(5_000) == 0, "what it did before is not recent"
    assert told(6_000) == 1_000
    assert told(6_100) == 600
    assert told(200, 300) == 500, "its counters began anew"
    assert told(None) is None
    assert told(300) == 0
    worker.forget_load()
    assert (worker.recent, worker.reported) == (None, None)


def test_a_prompt_that_is_counted_after_its_cached_tokens_is_no_restart() -> None:
    worker = Worker("http://w", Breaker(), None)
    for computed in (
        100_000,
        97_000,
        101_000,
    ):  # 3,000 tokens of a prompt were cached, and the prompt is not counted yet
        worker.report_load(EngineLoad(0, 0, 0, computed, 400_000), 0.0)
    assert worker.recent == 1_000


async def test_work_is_read_from_a_simulated_worker() -> None:
    clock = 0.0
    gauges = backends.create("vllm").gauges
    assert gauges is not None
    async with Simulated() as sim, httpx.AsyncClient(base_url=sim.url) as client:

        async def fetch(model: str, worker: Worker) -> bytes:
            return sim.metrics_text().encode()

        scraper = Scraper(1, fetch, lambda model, worker, counts: None, lambda: clock)
        worker = Worker(sim.url, Breaker(), None)
        body = {"model": "sim", "messages": [{"role": "user", "content": "words " * 500}], "max_tokens": 5}
        found = []
        for _ in range(3):
            assert await scraper.look("m", worker, gauges)
            found.append(worker.recent)
            await client.post("/v1/chat/completions", json=body)
    entries = sim.entries
    assert found[0] == 0
    assert found[1] == entries[0].prompt_tokens + 4 * entries[0].tokens
    assert found[2] == found[1] + entries[1].prompt_tokens - entries[1].cached_tokens + 4 * entries[1].tokens
    assert entries[1].cached_tokens > 0


@pytest.mark.parametrize(
    ("said", "waiting"),
    [
        (b"TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=3.0", 3.0),
        (b"TEXT named_metrics.num_requests_waiting=0", 0.0),
        (b"TEXT named_metrics.num_requests_waiting=nan", 1.0),
        (b"TEXT named_metrics.num_requests_waiting=-5", 1.0),
        (b"TEXT named_metrics.num_requests_waiting=1e400", 1.0),
        (b"TEXT named_metrics.another=7", 1.0),
        (b"TEXT ", 1.0),
        (b'JSON {"named_metrics": {"num_requests_waiting": 3.0}}', 1.0),
        (b"TEXT named_metrics.num_requests_waiting=3.0" + b" " * 5_000, 1.0),
    ],
)
def test_the_load_in_the_head_of_a_reply(said: bytes, waiting: float) -> None:
    heads = [(b"content-type", b"application/json"), (b"endpoint-load-metrics", said)]
    silent = Worker("http://s", Breaker(), None)
    update_load("num_requests_waiting", silent, heads)
    assert silent.reported is None, "alone it would never be stale"
    worker = Worker("http://w", Breaker(), None)
    worker.in_flight = 2
    worker.report_load(EngineLoad(5.0, 1.0, 2, 77.0), 1.0)
    worker.in_flight = 3
    update_load("num_requests_waiting", worker, heads)
    load = worker.reported
    assert load is not None
    assert (load.waiting, load.computed) == (waiting, 77.0)
    assert load.others == (3.0 + waiting if load.in_flight == 3 else 4.0)
