"""What a request leaves behind: nothing that would wait for the garbage collector, whatever became of it."""

from __future__ import annotations

import gc
import json

import httpx
import pytest

from gateway.kernel.call import Call
from tests.support.harness import Stack


@pytest.fixture(autouse=True, scope="module")
def before() -> None:
    """What other tests have left is not looked through again and again."""
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize(
    "fault",
    ["", "status:400", "status:503", "reset", "reset@2", "error-frame:500", "bad-json", "stall@before"],
)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/ollama/chat/completions"])
def test_no_request_waits_for_the_collector(fault: str, stream: bool, path: str) -> None:
    script = {"text": "a b c", "fault": fault} if fault else {"text": "a b c"}
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "sim:" + json.dumps(script)}],
        "stream": stream,
    }

    async def left() -> int:
        return sum(isinstance(one, Call) for one in gc.get_objects())

    config = {
        "deadlines": {"first_byte_s": 0.2, "idle_s": 0.2},
        "retry": {"attempts": 1},
        "relay": {"keepalive_s": 0.05},
        "limits": [{"name": "slots", "kind": "concurrency", "limit": 5}],
    }
    with Stack(config=config) as stack, httpx.Client(timeout=30) as client:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                try:
                    client.post(stack.url + path, json=body)
                except httpx.RemoteProtocolError:
                    assert stream
            assert stack.run(left()) <= 1  # the last one may be on its way out
        finally:
            gc.enable()
