"""Engines that publish what they have cached, and what a gateway knows of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from gateway.fleet.blocks import Blocks
from tests.support.harness import Stack
from tests.support.simulated.kv_events import Publisher

WORKER: dict[str, Any] = {"kv_events_port": 0, "max_model_len": 32_768}
WORDS = "The river runs past the old mill and the market square. "


def listen(stack: Stack, replay: bool = True, scrape_s: float = 0) -> None:
    """From now on the gateway listens to its workers."""
    own = {}
    for sim in stack.sims:
        port, replay_port = sim.kv_ports
        own[sim.url] = {"kv_events": {"port": port, **({"replay_port": replay_port} if replay else {})}}
    model = {"kv_events": {}, "worker_options": own}
    health = {"interval_s": 5, "timeout_s": 5}
    config = stack.config({"models": {"m": model}, "routing": {"scrape_s": scrape_s}, "health": health})
    stack.run(stack.gateway.reload(config), 60)


def blocks(stack: Stack, index: int) -> Blocks:
    found = stack.gateway.deployment.workers["m", stack.sims[index].url].blocks
    assert found is not None
    return found


def publisher(stack: Stack, index: int = 0) -> Publisher:
    found = stack.sims[index].engine.publisher
    assert found is not None
    return found


def chat(name: str, turns: int = 1) -> dict[str, Any]:
    messages = []
    for turn in range(turns):
        if turn:
            messages.append({"role": "assistant", "content": f"answer {turn}"})
        messages.append({"role": "user", "content": f"{name}, turn {turn}: {WORDS * 20}"})
    return {"model": "m", "messages": messages, "max_tokens": 4}


def ask(stack: Stack, body: dict[str, Any], path: str = "/v1/chat/completions") -> tuple[str, str]:
    """(the worker that answered, why it was picked)."""
    reply = httpx.post(stack.url + path, json=body, headers={"x-dragoman-explain": "1"}, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.headers["x-dragoman-worker"], reply.headers["x-dragoman-picked"]


def send(stack: Stack, index: int, body: dict[str, Any]) -> None:
    """Another gateway sends `body` to a worker."""
    reply = httpx.post(stack.sims[index].url + "/v1/chat/completions", json={**body, "model": "sim"}, timeout=60)
    assert reply.status_code == 200, reply.text


def heard(stack: Stack, index: int) -> Callable[[], bool]:
    """The gateway knows all that the worker told."""
    return lambda: blocks(stack, index).last + 1 == publisher(stack, index).published


def tokenized(stack: Stack) -> int:
    return len([entry for sim in stack.sims for entry in sim.ledger.entries if entry.path == "/tokenize"])
