"""`dragoman serve --processes`: several processes behind one address look like one gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway import cli
from gateway.app import KNOWN
from gateway.config import load
from gateway.observe.catalogue import FIGURES
from gateway.observe.process_group import ProcessGroup
from tests.support.commands import Serving, dragoman
from tests.support.harness import Stack, until
from tests.support.ports import free_port

CHAT = "/v1/chat/completions"
HASH = "sha256:" + "ab" * 32
STALLED = "sim:" + json.dumps({"text": "a b c", "fault": "stall@1"})


async def _same(asked: bytes) -> bytes:
    return asked


@pytest.fixture(scope="module")
def workers() -> Iterator[Stack]:
    """Only for its simulated worker; the gateway before it is not used."""
    with Stack(({"itl_ms": 20},)) as stack:
        yield stack


@pytest.fixture
def pair(tmp_path: Path, workers: Stack) -> Iterator[Serving]:
    models = {"m": {"backend": "vllm", "upstream_model": "sim", "workers": [workers.sim.url]}}
    admin = {"listen": f"127.0.0.1:{free_port()}"}
    one = Serving(tmp_path, {"models": models, "metrics": admin}, "--processes", "2")
    try:
        first, second = one.event("listening"), one.event("listening")
        assert (first["address"], first["metrics"]) == (second["address"], second["metrics"])
        one.url, one.admin = first["address"], first["metrics"]
        yield one
    finally:
        one.close()


def chat(url: str, text: str = "hi", **members: Any) -> httpx.Response:
    """On a connection of its own: which process gets it is the kernel's choice."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **members}
    return httpx.post(url + CHAT, json=body, timeout=60)


def children(parent: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def total(page: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE))


@pytest.mark.long
def test_metrics_are_those_of_all_whichever_is_asked(pair: Serving) -> None:
    assert [chat(pair.url).status_code for _ in range(20)] == [200] * 20
    for _ in range(6):
        page = httpx.get(pair.admin + "/metrics").text
        assert total(page, "dragoman_requests_total") == 20
        assert total(page, "dragoman_request_duration_seconds_count") == 20
        assert total(page, "dragoman_build_info") == 1
        assert total(page, "dragoman_worker_ready") == 1
    # Another pair at this address is refused: sockets that share a port would serve it together without a word.
    port = pair.url.rpartition(":")[2]
    found = dragoman("serve", "--processes", "2", "--config", str(pair.file), DRAGOMAN_LISTEN__PORT=port)
    assert (found.returncode, "Address already in use" in found.stderr) == (1, True)


@pytest.mark.long
def test_the_state_is_that_of_all_whichever_is_asked(pair: Serving) -> None:
    assert [chat(pair.url).status_code for _ in range(20)] == [200] * 20
    body = {"model": "m", "messages": [{"role": "user", "content": STALLED}], "stream": True}

    def known() -> list[dict[str, Any]]:
        return [httpx.get(pair.admin + "/status.json").json() for _ in range(6)]

    def of_all(state: dict[str, Any]) -> bool:
        return bool(state["models"][0]["workers"][0]["in_flight"] == 6 == sum(state["running"].values()))

    with contextlib.ExitStack() as streams:
        for _ in range(6):
            streams.enter_context(httpx.stream("POST", pair.url + CHAT, json=body, timeout=60))
        # A state is made twice a second. Each process learns of the others' streams in its own time: all that answer
        # must know of all.
        until(lambda: all(map(of_all, known())))
        for state in known():
            (model,) = state["models"]
            assert (sum(state["running"].values()), model["requests"]["ok"]) == (6, 20)
            assert [worker["in_flight"] for worker in model["workers"]] == [6]
            assert (state["ready"], state["draining"], model["workers"][0]["condition"]) == (True, False, "ready")


