"""Clients that leave: the engine stops computing for them within a second."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest

from tests.acceptance.engine.ask import ENDLESS, Way, drawn_cases
from tests.support.harness import Stack

pytestmark = pytest.mark.engine

TOKENS = 800
STOPPED_WITHIN_S = 1.0
TRIES = 3


class Work(NamedTuple):
    """What the engine did and does: tokens computed and requests that came to their end so far, requests it runs."""

    tokens: int
    ended: int
    running: int


def work(engine: httpx.Client) -> Work:
    text = engine.get("/metrics").text

    def total(name: str) -> int:
        return sum(int(float(value)) for value in re.findall(rf"^vllm:{name}\{{.*\}} (\S+)$", text, re.MULTILINE))

    return Work(total("generation_tokens_total"), total("request_success_total"), total("num_requests_running"))


@drawn_cases("leaving")
def test_a_client_that_leaves(stack: Stack, engine: httpx.Client, way: Way, stream: bool) -> None:
    body = json.dumps(way.body(stream, ENDLESS, max_tokens=TOKENS, temperature=0)).encode()
    before = _until(engine, lambda now: now.running == 0)
    took: list[float] = []
    # A machine that stood still for a moment excuses one try.
    while min(took, default=STOPPED_WITHIN_S) >= STOPPED_WITHIN_S and len(took) < TRIES:
        took.append(_leave(stack, engine, way.path, body))
    after = work(engine)
    assert after.ended == before.ended, "an answer came to its end: nothing was stopped"
    assert min(took) < STOPPED_WITHIN_S, took


def _leave(stack: Stack, engine: httpx.Client, path: str, body: bytes) -> float:
    """Asks and leaves once the engine computes. Returns the seconds until it computed no more."""
    before = work(engine)
    parts = urlsplit(stack.url)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((parts.hostname, parts.port)) as link:
        link.sendall(head.encode() + body)
        try:
            _until(engine, lambda now: now.tokens > before.tokens)
        except TimeoutError:
            link.settimeout(1)
            pytest.fail(f"the engine was never at work; the gateway said {link.recv(4096)!r}")
    left = time.monotonic()
    _until(engine, lambda now: now.running == 0)
    return time.monotonic() - left


def _until(engine: httpx.Client, wanted: Callable[[Work], bool]) -> Work:
    """What was seen when it came true. Raises TimeoutError after two minutes: an engine on a CPU may compile first."""
    end = time.monotonic() + 120
    while not wanted(now := work(engine)):
        if time.monotonic() > end:
            raise TimeoutError(now)
        time.sleep(0.02)
    return now
