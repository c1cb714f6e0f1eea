"""Canonical replies and events to SageMaker's bodies and streams."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from gateway.core.errors import GatewayError
from gateway.core.events import Delta, Event, Finish, PartStart, Start
from gateway.core.http import JSON_TYPE, Headers, Response
from gateway.core.lifecycle import Reply, ReplyChoice
from gateway.core.messages import Chat, Generate
from gateway.core.usage import Usage
from gateway.dialects._shared.streams import EventWriter
from gateway.dialects.sagemaker.errors import exception
from gateway.dialects.sagemaker.fields import MODEL
from gateway.wire import awsevent, sse
from gateway.wire.json import encode, encode_line, one_line
from gateway.wire.openai.replies import refusals
from gateway.wire.openai.replies import writing as replies

VARIANT = (b"x-amzn-invoked-production-variant", b"AllTraffic")
"""A header of every reply to boto3."""

_PREFIX = re.compile(r"\A(?:chat)?cmpl-")
_UUID = re.compile(r"(?:[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})(?=-|\Z)")


def id_of(said: str, chat: bool) -> str:
    """The prefix and a UUID: the UUID in the worker's id, else one derived from that id, the same for all chunks.

    The worker's id is usually our request id with the number of the attempt behind it; the number is dropped.
    """
    own = _PREFIX.sub("", said)
    found = _UUID.match(own)
    return ("chatcmpl-" if chat else "cmpl-") + (found[0] if found else uuid5(NAMESPACE_OID, own).hex)


def write_usage(usage: Usage) -> dict[str, Any]:
    """The usage of a whole reply, or of a stream whose client asked for it."""
    return {
        "prompt_tokens": usage.input or 0,
        "completion_tokens": usage.output or 0,
        "total_tokens": (usage.input or 0) + (usage.output or 0),
        "prompt_tokens_details": {"cached_tokens": usage.cached} if usage.cached is not None else None,
    }


def _stop(sequence: str | int | None) -> str | None:
    """The stop sequence, as text. vLLM gives a stop token by its id, but the specification has only text."""
    return None if sequence is None else str(sequence)


def write(reply: Reply, op: Generate) -> Response:
    chat = isinstance(op, Chat)
    start, extra = reply.start, reply.start.extra or {}
    body: dict[str, Any] = {
        "id": id_of(start.id, chat),
        "object": "chat.completion" if chat else "text_completion",
        "created": start.created,
        "model": MODEL,
        "choices": [(_chat_choice if chat else _text_choice)(choice) for choice in reply.choices],
        "service_tier": start.tier,
        "system_fingerprint": start.fingerprint,
        "usage": write_usage(reply.usage) if reply.usage is not None else None,
    }
    if chat:
        body["prompt_logprobs"] = extra.get("prompt_logprobs")
    body["kv_transfer_params"] = extra.get("kv_transfer_params")
    return Response(200, [JSON_TYPE] if op.view == "invocations" else [JSON_TYPE, VARIANT], encode(body))


def _chat_choice(choice: ReplyChoice) -> dict[str, Any]:
    """One choice of a whole chat."""
    extra = choice.extra or {}
    message: dict[str, Any] = {
        "role": "assistant",
        "content": choice.text() or "",
        "refusal": choice.text("refusal"),
        "annotations": extra.get("annotations"),
        "audio": extra.get("audio"),
        "function_call": None,
        "tool_calls": [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
            for call in choice.calls
        ],
    }
    thinking = choice.text("thinking")
    if thinking is not None:
        message["reasoning_content"] = thinking
    return {
        "index": choice.index,
        "message": message,
        "logprobs": {"content": replies.join_logprobs(choice.logprobs)} if choice.logprobs else None,
        "finish_reason": choice.reason,
        "stop_reason": _stop(choice.stop_sequence),
    }


def _text_choice(choice: ReplyChoice) -> dict[str, Any]:
    """One choice of a whole text completion."""
    return {
        "index": choice.index,
        "text": choice.text() or "",
        "logprobs": replies.text_logprobs(choice.logprobs, 0) if choice.logprobs else None,
        "finish_reason": choice.reason,
        "stop_reason": _stop(choice.stop_sequence),
        "prompt_logprobs": (choice.extra or {}).get("prompt_logprobs"),
    }


# -- streams --------------------------------------------------------------------------------------------------------

FRAMED_HEADERS: Headers = [
    (b"content-type", awsevent.MEDIA_TYPE),
    (b"x-amzn-sagemaker-content-type", b"text/event-stream"),
    VARIANT,
    *sse.HEADERS[1:],
]
part_frame = awsevent.framer(
    {":event-type": "PayloadPart", ":content-type": "application/octet-stream", ":message-type": "event"}
)
"""Puts a chunk into the frame that boto3 unpacks."""


class _Open:
    """An open part: the bytes before and after its text in a chunk, up to the logprobs."""

    __slots__ = ("after", "before", "ordinary")

    def __init__(self, before: bytes, after: bytes, end: bytes) -> None:
        self.before = before
        self.after = after
        self.ordinary = after + b',"logprobs":null,"finish_reason":null,"stop_reason":null}]' + end


class Writer(EventWriter):
    """Canonical events to chunks. The bytes that are the same in every chunk of a part are encoded once."""

    def __init__(self, op: Generate) -> None:
        super().__init__()
        # The events stand in frames of their own on the path that boto3 reads as a stream.
        framed = op.view == "endpoint_stream"
        self.headers = FRAMED_HEADERS if framed else [*sse.HEADERS, *([] if op.view == "invocations" else [VARIANT])]
        self.clean_end = framed
        self._frame: Callable[[bytes], bytes] = part_frame if framed else bytes
        self._refuse = exception if framed else refusals.error_event
        self._chat = isinstance(op, Chat)
        self._n = op.n
        self._include_usage = op.include_usage
        self._head = b""
        self._end = b"}\n\n" if self._chat else b',"usage":null}\n\n'
        self._open: dict[tuple[int, int], _Open] = {}
        self._calls: dict[int, int] = {}
        self._offsets: dict[int, int] = {}
        # A choice's last text, held back because its end is sent in the same chunk: (chunk up to the logprobs,
        # logprobs).
        self._held: dict[int, tuple[bytes, bytes]] = {}

    def write(self, event: Event) -> bytes:
        if type(event) is Delta:
            part = self._open[event.choice, event.index]
            if event.logprobs is None and not event.last:
                return self._frame(part.before + encode_line(event.text) + part.ordinary)
            return self._special(event, part)
        return self.other(event)

    def ended(self) -> bytes:
        return self._frame(sse.DONE)

    def failed(self, error: GatewayError) -> bytes:
        held = [self._chunk(chunk, logprobs) for chunk, logprobs in self._held.values()]
        return b"".join(held) + self._refuse(error)

    def keepalive(self) -> bytes:
        """A blank line between events, in its own frame if there are frames. Every SSE parser ignores it, and it
        restarts boto3's read timeout (60 s by default)."""
        return self._frame(sse.KEEPALIVE)

    def _chunk(self, up_to_logprobs: bytes, logprobs: bytes, reason: bytes = b"null", stop: bytes = b"null") -> bytes:
        return self._frame(
            b'%b,"logprobs":%b,"finish_reason":%b,"stop_reason":%b}]%b'
            % (up_to_logprobs, logprobs, reason, stop, self._end)
        )

    def started(self, event: Start) -> bytes:
        head = {
            "id": id_of(event.id, self._chat),
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": event.created,
            "model": MODEL,
        }
        self._head = b"data: " + encode_line(head)[:-1] + b',"choices":['
        if not self._chat:
            return b""
        role = b'%b{"index":%d,"delta":{"role":"assistant","content":""}'
        return b"".join(self._chunk(role % (self._head, choice), b"null") for choice in range(self._n))

    def part_started(self, event: PartStart) -> bytes:
        before = b'%b{"index":%d,' % (self._head, event.choice)
        out = b""
        if not self._chat:
            before, after = before + b'"text":', b""
        elif event.kind == "tool":
            position = self._calls.get(event.choice, 0)
            self._calls[event.choice] = position + 1
            call = {
                "index": position,
                "id": event.call_id,
                "type": "function",
                "function": {"name": event.name, "arguments": ""},
            }
            out = self._chunk(before + b'"delta":{"tool_calls":[' + encode_line(call) + b"]}", b"null")
            before, after = before + b'"delta":{"tool_calls":[{"index":%d,"function":{"arguments":' % position, b"}}]}"
        else:
            name = {"text": b"content", "thinking": b"reasoning_content"}.get(event.kind, b"refusal")
            before, after = before + b'"delta":{"%b":' % name, b"}"
        self._open[event.choice, event.index] = _Open(before, after, self._end)
        return out

    def _special(self, event: Delta, part: _Open) -> bytes:
        """The chunk of a text with logprobs, or of a choice's last text."""
        chunk = part.before + encode_line(event.text) + part.after
        logprobs = b"null"
        if event.logprobs is not None and self._chat:
            logprobs = b'{"content":' + one_line(bytes(event.logprobs)) + b"}"
        elif event.logprobs is not None:
            offset = self._offsets.get(event.choice, 0)
            self._offsets[event.choice] = offset + len(event.text)
            logprobs = encode_line(replies.text_logprobs((event.logprobs,), offset))
        if not event.last:
            return self._chunk(chunk, logprobs)
        self._held[event.choice] = (chunk, logprobs)
        return b""

    def finished(self, event: Finish) -> bytes:
        chunk, logprobs = self._held.pop(event.choice, (b"", b"null"))
        if not chunk:
            empty = b'"delta":{"content":""}' if self._chat else b'"text":""'
            chunk = b'%b{"index":%d,%b' % (self._head, event.choice, empty)
        return self._chunk(chunk, logprobs, encode(event.reason), encode_line(_stop(event.stop_sequence)))

    def used(self, usage: Usage) -> bytes:
        if not self._include_usage:
            return b""
        return self._frame(self._head + b'],"usage":' + encode(write_usage(usage)) + b"}\n\n")