@pytest.mark.long
def test_one_that_dies_is_started_anew_and_its_counters_stay(pair: Serving) -> None:
    parent = pair.process.pid
    assert [chat(pair.url).status_code for _ in range(20)] == [200] * 20

    def counted() -> tuple[float, float]:
        page = httpx.get(pair.admin + "/metrics").text
        return total(page, "dragoman_requests_total"), total(page, "dragoman_request_duration_seconds_count")

    assert counted() == (20, 20)
    before = children(parent)
    os.kill(before[0], signal.SIGKILL)
    died = pair.event("process died")
    assert (died["process"], died["status"]) == (before[0], -signal.SIGKILL)
    pair.event("listening")
    assert len(children(parent)) == 2
    assert counted() == (20, 20)
    assert [chat(pair.url).status_code for _ in range(10)] == [200] * 10
    os.kill(children(parent)[0], signal.SIGKILL)
    pair.event("process died")
    assert all(count >= 20 for count in counted())
    pair.event("listening")
    assert counted()[0] >= 20


def test_a_reload_and_the_end_are_for_all_and_cut_no_stream(pair: Serving, workers: Stack) -> None:
    pair.process.send_signal(signal.SIGHUP)
    for _ in range(2):
        pair.event("reloaded")
    told: list[str] = []

    def stream() -> None:
        told.append(chat(pair.url, STALLED, stream=True).text)

    def running() -> float:
        return total(httpx.get(pair.admin + "/metrics").text, "dragoman_requests_running")

    def ended() -> bool:
        workers.loop.call_soon_threadsafe(workers.sim.go_on)  # again and again: one may not have stalled yet
        return not any(one.is_alive() for one in streams)

    streams = [threading.Thread(target=stream) for _ in range(6)]
    for one in streams:
        one.start()
    try:
        until(lambda: running() == len(streams))
        pair.process.send_signal(signal.SIGTERM)
        pair.event("draining")
    finally:
        until(ended)
    assert [stream.count("[DONE]") for stream in told] == [1] * len(streams)
    assert pair.end() == (0, "")
    assert [line["event"] for line in pair.lines].count("stopped") == 2


@pytest.mark.long
def test_the_children_end_with_their_parent(pair: Serving) -> None:
    own = children(pair.process.pid)
    pair.process.kill()
    pair.event("stopped")
    pair.event("stopped")
    assert len(own) == 2


MEMORY = "is counted in memory, by each of 2 processes for itself: --processes needs"
KEPT: dict[str, tuple[dict[str, Any], str]] = {
    f"a key's {kind}": ({"keys": {"a": {"hash": HASH, "limits": {kind: 5}}}}, f"keys.a.limits.{kind}: {MEMORY}")
    for kind in ("requests", "tokens", "concurrency")
} | {
    "a limit": ({"limits": [{"name": "all", "kind": "requests", "limit": 5}]}, f"limits.0: {MEMORY} a section redis"),
    "a limit beside Redis": (
        {
            "limits": [{"name": "all", "kind": "requests", "limit": 5}],
            "limiter": {"store": "memory"},
            "redis": {"url": "redis://127.0.0.1:1"},
        },
        f"limits.0: {MEMORY} limiter.store redis",
    ),
    "a team's": (
        {"keys": {"a": {"hash": HASH, "team": "blue"}}, "teams": {"blue": {"limits": {"team-requests": 5}}}},
        f"teams.blue.limits: {MEMORY} a section redis",
    ),
    "responses": ({"store": {"where": "memory"}}, "store.where: is of each of 2 processes for itself"),
}


