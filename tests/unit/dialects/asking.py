"""Requests in a dialect, what is made of them on their way to a worker, and what its clients hear of a worker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import backends, dialects
from gateway.auth import new_key
from gateway.backends.vllm import Vllm
from gateway.core.errors import GatewayError
from gateway.core.events import Delta, End, Event, Finish, PartEnd, PartStart, Start
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.messages import Chat, Generate, Op
from gateway.core.ports import Capabilities, Dialect, Settings
from gateway.translation.lanes import EventLane
from gateway.translation.offline import Crossing, send

SCRIPTS: dict[str, dict[str, Any]] = {
    "text": {"text": "Hello there"},
    "empty": {"text": ""},
    "thinking": {"reasoning": "hm", "text": "Hello"},
    "call": {"tool_calls": [{"name": "f", "arguments": {"a": 1}}]},
    "mixed": {
        "interleave": True,
        "tool_calls": [{"name": name, "arguments": {"path": f"{name} " * 9}} for name in "fgh"],
    },
    "cut": {"text": "Hello", "finish": "length"},
}
"""What a simulated worker may answer."""
CAN = Capabilities("w")
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
ONE, TWO = '{"a": "x"}', '{"b": [1, {}]}'
"""The arguments of the calls of `SIDE_BY_SIDE`."""
SIDE_BY_SIDE: tuple[Event, ...] = (
    PartStart(0, 0, "tool", "c1", "f"),
    PartStart(0, 1, "tool", "c2", "g"),
    *(Delta(0, part, text) for pair in zip(ONE + "    ", TWO, strict=True) for part, text in enumerate(pair)),
    PartEnd(0, 0),
    PartEnd(0, 1),
    Finish(0, "tool_calls", "tool_calls"),
    End(),
)
"""Two calls, written in turns."""


def request(
    body: Any, *headers: tuple[bytes, bytes], route: str = "chat", query: bytes = b"", method: str = "POST"
) -> Request:
    """A request with `body`, its JSON, or none."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return Request(method, "/", [JSON_TYPE, *headers], raw, query, route, {}, "r")


def refused(dialect: Dialect, asked: Request) -> Response:
    """The response to a request that the dialect itself refuses."""
    with pytest.raises(GatewayError) as caught:
        dialect.read(asked)
    return dialect.refuse(caught.value, asked, None)[0]


def to_worker(op: Op, can: Capabilities = CAN) -> Any:
    """What vLLM gets."""
    return json.loads(Vllm().write(op, can).body)


def lane(dialect: Dialect, op: Generate) -> EventLane:
    """From vLLM's stream to the client's."""
    return EventLane(lambda: Vllm().reader(op), dialect.writer(op))


class Asking:
    """The chats of one dialect. least: the members that each has."""

    def __init__(self, dialect: str, **least: Any) -> None:
        self.dialect = dialects.create(dialect, Settings())
        self.least = least

    def body(self, **members: Any) -> dict[str, Any]:
        return {"model": "m", **self.least, **members}

    def read(self, **members: Any) -> Chat:
        op = self.dialect.read(request(self.body(**members)))
        assert isinstance(op, Chat)
        return op

    def crossing(self, backend: str = "vllm", can: Capabilities | None = None, **members: Any) -> Crossing:
        """On its way to a worker."""
        raw = json.dumps(self.body(**members)).encode()
        return send(self.dialect, backends.create(backend), raw, can or Capabilities("w"), route="chat")

    def sent(self, backend: str = "vllm", can: Capabilities | None = None, **members: Any) -> Any:
        """What a worker gets."""
        return json.loads(self.crossing(backend, can, **members).outgoing.body)

    def streamed(self, *events: Event, **members: Any) -> str:
        """What a client hears of these events behind a worker's begin."""
        writer = self.dialect.writer(self.read(**members))
        return b"".join(map(writer.write, (Start("chatcmpl-1", "w", 1), *events))).decode()


def keyed(**options: Any) -> tuple[str, dict[str, Any]]:
    """(a key, a configuration with it alone)"""
    key, entry = new_key("app")
    return key, {"auth": "keys", "keys": {"app": {"hash": entry.split("hash: ")[1].split()[0], **options}}}
