"""Canonical replies, events and errors to the bodies and streams of the Ollama-style API."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from gateway.core.errors import GatewayError
from gateway.core.events import Delta, Event, PartStart
from gateway.core.fields import own_words
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.lifecycle import Reply
from gateway.core.messages import Chat, Op
from gateway.dialects._shared.objects import members_of
from gateway.dialects._shared.streams import WholeCallWriter
from gateway.dialects.ollama_style.fields import FIELDS
from gateway.wire import sse
from gateway.wire.json import encode, encode_line, find, sent_names
from gateway.wire.openai.replies import refusals, writing


def write(reply: Reply, op: Op) -> Response:
    choice = reply.choices[0]
    _, thinking, _, calls = choice.by_kind()
    message: dict[str, Any] = {"role": "assistant", "content": choice.words}
    if thinking is not None:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = [_call(call.call_id, call.name, call.text) for call in calls]
    body = {
        "id": "cmpl-" + reply.start.id.removeprefix("chatcmpl-"),
        "model": writing.shown(op, reply.start.model),
        "created": reply.start.created,
        "message": message,
        "done": True,
    }
    return Response(200, [JSON_TYPE], encode(body))


def _call(call_id: str | None, name: str | None, text: str) -> dict[str, Any]:
    """A tool call. As in Ollama, arguments are an object; arguments that are not valid JSON stay text."""
    arguments = members_of(text or "{}")
    return {"id": call_id, "function": {"name": name, "arguments": text if arguments is None else arguments}}


# Both streams list it in the specification; the server drops it where it does not keep the connection.
_KEEP_ALIVE = (b"connection", b"keep-alive")

_TEXT = b'{"message":{"role":"assistant","content":%b},"done":false,"index":%d}'
_THINKING = b'{"message":{"role":"assistant","content":"","thinking":%b},"done":false,"index":%d}'
_CALLS = b'{"message":{"role":"assistant","content":"","tool_calls":[%b]},"done":false,"index":%d}'
_LAST = b'{"message":{"role":"assistant","content":%b},"done":true,"index":%d}\n'


class _ChunkWriter(WholeCallWriter):
    """The common part of both streams: the chunks, counted by `index`. Chunks without text are left out."""

    clean_end = True
    text: bytes
    thinking: bytes
    calls: bytes

    def __init__(self) -> None:
        super().__init__()
        self._index = 0
        # Part index -> the form of its chunks.
        self._forms: dict[int, bytes] = {}

    def chunk(self, event: Delta) -> bytes:
        """The chunk for `event`, or b""."""
        form = self._forms.get(event.index)
        if form is None:
            return self.gather(event)
        return self.numbered(form, encode_line(event.text)) if event.text else b""

    def text_started(self, event: PartStart, thinking: bool) -> None:
        self._forms[event.index] = self.thinking if thinking else self.text

    def called(self, start: PartStart, text: str) -> bytes:
        return self.numbered(self.calls, encode_line(_call(start.call_id, start.name, text)))

    def numbered(self, form: bytes, value: bytes) -> bytes:
        index = self._index
        self._index = index + 1
        return form % (value, index)


class LineWriter(_ChunkWriter):
    """Newline-delimited JSON. The last line has `done: true`. It has text only if the worker ends the choice in the
    same chunk as its last text: text is never held back to see whether it is the last."""

    headers = [JSON_TYPE, (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"), _KEEP_ALIVE]
    text, thinking, calls = _TEXT + b"\n", _THINKING + b"\n", _CALLS + b"\n"

    def __init__(self) -> None:
        super().__init__()
        self._held: bytes | None = None

    def write(self, event: Event) -> bytes:
        if type(event) is not Delta:
            return self.other(event)
        if event.last and self._forms.get(event.index) is self.text:
            self._held = encode_line(event.text)
            return b""
        return self.chunk(event)

    def ended(self) -> bytes:
        return self.numbered(_LAST, self._held or b'""')

    def failed(self, error: GatewayError) -> bytes:
        held = self.numbered(self.text, self._held) if self._held is not None else b""
        return held + encode_line({"error": error_object(error), "done": True}) + b"\n"

    def keepalive(self) -> bytes:
        """A space before the next line, where JSON allows it: an empty line would not be JSON."""
        return b" "


class SseWriter(_ChunkWriter):
    """Server-sent events, `done: false` throughout; `[END]` ends success and failure alike."""

    headers = [*sse.HEADERS, _KEEP_ALIVE]
    text, thinking, calls = sse.frame(_TEXT), sse.frame(_THINKING), sse.frame(_CALLS)

    def write(self, event: Event) -> bytes:
        return self.chunk(event) if type(event) is Delta else self.other(event)

    def ended(self) -> bytes:
        return END

    def failed(self, error: GatewayError) -> bytes:
        return error_events(error_object(error))


# -- errors -----------------------------------------------------------------------------------------------------------

END = b"data: [END]\n\n"
"""Ends every stream of events."""


def error_object(error: GatewayError, request: Request | None = None) -> dict[str, Any]:
    """The error object: message, type and code. It has no member for the field at fault, so the message names the field
    as the client does."""
    _, type_, code = refusals.ERRORS[error.kind]
    message = own_words(error, FIELDS["chat"], sent_names(request.body)) if request is not None else error.message
    return {"message": message, "type": type_, "code": error.code or code}


def refuse(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
    """(the answer, its code). A refusal has an error's status and the form of the reply that the client asked for: a
    stream of events, the last line of a stream of lines, or a whole body."""
    status = refusals.ERRORS[error.kind][0]
    headers = refusals.error_headers(error, status)
    wrong = error_object(error, request)
    if request is not None and request.route == "sse":
        return Response(status, [*sse.HEADERS, *headers], error_events(wrong)), wrong["code"]
    body = encode({"error": wrong, "done": True}) + b"\n" if _asked_for_lines(request, op) else encode({"error": wrong})
    return Response(status, [JSON_TYPE, *headers], body), wrong["code"]


def error_events(wrong: dict[str, Any]) -> bytes:
    """The end of a stream of events that failed. `[END]` also ends a stream that succeeded."""
    return sse.frame(encode_line(wrong), b"error") + END


def _asked_for_lines(request: Request | None, op: Op | None) -> bool:
    """True if the client asked for lines of JSON, or may have: callers without a valid key, for one, are refused before
    their body is read. One line with `done` is a whole body, too. Also works for a request that could not be read."""
    if request is None or request.route != "chat":
        return False
    if isinstance(op, Chat):
        return op.stream
    return not request.body or find(request.body, "stream") == Raw(b"true")
