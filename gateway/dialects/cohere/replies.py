"""Canonical replies and events to the bodies and streams of Cohere's API.

A stream is one of server-sent events, or of JSON lines for clients that accept `application/json` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, Event, PartEnd, PartStart, Start
from gateway.core.http import JSON_TYPE, Headers, Response
from gateway.core.lifecycle import Reply, ReplyChoice
from gateway.core.messages import Generate, Op
from gateway.core.usage import Usage
from gateway.dialects._shared.streams import WholeCallWriter
from gateway.dialects.cohere.requests import Asked
from gateway.wire import sse
from gateway.wire.json import encode, encode_line
from gateway.wire.openai.replies import refusals
from gateway.wire.openai.replies.writing import join_logprobs, write_calls

_LINES: Headers = [(b"content-type", b"application/stream+json"), *sse.HEADERS[1:]]
_ENDS = {"stop": "COMPLETE", "tool_calls": "COMPLETE", "length": "MAX_TOKENS", "content_filter": "ERROR"}


def write_usage(usage: Usage | None) -> dict[str, Any]:
    """The usage of a whole or streamed reply. Unknown counts are 0, because clients need the members."""
    usage = usage or Usage()
    counts = {"input_tokens": usage.input or 0, "output_tokens": usage.output or 0}
    body: dict[str, Any] = {"billed_units": counts, "tokens": counts}
    if usage.cached is not None:
        body["cached_tokens"] = usage.cached
    return body


def _reason(reason: str, stop: str | int | None, *, calls: bool) -> str:
    """The finish reason for the worker's `reason` and matched `stop`."""
    if reason in ("stop", "tool_calls"):
        if calls:
            return "TOOL_CALL"
        if isinstance(stop, str) and stop:
            return "STOP_SEQUENCE"
    return _ENDS[reason]


def _logprobs(text: str, tokens: Sequence[int], raws: Sequence[Raw]) -> dict[str, Any]:
    return {"text": text, "token_ids": tokens, "logprobs": [one["logprob"] for one in join_logprobs(raws)]}


# -- whole ------------------------------------------------------------------------------------------------------------


def write(reply: Reply, op: Op) -> Response:
    """A whole reply. Clients read the words beside calls as the plan."""
    facts, choice = op.facts(Asked), reply.choices[0]
    _, thinking, _, calls = choice.by_kind()
    content: list[dict[str, Any]] = []
    message: dict[str, Any] = {"role": "assistant"}
    if thinking and not facts.quiet:
        content.append({"type": "thinking", "thinking": thinking})
    if calls:
        message["tool_calls"] = write_calls(calls)
        if choice.words:
            message["tool_plan"] = choice.words
    else:
        content.append({"type": "text", "text": choice.words})
    if content:
        message["content"] = content
    body: dict[str, Any] = {
        "id": facts.id,
        "finish_reason": _reason(choice.reason, choice.stop_sequence, calls=bool(calls)),
        "message": message,
        "usage": write_usage(reply.usage),
    }
    if choice.logprobs:
        body["logprobs"] = _items(choice, quiet=facts.quiet)
    return Response(200, [JSON_TYPE], encode(body))


def _items(choice: ReplyChoice, *, quiet: bool) -> list[dict[str, Any]]:
    """An item for each token that is shown as text or thinking. The token that ends a reply has no id."""
    items: list[dict[str, Any]] = []
    for part in choice.parts:
        if part.kind != "tool" and not (quiet and part.kind == "thinking"):
            found = join_logprobs(part.logprobs)
            items += [
                {"text": one["token"], "token_ids": part.tokens[at : at + 1], "logprobs": [one["logprob"]]}
                for at, one in enumerate(found)
            ]
    return items


# -- streamed ---------------------------------------------------------------------------------------------------------


