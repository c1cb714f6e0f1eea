"""Clients that leave: the engine stops computing for them within a second."""

from __future__ import annotations

import json
import re
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest

from tests.engine.ask import ENDLESS, WAYS, Way
from tests.harness import Stack

pytestmark = pytest.mark.engine

LEFT_WITHIN_S = 1.0
CASES = [
    pytest.param(way, stream, id=f"{name} {'streamed' if stream else 'whole'}")
    for name, way in WAYS.items()
    for stream in (False, True)
    if way.can(stream)
]


def running(engine: httpx.Client) -> int:
    text = engine.get("/metrics").text
    found = re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", text, re.MULTILINE)
    return sum(int(float(value)) for value in found)


@pytest.mark.parametrize(("way", "stream"), CASES)
def test_a_client_that_leaves(stack: Stack, engine: httpx.Client, way: Way, stream: bool) -> None:
    assert _within(engine, 0) < 10
    sent = json.dumps(way.body(stream, ENDLESS, max_tokens=800, temperature=0)).encode()
    parts = urlsplit(stack.url)
    with socket.create_connection((parts.hostname, parts.port)) as link:
        head = f"POST {way.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        link.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(sent) + sent)
        assert _within(engine, 1) < 30, "the engine was never seen at work"
        if stream:
            assert link.recv(64).startswith(b"HTTP/1.1 200")
    assert _within(engine, 0) < LEFT_WITHIN_S


def _within(engine: httpx.Client, wanted: int) -> float:
    """Seconds until that many requests run."""
    began = time.monotonic()
    while running(engine) != wanted:
        if time.monotonic() - began > 30:
            return 30.0
        time.sleep(0.02)
    return time.monotonic() - began
