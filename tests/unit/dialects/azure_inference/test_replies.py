"""Replies and streams of Azure AI Model Inference."""

from __future__ import annotations

import json
from typing import Any

from gateway.backends.vllm import Vllm
from gateway.core.http import Response
from gateway.core.lifecycle import fold
from gateway.translation.lanes import EventLane
from tests.unit.dialects.azure_inference.exchange import DIALECT, SAMPLE_REPLY, SAMPLE_REQUEST, chat, read


def frame(choices: list[Any], **more: Any) -> bytes:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "w", "choices": choices, **more}
    return b"data: " + json.dumps(head).encode() + b"\n\n"


def delta(finish: str | None = None, **members: Any) -> bytes:
    return frame([{"index": 0, "delta": members, "logprobs": None, "finish_reason": finish, "token_ids": None}])


STREAM = [
    delta(role="assistant", content=""),
    delta(content="h\u2028i"),
    delta(content=" you"),
    delta("stop", content=""),
    frame([], usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}),
    b"data: [DONE]\n\n",
]


def lane(**members: Any) -> EventLane:
    op = read(chat(stream=True, **members), (b"extra-parameters", b"pass-through"))
    op.model = "m"
    return EventLane(lambda: Vllm().reader(op), DIALECT.writer(op))


def chunk(delta: str, reason: str = "null") -> bytes:
    text = (
        '{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
        f'{delta},"logprobs":null,"finish_reason":{reason}}}]}}'
    )
    return b"data: " + text.encode() + b"\n\n"


WANTED = [
    chunk('{"role":"assistant","content":""}'),
    chunk('{"content":"h\\u2028i"}'),
    chunk('{"content":" you"}'),
    chunk("{}", '"stop"'),
    b"",
    b"data: [DONE]\n\n",
]


def test_sample_reply() -> None:
    message = {"role": "assistant", "content": "No, it has never been proved", "refusal": None, "reasoning": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "token_ids": None}
    usage = {"prompt_tokens": 205, "total_tokens": 210, "completion_tokens": 5, "prompt_tokens_details": None}
    nothing = dict.fromkeys(("service_tier", "system_fingerprint", "kv_transfer_params"))
    worker = {"id": "1234567890", "created": 1234567890, "model": "w", "choices": [choice], "usage": usage, **nothing}
    op = read(SAMPLE_REQUEST)
    op.model = "llama2-70b-chat"
    reply = fold(Vllm().read(Response(200, [], json.dumps(worker).encode()), op))
    response = DIALECT.write(reply, op)
    # The specification prints it with spaces: member order and values are compared, the blanks are not.
    assert response.body.decode() == json.dumps(SAMPLE_REPLY, separators=(",", ":"))
    assert response.header(b"content-type") == b"application/json"


def test_stream() -> None:
    found = lane()
    pieces = [found.feed(piece) for piece in STREAM]
    assert pieces[:3] == WANTED[:3], "at once, but for the end"
    assert b"".join(pieces) == b"".join(WANTED)
    assert found.done
    assert found.error is None
    assert found.usage is not None
    assert found.usage.output == 2
    assert (b"content-type", b"text/event-stream") in found.headers


def test_every_line_is_one_that_the_client_reads() -> None:
    """azure-ai-inference raises at any line that is neither blank nor `data: …`, and at CR."""
    found = lane()
    stream = b"".join(STREAM).replace(b"data: ", b": ping\ndata:").replace(b"\n", b"\r\n")
    out = found.feed(stream) + found.keepalive()
    assert found.done
    assert b"\r" not in out
    assert all(not line or line.startswith(b"data: ") for line in out.split(b"\n"))
