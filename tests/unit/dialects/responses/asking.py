"""Requests of the Responses API, what is made of them, and its streams as its clients hear them."""

from __future__ import annotations

import json
from typing import Any

from gateway.core.events import Event
from tests.laws.conformance.clients.responses import hear_responses
from tests.unit.dialects.asking import Asking

ASKING = Asking("responses", input="hi")
DIALECT, body, read, crossing, sent = ASKING.dialect, ASKING.body, ASKING.read, ASKING.crossing, ASKING.sent
TOOL: dict[str, Any] = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}
SPACE: dict[str, Any] = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents.",
    "tools": [{"type": "function", "name": "wait", "parameters": {"type": "object"}, "strict": False}],
}
PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "patch",
    "description": "Changes files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}


def scripted(*, stream: bool = False, also: dict[str, Any] | None = None, **script: Any) -> dict[str, Any]:
    """A request to which a simulated worker answers as `script` says; `also` are other members of it."""
    return body(**{"stream": stream, "input": "sim:" + json.dumps(script), **(also or {})})


def message(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def call(number: int, **members: Any) -> dict[str, Any]:
    """An item that a client sends back as it got it."""
    own = {"id": f"fc_{number}", "call_id": f"c{number}", "name": "f", "arguments": json.dumps({"i": number})}
    return {"type": "function_call", "status": "completed", **own, **members}


def output(number: int, said: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": said}


def frames(stream: str) -> list[dict[str, Any]]:
    """The events of a stream, which the strictest of clients understands."""
    hear_responses(stream.encode())
    return [json.loads(piece.split("\ndata: ", 1)[1]) for piece in stream.split("\n\n") if piece]


def waited_twice(said: bytes) -> bool:
    """Whether a client was kept waiting two times, behind the begin."""
    return said.count(b"event: response.in_progress\n") >= 3


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def stream_of(*events: Event, **members: Any) -> list[dict[str, Any]]:
    """What a client hears of these events behind a worker's begin."""
    return frames(ASKING.streamed(*events, **members))
