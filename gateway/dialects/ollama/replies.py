"""Canonical replies and events to the bodies and streams of the Ollama-style API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from gateway.core.errors import GatewayError
from gateway.core.events import Delta, End, Event, Failed, PartEnd, PartStart
from gateway.core.http import JSON_TYPE, Headers, Response
from gateway.core.lifecycle import Reply, ReplyPart
from gateway.core.messages import Op
from gateway.dialects.ollama.errors import END, error_events
from gateway.wire import sse
from gateway.wire.json import encode, encode_line
from gateway.wire.openai.replies import writing


def write(reply: Reply, op: Op) -> Response:
    """A whole reply."""
    choice = reply.choices[0]
    message: dict[str, Any] = {"role": "assistant", "content": choice.words}
    thinking = choice.text("thinking")
    if thinking is not None:
        message["thinking"] = thinking
    if choice.calls:
        message["tool_calls"] = [_write_call(call) for call in choice.calls]
    body = {
        "id": "cmpl-" + reply.start.id.removeprefix("chatcmpl-"),
        "model": writing.shown(op, reply.start.model),
        "created": reply.start.created,
        "message": message,
        "done": True,
    }
    return Response(200, [JSON_TYPE], encode(body))


def _write_call(call: ReplyPart) -> dict[str, Any]:
    """A tool call. As in Ollama, arguments are an object; arguments that are not valid JSON stay text."""
    return _call(call.call_id, call.name, call.text)


def _call(call_id: str | None, name: str | None, text: str) -> dict[str, Any]:
    try:
        arguments: Any = msgspec.json.decode(text, type=dict[str, Raw]) if text else {}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        arguments = text
    return {"id": call_id, "function": {"name": name, "arguments": arguments}}


# Both streams list it in the specification; the server drops it where it does not keep the connection.
_KEPT = (b"connection", b"keep-alive")

_TEXT = b'{"message":{"role":"assistant","content":%b},"done":false,"index":%d}'
_THINKING = b'{"message":{"role":"assistant","content":"","thinking":%b},"done":false,"index":%d}'
_CALLS = b'{"message":{"role":"assistant","content":"","tool_calls":[%b]},"done":false,"index":%d}'
_LAST = b'{"message":{"role":"assistant","content":%b},"done":true,"index":%d}\n'


# Bytes of memory that a piece of text takes in addition to its characters.
_PIECE = 64


class _Writer:
    """The common part of both streams: the chunks, counted by `index`. Chunks without text are left out."""

    headers: Headers
    clean_end = True

    def __init__(self, error_object: Callable[[GatewayError], dict[str, Any]]) -> None:
        self.buffered_bytes = 0
        self._error_object = error_object
        self._index = 0
        # Part index -> the call's start and the pieces of its arguments. A call is sent as one chunk when complete.
        self._calls: dict[int, tuple[PartStart, list[str]]] = {}
        self._thinking: set[int] = set()

    def chunk(self, event: Event) -> bytes:
        """The chunk for `event`, or b""."""
        if isinstance(event, Delta):
            if event.index in self._calls:
                self._calls[event.index][1].append(event.text)
                self.buffered_bytes += _PIECE + len(event.text)
                return b""
            if not event.text:
                return b""
            form = _THINKING if event.index in self._thinking else _TEXT
            return self._next(form, encode_line(event.text))
        if isinstance(event, PartStart):
            if event.kind == "tool":
                self._calls[event.index] = (event, [])
            elif event.kind == "thinking":
                self._thinking.add(event.index)
        elif isinstance(event, PartEnd) and event.index in self._calls:
            start, pieces = self._calls.pop(event.index)
            text = "".join(pieces)
            self.buffered_bytes -= _PIECE * len(pieces) + len(text)
            return self._next(_CALLS, encode_line(_call(start.call_id, start.name, text)))
        return b""

    def _next(self, form: bytes, value: bytes) -> bytes:
        index = self._index
        self._index = index + 1
        return form % (value, index)


class LineWriter(_Writer):
    """Newline-delimited JSON. The last line has `done: true`. It has text only if the worker ends the choice in the
    same chunk as its last text: text is never held back to see whether it is the last."""

    headers = [JSON_TYPE, (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"), _KEPT]

    def __init__(self, error_object: Callable[[GatewayError], dict[str, Any]]) -> None:
        super().__init__(error_object)
        self._held: bytes | None = None

    def write(self, event: Event) -> bytes:
        if isinstance(event, Delta):
            if event.last and event.index not in self._calls and event.index not in self._thinking:
                self._held = encode_line(event.text)
                return b""
            chunk = self.chunk(event)
            return chunk + b"\n" if chunk else b""
        if isinstance(event, End):
            return self._next(_LAST, self._held or b'""')
        if isinstance(event, Failed):
            held = self._next(_TEXT, self._held) + b"\n" if self._held is not None else b""
            return held + encode_line({"error": self._error_object(event.error), "done": True}) + b"\n"
        chunk = self.chunk(event)
        return chunk + b"\n" if chunk else b""

    def keepalive(self) -> bytes:
        """A space before the next line, where JSON allows it: an empty line would not be JSON."""
        return b" "


class EventWriter(_Writer):
    """Server-sent events, `done: false` throughout; `[END]` ends success and failure alike."""

    headers = [*sse.HEADERS, _KEPT]

    def write(self, event: Event) -> bytes:
        if isinstance(event, End):
            return END
        if isinstance(event, Failed):
            return error_events(self._error_object(event.error))
        chunk = self.chunk(event)
        return b"data: " + chunk + b"\n\n" if chunk else b""

    def keepalive(self) -> bytes:
        return sse.KEEPALIVE
