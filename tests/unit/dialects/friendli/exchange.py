"""What the tests of the dialect `friendli` share: its requests read, a worker's chunks, the events told."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from typing import Any

from gateway.backends.vllm import Vllm
from gateway.core.errors import GatewayError
from gateway.core.messages import Chat, Complete
from gateway.core.ports import Capabilities
from gateway.dialects.friendli import Friendli
from gateway.dialects.friendli.fields import FIELDS
from tests.unit.dialects import asking
from tests.unit.dialects.asking import HI

DIALECT = Friendli()
CAN = Capabilities("w", max_context=2048)
request = partial(asking.request, route="complete")
# What friendli-client 1.5.8 sends, nulls and all.
CLIENT_BODY: dict[str, Any] = {
    **{field.name: None for field in FIELDS["complete"] if field.sample is not None},
    "stream": False,
    "prompt": "Say this is a test!",
}
del CLIENT_BODY["response_format"]


def read(members: dict[str, Any] | None = None, *headers: tuple[bytes, bytes], **more: Any) -> Complete:
    op = DIALECT.read(request({"prompt": "hi", **(members or {}), **more}, *headers))
    assert isinstance(op, Complete)
    return op


def read_chat(**members: Any) -> Chat:
    op = DIALECT.read(request({"messages": HI, **members}, route="chat"))
    assert isinstance(op, Chat)
    return op


to_worker = partial(asking.to_worker, can=CAN)
lane = partial(asking.lane, DIALECT)


def refused(body: Any, route: str = "complete") -> tuple[int, dict[str, Any]]:
    """(status, error) of a request that the dialect or the backend refuses."""
    asked = request(body, route=route)
    op: Chat | Complete | None = None
    try:
        found = DIALECT.read(asked)
        assert isinstance(found, (Chat, Complete))
        op = found
        Vllm().write(op, CAN)
    except GatewayError as error:
        response = DIALECT.refuse(error, asked, op)[0]
        return response.status, json.loads(response.body)["error"]
    raise AssertionError("it was not refused")


def chunk(index: int = 0, text: str = "", ids: Iterable[int] | None = None, **more: Any) -> bytes:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": None, "token_ids": ids, **more}
    return b"data: " + json.dumps({"id": "c", "model": "w", "created": 1, "choices": [choice]}).encode() + b"\n\n"


def usage(prompt: int, completion: int) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return b"data: " + json.dumps({"id": "c", "model": "w", "choices": [], "usage": counts}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def events(out: bytes) -> list[dict[str, Any]]:
    assert out.endswith(b"\n\n")
    pieces = out[:-2].split(b"\n\n")
    assert all(piece.startswith(b"data: {") and b"\n" not in piece for piece in pieces)
    return [json.loads(piece[6:]) for piece in pieces]


def sampled(out: bytes) -> list[tuple[int, str, int | None]]:
    return [
        (event["index"], event["text"], event["token"]) for event in events(out) if event["event"] == "token_sampled"
    ]
