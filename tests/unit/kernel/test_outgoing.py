"""What workers are sent: the client's trace context, where it is valid."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.harness import Stack

CHAT = "/v1/chat/completions"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def chat(**members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **members}


def traced(entry: Any) -> dict[str, str]:
    """The headers of a trace in an entry of a worker's ledger."""
    return {name.decode(): value.decode() for name, value in entry.headers if name.startswith(b"trace")}


@pytest.mark.parametrize(
    ("sent", "passed_on"),
    [
        ({}, {}),
        ({"traceparent": PARENT}, {"traceparent": PARENT}),
        ({"traceparent": PARENT, "tracestate": "a=b, c=d"}, {"traceparent": PARENT, "tracestate": "a=b,c=d"}),
        ({"traceparent": "sk-secret", "tracestate": "a=b"}, {}),
        ({"tracestate": "a=b"}, {}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_clients_trace_goes_on_at_the_worker(sent: dict[str, str], passed_on: dict[str, str], stream: bool) -> None:
    with Stack() as stack:
        httpx.post(stack.url + CHAT, json=chat(stream=stream), headers=sent)
        (entry,) = stack.sim.entries
        assert traced(entry) == passed_on


def test_every_worker_that_is_tried_is_told_of_the_trace() -> None:
    with Stack(({"fault": "status:503"}, {"fault": "status:503"})) as stack:
        httpx.post(stack.url + CHAT, json=chat(), headers={"traceparent": PARENT})
        for sim in stack.sims:
            (entry,) = sim.entries
            assert traced(entry) == {"traceparent": PARENT}
