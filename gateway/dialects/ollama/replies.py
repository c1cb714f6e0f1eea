"""Canonical replies, events and errors to the bodies and lines of Ollama's API."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, Event, PartStart, Start
from gateway.core.fields import Field, own_words
from gateway.core.http import JSON_TYPE, Headers, Request, Response
from gateway.core.lifecycle import Embeddings, Reply
from gateway.core.messages import Generate, Op
from gateway.dialects._shared.faults import refusal
from gateway.dialects._shared.objects import call_arguments
from gateway.dialects._shared.streams import WholeCallWriter
from gateway.dialects.ollama import models
from gateway.dialects.ollama.fields import FIELDS
from gateway.dialects.ollama.models import LINES, stamp
from gateway.dialects.ollama.requests import OPERATIONS, ReplyFacts
from gateway.wire import clock
from gateway.wire.json import encode, encode_line, find, one_line, sent_names
from gateway.wire.openai.replies import refusals, writing

_numbers = msgspec.json.Decoder(list[float]).decode
# A vector whose norm is 1 within the precision of 32 bits is passed on unchanged.
_UNIT = 1e-6


def write(reply: Reply, op: Op) -> Response:
    """A whole reply. The time of its first token is unknown, so all of the time counts as generation."""
    facts, choice = ReplyFacts.of(op), reply.choices[0]
    _, thinking, _, calls = choice.by_kind()
    if facts.route == "chat":
        inner: dict[str, Any] = {"role": "assistant", "content": choice.words}
        body: dict[str, Any] = {"message": inner}
    else:
        body = inner = {"response": choice.words}
    if thinking and not facts.quiet:
        inner["thinking"] = thinking
    if calls:
        inner["tool_calls"] = [_call(at, call.call_id, call.name, call.text) for at, call in enumerate(calls)]
    if choice.logprobs:
        body["logprobs"] = writing.join_logprobs(choice.logprobs)
    if facts.route == "generate":
        body["context"] = []
    spent = max(1, clock.nanoseconds() - facts.began)
    head = {"model": facts.model, "created_at": stamp(reply.start.created)}
    last = {"done": True, "done_reason": _reason(choice.reason), **models.metrics(reply.usage, 1, spent)}
    return Response(200, [JSON_TYPE], encode({**head, **body, **last}))


def write_embeddings(reply: Embeddings, op: Op) -> Response:
    """Vectors in the order of the inputs: normalised, or for the old path as the worker wrote them."""
    facts = ReplyFacts.of(op)
    if facts.route == "embeddings":
        return Response(200, [JSON_TYPE], encode({"embedding": reply.vectors[0]}))
    body = {
        "model": facts.model,
        "embeddings": [_normal(vector) for vector in reply.vectors],
        **models.prompt_metrics(reply.usage, max(1, clock.nanoseconds() - facts.began)),
    }
    return Response(200, [JSON_TYPE], encode(body))


def _normal(vector: Raw) -> Any:
    numbers = _numbers(vector)
    norm = math.hypot(*numbers)
    if norm == 0 or abs(norm - 1) < _UNIT or not math.isfinite(norm):
        return vector
    return [number / norm for number in numbers]


def _reason(reason: str) -> str:
    """Ollama's reason for the end. A reply with tool calls ends with `stop`, too."""
    return "length" if reason == "length" else "stop"


def _call(index: int, call_id: str | None, name: str | None, text: str) -> dict[str, Any]:
    return {"id": call_id, "function": {"index": index, "name": name, "arguments": call_arguments(text.strip())}}