class StreamWriter(WholeCallWriter):
    """Canonical events to the events of one stream. One content block is open at a time; each call is three events in
    a row, once it is complete."""

    # No `clean_end`: clients that read texts alone take `message-end` for the end of an answer, whatever it says.

    def __init__(self, op: Generate) -> None:
        super().__init__()
        self._facts = op.facts(Asked)
        if self._facts.lines:
            self.headers = _LINES
        # Part index -> its member in a content block.
        self._members: dict[int, bytes] = {}
        # The part of the open block, and the bytes before a text in it.
        self._part: int | None = None
        self._before = b""
        self._after = b"}}}}\n" if self._facts.lines else b"}}}}\n\n"
        self._blocks = self._called = 0

    def keepalive(self) -> bytes:
        """In lines a space before the next one, where JSON allows it: an empty line would not be JSON."""
        return b" " if self._facts.lines else sse.KEEPALIVE

    def write(self, event: Event) -> bytes:
        if type(event) is Delta:
            if event.index == self._part and event.logprobs is None:
                return self._before + encode_line(event.text) + self._after if event.text else b""
            return self._more(event)
        return self.other(event)

    def _more(self, event: Delta) -> bytes:
        member = self._members.get(event.index)
        if member is None:
            return self.gather(event)
        if not event.text and event.logprobs is None:
            return b""
        out = b"" if event.index == self._part else self._open(event.index, member)
        if event.logprobs is None:
            return out + self._before + encode_line(event.text) + self._after
        measured = _logprobs(event.text, event.tokens, (event.logprobs,))
        delta = {"message": {"content": {member.decode(): event.text}}}
        return out + self._event("content-delta", index=self._blocks - 1, delta=delta, logprobs=measured)

    def _event(self, kind: str, **members: Any) -> bytes:
        line = encode_line({"type": kind, **members})
        return line + b"\n" if self._facts.lines else sse.frame(line, kind.encode())

    def _open(self, part: int, member: bytes) -> bytes:
        """Begins the content block of a part, behind the end of the one before."""
        out, index = self._close(), self._blocks
        self._blocks += 1
        self._part = part
        head = b'{"type":"content-delta","index":%d,"delta":{"message":{"content":{"%b":' % (index, member)
        self._before = head if self._facts.lines else b"event: content-delta\ndata: " + head
        content = {"type": member.decode(), member.decode(): ""}
        return out + self._event("content-start", index=index, delta={"message": {"content": content}})

    def _close(self) -> bytes:
        if self._part is None:
            return b""
        self._part = None
        return self._event("content-end", index=self._blocks - 1)

    def started(self, event: Start) -> bytes:
        message = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
        return self._event("message-start", id=self._facts.id, delta={"message": message})

    def text_started(self, event: PartStart, thinking: bool) -> None:
        if not (thinking and self._facts.quiet):
            self._members[event.index] = b"thinking" if thinking else b"text"

    def part_ended(self, event: PartEnd) -> bytes:
        return self._close() if event.index == self._part else super().part_ended(event)

    def called(self, start: PartStart, text: str) -> bytes:
        out, index = self._close(), self._called
        self._called += 1
        call = {"id": start.call_id, "type": "function", "function": {"name": start.name, "arguments": ""}}
        out += self._event("tool-call-start", index=index, delta={"message": {"tool_calls": call}})
        # LangChain takes the last delta once more for the end of a call: so the last one is empty.
        for piece in (text, ""):
            calls = {"function": {"arguments": piece}}
            out += self._event("tool-call-delta", index=index, delta={"message": {"tool_calls": calls}})
        return out + self._event("tool-call-end", index=index)

    def ended(self) -> bytes:
        out = self._close()
        if not (self._blocks or self._called):
            out = self._open(-1, b"text") + self._close()
        reason = _reason(self.finish.reason, self.finish.stop_sequence, calls=bool(self._called))
        return out + self._end(finish_reason=reason) + (b"" if self._facts.lines else sse.DONE)

    def failed(self, error: GatewayError) -> bytes:
        reason = "TIMEOUT" if error.kind is Kind.TIMEOUT else "ERROR"
        code = error.code or refusals.ERRORS[error.kind][2]
        return self._close() + self._end(error=error.message, code=code, finish_reason=reason)

    def _end(self, **delta: str) -> bytes:
        return self._event("message-end", id=self._facts.id, delta={**delta, "usage": write_usage(self.usage)})
