"""Canonical replies and events to SageMaker's bodies and streams."""

from __future__ import annotations

import re
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from gateway.core.events import Delta, Event, Failed, Finish, Start
from gateway.core.http import JSON_TYPE, Headers, Response
from gateway.core.lifecycle import Reply, ReplyChoice
from gateway.core.messages import Chat, Generate
from gateway.core.usage import Usage
from gateway.dialects.sagemaker.errors import exception
from gateway.dialects.sagemaker.fields import MODEL
from gateway.wire import awsevent, sse
from gateway.wire.json import encode, encode_line
from gateway.wire.openai.replies import refusals, writing
from gateway.wire.openai.streams.writing import OpenAIStreamWriter

VARIANT = (b"x-amzn-invoked-production-variant", b"AllTraffic")
"""A header of every reply to boto3."""

_PREFIX = re.compile(r"\A(?:chat)?cmpl-")
_UUID = re.compile(r"(?:[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})(?=-|\Z)")


def id_of(reported: str, chat: bool) -> str:
    """The prefix and a UUID: the UUID in the worker's id, else one derived from that id, the same for all chunks.

    The worker's id is usually our request id with the number of the attempt behind it; the number is dropped.
    """
    own = _PREFIX.sub("", reported)
    found = _UUID.match(own)
    return ("chatcmpl-" if chat else "cmpl-") + (found[0] if found else uuid5(NAMESPACE_OID, own).hex)


def write_usage(usage: Usage) -> dict[str, Any]:
    """The usage of a whole reply, or of a stream whose client asked for it."""
    details = {"cached_tokens": usage.cached} if usage.cached is not None else None
    return {**writing.write_usage(Usage(usage.input, usage.output)), "prompt_tokens_details": details}


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
    extra = choice.extra or {}
    text, thinking, refusal, calls = choice.by_kind()
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text or "",
        "refusal": refusal,
        "annotations": extra.get("annotations"),
        "audio": extra.get("audio"),
        "function_call": None,
        "tool_calls": writing.write_calls(calls),
    }
    if thinking is not None:
        message["reasoning_content"] = thinking
    return {
        "index": choice.index,
        "message": message,
        "logprobs": {"content": writing.join_logprobs(choice.logprobs)} if choice.logprobs else None,
        "finish_reason": choice.reason,
        "stop_reason": _stop(choice.stop_sequence),
    }


def _text_choice(choice: ReplyChoice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "text": choice.text() or "",
        "logprobs": writing.text_logprobs(choice.logprobs, 0) if choice.logprobs else None,
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


class ChunkWriter(OpenAIStreamWriter):
    """OpenAI's chunks with the specification's members. A choice's last text and its end are one chunk."""

    thinking = (b"reasoning_content",)
    logprobs = b'{"content":%b}'
    silent = b'"delta":{"content":""}'

    def __init__(self, op: Generate) -> None:
        # The events stand in frames of their own on the path that boto3 reads as a stream.
        framed = op.view == "endpoint_stream"
        super().__init__(op, exception if framed else refusals.error_event)
        self.headers = FRAMED_HEADERS if framed else [*sse.HEADERS, *([] if op.view == "invocations" else [VARIANT])]
        self.clean_end = framed  # only a frame can end a failed stream in order
        self._end_of_line = b"}\n\n" if self._chat else b',"usage":null}\n\n'
        self.more = b',"finish_reason":null,"stop_reason":null}]' + self._end_of_line
        # The chunk with a choice's last text, up to its end.
        self._held: dict[int, bytes] = {}

    def write(self, event: Event) -> bytes:
        if type(event) is Delta:
            chunk = super().write(event)
            if not event.last:
                return part_frame(chunk) if self.clean_end else chunk
            self._held[event.choice] = chunk.removesuffix(self.more)
            return b""
        if type(event) is Failed:
            held = b"".join(chunk + self.more for chunk in self._held.values())
            return self._framed(held) + self._refuse(event.error)
        return self._framed(super().write(event))

    def _framed(self, chunks: bytes) -> bytes:
        if not self.clean_end:
            return chunks
        return b"".join([part_frame(chunk + b"\n\n") for chunk in chunks.split(b"\n\n")[:-1]])

    def keepalive(self) -> bytes:
        """A blank line between events, in its own frame if there are frames. Every SSE parser ignores it, and it
        restarts boto3's read timeout (60 s by default)."""
        return part_frame(sse.KEEPALIVE) if self.clean_end else sse.KEEPALIVE

    def _envelope(self, event: Start) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {"id": id_of(event.id, self._chat), "object": kind, "created": event.created, "model": MODEL}

    def _last_end(self, event: Finish) -> bytes:
        reason, stop = encode(event.reason), encode_line(_stop(event.stop_sequence))
        return b',"finish_reason":%b,"stop_reason":%b}]%b' % (reason, stop, self._end_of_line)

    def _finish(self, event: Finish) -> bytes:
        held = self._held.pop(event.choice, None)
        return held + self._last_end(event) if held is not None else super()._finish(event)

    def _usage(self, usage: Usage) -> bytes:
        return self._head + b'],"usage":' + encode(write_usage(usage)) + b"}\n\n"