class LineWriter(WholeCallWriter):
    """One stream, a line of JSON for each piece."""

    headers: Headers = [*LINES, (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
    # No `clean_end`: most clients take a clean end after an error as success.

    def __init__(self, op: Generate) -> None:
        super().__init__()
        self._facts = ReplyFacts.of(op)
        self._head = b""
        # Part index -> the bytes before and after its text in a line.
        self._lines: dict[int, tuple[bytes, bytes]] = {}
        self._called = 0
        self._first = 0

    def write(self, event: Event) -> bytes:
        if type(event) is Delta:
            line = self._lines.get(event.index)
            if line is None:
                return self.gather(event)
            if event.logprobs is not None:
                return self._with_logprobs(event, line)
            return line[0] + encode_line(event.text) + line[1] if event.text else b""
        return self.other(event)

    def started(self, event: Start) -> bytes:
        head = {"model": self._facts.model, "created_at": stamp(event.created)}
        self._head = encode_line(head)[:-1] + b","
        return b""

    def keepalive(self) -> bytes:
        """A space before the next line, where JSON allows it: an empty line would not be JSON."""
        return b" "

    def part_started(self, event: PartStart) -> bytes:
        self._first = self._first or clock.nanoseconds()
        return super().part_started(event)

    def text_started(self, event: PartStart, thinking: bool) -> None:
        if not (thinking and self._facts.quiet):
            self._lines[event.index] = self._around(b"thinking" if thinking else b"")

    def _around(self, name: bytes) -> tuple[bytes, bytes]:
        """The bytes before and after a text: for the content, or for a member `name` beside an empty content."""
        member = b'"",' + b'"%b":' % name if name else b""
        if self._facts.route == "chat":
            return self._head + b'"message":{"role":"assistant","content":' + member, b'},"done":false}\n'
        return self._head + b'"response":' + member, b',"done":false}\n'

    def _with_logprobs(self, event: Delta, line: tuple[bytes, bytes]) -> bytes:
        logprobs = b',"logprobs":' + one_line(bytes(event.logprobs or b"[]"))
        before, after = line
        end = after.index(b',"done"')
        return before + encode_line(event.text) + after[:end] + logprobs + after[end:]

    def called(self, start: PartStart, text: str) -> bytes:
        before, after = self._around(b"tool_calls")
        call = encode_line([_call(self._called, start.call_id, start.name, text)])
        self._called += 1
        return before + call + after

    def failed(self, error: GatewayError) -> bytes:
        return encode_line({"error": message_of(error), "code": error.code or refusals.ERRORS[error.kind][2]}) + b"\n"

    def ended(self) -> bytes:
        now = clock.nanoseconds()
        first = self._first or now
        prompt, generation = max(1, first - self._facts.began), max(1, now - first)
        last = {**models.empty(self._facts.route), "done": True, "done_reason": _reason(self.finish.reason)}
        if self._facts.route == "generate":
            last["context"] = []
        last |= models.metrics(self.usage, prompt, generation)
        return self._head + encode_line(last)[1:] + b"\n"


# -- errors -----------------------------------------------------------------------------------------------------------

# vLLM's name of a parameter that the model cannot do -> Ollama's message, which clients look for.
_CANNOT = {"reasoning_effort": "does not support thinking", "tools": "does not support tools"}
_MOST_NAME = 128


def message_of(error: GatewayError, request: Request | None = None) -> str:
    """The text of the error: Ollama's own message if clients look for it; else ours, with the client's name of the
    field."""
    if request is None:
        return error.message
    operation = OPERATIONS.get(request.route)
    if error.kind is Kind.NO_MODEL:
        return f"model '{_model_of(request)}' not found; GET /api/tags lists the models that you may use"
    if error.kind is Kind.CONTEXT_LENGTH and operation == "embed":
        return f"the input length exceeds the context length: {error.message}"
    if error.kind is Kind.UNSUPPORTED and error.param in _CANNOT:
        return f'"{_model_of(request)}" {_CANNOT[error.param]}'
    fields: Sequence[Field] = FIELDS[operation] if operation is not None else ()
    return own_words(error, fields, sent_names(request.body))


def _model_of(request: Request) -> str:
    for member in ("model", "name"):
        raw = find(request.body, member)
        if raw is not None and bytes(memoryview(raw)[:1]) == b'"':
            return str(msgspec.json.decode(raw))[:_MOST_NAME]
    return ""


def refuse(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
    """(the answer, its code). Clients read the text; the code stands beside it."""
    status, _, code = refusals.ERRORS[error.kind]
    code = error.code or code
    return refusal(error, status, {"error": message_of(error, request), "code": code}), code
