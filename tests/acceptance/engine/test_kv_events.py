"""What vLLM publishes of its prefix cache is what the gateway picks by."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from gateway.fleet.blocks import Blocks
from tests.acceptance.engine.conftest import Engine
from tests.support.harness import Stack, until
from tests.support.ports import free_port

pytestmark = [pytest.mark.engine, pytest.mark.whole]  # it waits for an engine of its own or for its caches

BLOCK = 128
"""Tokens of a block on the CPU."""
WORDS = "The river runs past the old mill and the market square. "


@pytest.fixture(scope="module")
def telling(start: Callable[..., Engine]) -> Iterator[tuple[Engine, dict[str, int]]]:
    """An engine that publishes, and the ports."""
    ports = {"port": free_port(), "replay_port": free_port()}
    endpoints = f'"endpoint": "tcp://*:{ports["port"]}", "replay_endpoint": "tcp://*:{ports["replay_port"]}"'
    events = f'{{"enable_kv_cache_events": true, "publisher": "zmq", {endpoints}}}'
    engine = start("--kv-events-config", events)
    engine.ready()
    yield engine, ports
    engine.stop()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is, the engine's tokens come in time."""
    monkeypatch.setattr("gateway.features.kv_events._LONGEST_S", 60.0)


@pytest.fixture
def stack(telling: tuple[Engine, dict[str, int]]) -> Iterator[Stack]:
    """A gateway in front of it and of a worker that tells nothing."""
    engine, ports = telling
    with Stack(({"models": ("smollm2",)},), CONFIG) as stack:
        own = {stack.sim.url: {"kv_events": {"port": free_port()}}}
        model: dict[str, Any] = {"workers": [stack.sim.url, engine.url], "kv_events": ports, "worker_options": own}
        model["upstream_model"] = "smollm2"
        stack.run(stack.gateway.reload(stack.config({"models": {"m": model}})), 60)
        blocks = cached(stack, engine)
        until(lambda: blocks.live and blocks.owner is not None, 60)
        yield stack


def cached(stack: Stack, engine: Engine) -> Blocks:
    blocks = stack.gateway.deployment.workers["m", engine.url].blocks
    assert blocks is not None
    return blocks


# Without the engine's load: it would say for a while that what others asked for still runs.
CONFIG = {"health": {"timeout_s": 10, "interval_s": 10}, "routing": {"scrape_s": 0}}
RUN = f"{time.time():.0f}"


def chat(name: str, turns: int) -> dict[str, Any]:
    messages = []
    for turn in range(turns):
        if turn:
            messages.append({"role": "assistant", "content": f"answer {turn}"})
        messages.append({"role": "user", "content": f"{RUN} {name}, turn {turn}: {WORDS * 25}"})
    return {"messages": messages, "max_tokens": 2}


def grown(blocks: Blocks, least: int) -> bool:
    return len(blocks) >= least


def test_what_others_sent_is_known(stack: Stack, telling: tuple[Engine, dict[str, int]]) -> None:
    engine, _ = telling
    blocks = cached(stack, engine)
    for index in range(4):  # by its place alone, one of two conversations would come there
        before = len(blocks)
        body = {**chat(f"conversation {index}", 1), "model": "smollm2"}
        assert httpx.post(engine.url + "/v1/chat/completions", json=body, timeout=120).status_code == 200
        until(partial(grown, blocks, before + 2), 60)
        assert blocks.size == BLOCK
        asked = {**chat(f"conversation {index}", 2), "model": "m"}
        headers = {"x-dragoman-explain": "1"}
        reply = httpx.post(stack.url + "/v1/chat/completions", json=asked, headers=headers, timeout=120)
        assert reply.status_code == 200, reply.text
        assert reply.headers["x-dragoman-worker"] == engine.url
        assert reply.headers["x-dragoman-picked"].startswith("prefix;why=prefix;matched=0.")
    assert blocks.whole


def test_who_comes_late_is_told_again(stack: Stack, telling: tuple[Engine, dict[str, int]]) -> None:
    blocks = cached(stack, telling[0])
    assert blocks.whole
    assert len(blocks) >= 2


def test_salts_are_told(telling: tuple[Engine, dict[str, int]], stack: Stack) -> None:
    engine, _ = telling
    blocks = cached(stack, engine)
    before = len(blocks)
    body = {**chat("conversation 0", 1), "model": "smollm2", "cache_salt": "s" * 40}
    assert httpx.post(engine.url + "/v1/chat/completions", json=body, timeout=120).status_code == 200
    until(lambda: len(blocks) >= before + 2, 60)
    assert blocks.salted