@pytest.mark.parametrize("kept", KEPT)
def test_what_each_process_would_keep_for_itself_is_refused(
    tmp_path: Path, kept: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sections, named = KEPT[kept]
    path = tmp_path / "gateway.yaml"
    models = {"m": {"backend": "vllm", "workers": ["http://127.0.0.1:1"]}}
    path.write_text(yaml.safe_dump({"models": models, "listen": {"port": 0}, **sections}))
    assert cli.main(["serve", "--processes", "2", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert re.search(rf"^{re.escape(str(path))}:\d+: {re.escape(named)}", said.partition("dragoman: ")[2] or said, re.M)
    assert load(path, KNOWN, environ={}).models, "one process may have it"


@pytest.mark.long
def test_a_limit_that_a_reload_adds_is_refused_by_every_process(pair: Serving, workers: Stack) -> None:
    for kept in ("a key's requests", "a limit"):
        sections, named = KEPT[kept]
        pair.write(
            {**pair.sections, **sections, "auth": "open"} if "keys" not in sections else {**pair.sections, **sections}
        )
        pair.process.send_signal(signal.SIGHUP)
        for _ in range(2):
            assert any(named in fault for fault in pair.event("reload refused, the old configuration stays")["faults"])
        assert [chat(pair.url).status_code for _ in range(12)] == [200] * 12, "the old configuration knows no limit"


@pytest.mark.parametrize("wrong", ["0", "-1", "two", "257"])
def test_a_number_that_makes_no_sense_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", "--processes", wrong])
    assert ended.value.code == 2
    assert "from 1 to 256" in capsys.readouterr().err


async def test_figures_become_one_as_the_catalogue_says(tmp_path: Path) -> None:
    """The sum, the least or the most; what only one process has is as it is there."""
    names = {"dragoman_connections": 12.0, "dragoman_limits_strict": 0.0, "dragoman_draining": 1.0}
    registries = []
    for values in ((5.0, 1.0, 1.0), (7.0, 0.0, 0.0)):
        registry = CollectorRegistry()
        for name, value in zip(names, values, strict=True):
            Gauge(name, FIGURES[name].text, registry=registry).set(value)
        registries.append(registry)
    Gauge("dragoman_limits_in_flight", "", registry=registries[1]).set(3)
    first, second = ProcessGroup(tmp_path, 0, 3), ProcessGroup(tmp_path, 1, 3)  # the third is not there
    await second.start(registries[1], _same)
    try:
        found = await first.together(registries[0])
    finally:
        second.close()
    shown = {metric.name: metric.samples[0].value for metric in found.collect()}
    assert shown == {**names, "dragoman_limits_in_flight": 3.0}


async def test_two_scrapes_at_once_write_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They write the same file: half of one in the other, and the counters of dead processes would be gone."""
    together, met = threading.Barrier(2), []
    real = Path.write_bytes

    def write(path: Path, data: bytes) -> int:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.2)
            met.append(path)
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", write)
    one = ProcessGroup(tmp_path, 0, 1)
    await asyncio.gather(*(one.together(CollectorRegistry()) for _ in range(2)))
    assert not met


async def test_counters_stay_while_a_process_is_slow_dead_or_new(tmp_path: Path) -> None:
    """Whoever is asked, and however often; gauges go with their process."""

    def registry(count: int) -> CollectorRegistry:
        made = CollectorRegistry()
        Counter("dragoman_retries", "", ["model"], registry=made).labels("m").inc(count)
        Histogram("dragoman_request_duration_seconds", "", registry=made, buckets=[1.0]).observe(0.5)
        Gauge("dragoman_connections", "", registry=made).set(1)
        return made

    async def shown(one: ProcessGroup, made: CollectorRegistry) -> dict[str, float]:
        found = {
            sample.name.removeprefix("dragoman_"): sample.value
            for metric in (await one.together(made)).collect()
            for sample in metric.samples
        }
        return {name: found[name] for name in ("retries_total", "request_duration_seconds_count", "connections")}

    first, second = ProcessGroup(tmp_path, 0, 2), ProcessGroup(tmp_path, 1, 2)
    mine, theirs = registry(5), registry(7)
    await first.start(mine, _same)
    await second.start(theirs, _same)
    both = {"retries_total": 12.0, "request_duration_seconds_count": 2.0, "connections": 2.0}
    assert await shown(first, mine) == await shown(second, theirs) == both
    second.close()
    for _ in range(2):
        assert await shown(first, mine) == {**both, "connections": 1.0}
    third = ProcessGroup(tmp_path, 1, 2)
    again = registry(1)
    await third.start(again, _same)
    with_it = {"retries_total": 13.0, "request_duration_seconds_count": 3.0, "connections": 2.0}
    for _ in range(2):
        assert await shown(first, mine) == await shown(third, again) == with_it
    third.close()
    first.close()
