"""Writes canonical replies and events as JSON and chunks of OpenAI's wire.

Shared by every dialect whose replies resemble OpenAI's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any

import msgspec
from msgspec import Raw

from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, End, Event, Failed, Finish, PartStart, Start, UsageReport
from gateway.core.http import JSON_TYPE, Headers, Response
from gateway.core.lifecycle import ReplyChoice
from gateway.core.messages import Chat, Generate, Op
from gateway.core.usage import Usage
from gateway.wire import sse
from gateway.wire.json import encode, encode_line, one_line

ERRORS: Mapping[Kind, tuple[int, str, str]] = {
    kind: (status, type_, kind.value)
    for kind, status, type_ in (
        (Kind.BAD_REQUEST, 400, "invalid_request_error"),
        (Kind.UNSUPPORTED, 400, "invalid_request_error"),
        (Kind.UNAUTHENTICATED, 401, "authentication_error"),
        (Kind.FORBIDDEN, 403, "permission_error"),
        (Kind.NO_ROUTE, 404, "invalid_request_error"),
        (Kind.NO_METHOD, 405, "invalid_request_error"),
        (Kind.NO_MODEL, 404, "invalid_request_error"),
        (Kind.MEDIA_TYPE, 415, "invalid_request_error"),
        (Kind.TOO_LARGE, 413, "invalid_request_error"),
        (Kind.CONTEXT_LENGTH, 400, "invalid_request_error"),
        (Kind.LIMITED, 429, "rate_limit_error"),
        (Kind.OVERLOADED, 503, "server_error"),
        (Kind.NO_WORKER, 503, "server_error"),
        (Kind.DRAINING, 503, "server_error"),
        (Kind.TIMEOUT, 504, "server_error"),
        (Kind.UPSTREAM, 502, "server_error"),
        (Kind.TRUNCATED, 502, "server_error"),
        (Kind.CLIENT_GONE, 499, "server_error"),
        (Kind.INTERNAL, 500, "server_error"),
    )
}
"""Kind -> OpenAI's (status, type, code)."""


_LONGEST_WAIT_S = 10_000_000.0
"""Seconds: two windows of the longest that a limit may have, with room to spare."""


def error_headers(error: GatewayError, status: int, longest_s: float = _LONGEST_WAIT_S) -> Headers:
    """Retry-After in seconds and in milliseconds, on 429 and 503, and on what is held because workers died of it. For a
    limit it is the exact wait, rounded up: after a shorter one comes another 429. `longest_s` cuts it for clients that
    give up where they should wait for longer. For what is held it is the exact rest, and no client should try by
    itself. For anything else it is at most 60 s, because openai-python 1.x ignores longer waits."""
    headers: Headers = []
    if error.kind is Kind.UPSTREAM and error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, ceil(error.retry_after))))
        headers.append((b"x-should-retry", b"false"))
    elif status in (429, 503) and error.retry_after is not None:
        limited = error.kind is Kind.LIMITED and error.upstream is None
        wait = max(1, -int(-min(error.retry_after, longest_s if limited else 60.0) * 1000 // 1))
        headers.append((b"retry-after", b"%d" % -(-wait // 1000)))
        headers.append((b"retry-after-ms", b"%d" % wait))
    elif error.kind is Kind.LIMITED and error.upstream is None:
        # The request can never fit the limit. This header stops the retries of OpenAI's clients.
        headers.append((b"x-should-retry", b"false"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def error_object(error: GatewayError, errors: Mapping[Kind, tuple[int, str, str]] = ERRORS) -> dict[str, Any]:
    """The error object in OpenAI's form."""
    _, type_, code = errors[error.kind]
    return {"error": {"message": error.message, "type": type_, "param": error.param, "code": error.code or code}}


def error_event(error: GatewayError, errors: Mapping[Kind, tuple[int, str, str]] = ERRORS) -> bytes:
    return sse.frame(encode_line(error_object(error, errors)))


def status_of(error: GatewayError, errors: Mapping[Kind, tuple[int, str, str]] = ERRORS) -> int:
    """The status by a dialect's table. A worker's own 4xx keeps its status."""
    status = errors[error.kind][0]
    if error.upstream is not None and 400 <= error.upstream < 500 and status < 500:
        return error.upstream
    return status


def refusal(
    error: GatewayError,
    errors: Mapping[Kind, tuple[int, str, str]] = ERRORS,
    longest_s: float = _LONGEST_WAIT_S,
) -> tuple[Response, str]:
    """(the response for `error`, its code). errors and longest_s are a dialect's own: its table, and the longest wait
    that it names."""
    status = status_of(error, errors)
    told = error_object(error, errors)
    return Response(status, [JSON_TYPE, *error_headers(error, status, longest_s)], encode(told)), told["error"]["code"]


# -- canonical to replies -------------------------------------------------------------------------------------------


def shown(op: Op, said: str) -> str:
    return op.model or said


def write_usage(usage: Usage) -> dict[str, Any]:
    """The usage object. Unknown counts are 0, because OpenAI's clients require integers."""
    body: dict[str, Any] = {
        "prompt_tokens": usage.input or 0,
        "completion_tokens": usage.output or 0,
        "total_tokens": (usage.input or 0) + (usage.output or 0),
    }
    details = {"cached_tokens": usage.cached, "created_cache_tokens": usage.stored}
    if usage.cached is not None or usage.stored is not None:
        body["prompt_tokens_details"] = {name: count for name, count in details.items() if count is not None}
    if usage.reasoning is not None:
        body["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return body


def write_message(choice: ReplyChoice) -> dict[str, Any]:
    """The assistant message of a finished choice. content is null only with tool calls or a refusal."""
    text, thinking, refusal = choice.text(), choice.text("thinking"), choice.text("refusal")
    if text is None and not choice.calls and refusal is None:
        text = ""
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": refusal}
    if thinking is not None:
        message["reasoning"] = message["reasoning_content"] = thinking
    if choice.calls:
        message["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
            for call in choice.calls
        ]
    return message


def write_choice(choice: ReplyChoice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "message": write_message(choice),
        "logprobs": {"content": join_logprobs(choice.logprobs), "refusal": None} if choice.logprobs else None,
        "finish_reason": choice.reason,
    }


def write_text_choice(choice: ReplyChoice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "text": choice.text() or "",
        "logprobs": text_logprobs(choice.logprobs, 0) if choice.logprobs else None,
        "finish_reason": choice.reason,
        **(choice.extra or {}),
    }


def join_logprobs(raws: Sequence[Raw]) -> list[Any]:
    return [item for raw in raws for item in msgspec.json.decode(raw)]


def text_logprobs(raws: Sequence[Raw], offset: int) -> dict[str, Any]:
    """Canonical logprobs in the form of text completions. `offset` is where this text begins, in characters."""
    items = join_logprobs(raws)
    offsets = []
    for item in items:
        offsets.append(offset)
        offset += len(item["token"])
    return {
        "text_offset": offsets,
        "token_logprobs": [item["logprob"] for item in items],
        "tokens": [item["token"] for item in items],
        "top_logprobs": [{top["token"]: top["logprob"] for top in item["top_logprobs"]} or None for item in items],
    }


class _Open:
    """An open part: the bytes before and after its text in a chunk, up to the logprobs. twice: the text is thinking and
    is sent under both names."""

    __slots__ = ("after", "before", "ordinary", "twice")

    def __init__(self, before: bytes, after: bytes, twice: bool) -> None:
        self.before = before
        self.after = after
        self.ordinary = after + b',"logprobs":null,"finish_reason":null}]}\n\n'
        self.twice = twice


class StreamWriter:
    """Canonical events to chunks. The bytes that are the same in every chunk are encoded once."""

    headers = sse.HEADERS
    clean_end = False
    buffered_bytes = 0

    def __init__(self, op: Generate, refuse: Callable[[GatewayError], bytes]) -> None:
        self._op = op
        self._refuse = refuse
        self._chat = isinstance(op, Chat)
        self._head = b""
        self._open: dict[tuple[int, int], _Open] = {}
        self._calls: dict[int, int] = {}
        self._offsets: dict[int, int] = {}
        self._unfinished = op.n if isinstance(op, Chat) else op.n * len(op.prompts)
        # The last chunk of a stream that has no fingerprint yet. It is held back: only after it may the worker say one.
        self._last = b""
        self._without_fingerprint = False

    def write(self, event: Event) -> bytes:
        if type(event) is Delta:
            part = self._open[event.choice, event.index]
            text = encode_line(event.text)
            if event.logprobs is None and not part.twice:
                return part.before + text + part.ordinary
            return self._special(event, part, text)
        if isinstance(event, PartStart):
            return self._part(event)
        if isinstance(event, Finish):
            return self._finish(event)
        if isinstance(event, Start):
            return self._start(event)
        if isinstance(event, UsageReport):
            return self._held_back(self._usage(event.usage)) if self._op.include_usage else b""
        if isinstance(event, Failed):
            return self._last + self._refuse(event.error)
        return self._end(event) if isinstance(event, End) else b""

    def keepalive(self) -> bytes:
        return sse.KEEPALIVE

    def _start(self, event: Start) -> bytes:
        head: dict[str, Any] = {
            "id": event.id,
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": event.created,
            "model": shown(self._op, event.model),
        }
        if event.fingerprint is not None:
            head["system_fingerprint"] = event.fingerprint
        if event.tier is not None:
            head["service_tier"] = event.tier
        self._without_fingerprint = event.fingerprint is None
        self._head = b"data: " + encode_line(head)[:-1] + b',"choices":['
        if not self._chat:
            return b""
        role = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
        return b"".join(self._head + b'{"index":%d,' % choice + role for choice in range(self._op.n))

    def _chunk(self, choice: int, delta: bytes, reason: bytes = b"null") -> bytes:
        return b'%b{"index":%d,%b,"logprobs":null,"finish_reason":%b}]}\n\n' % (self._head, choice, delta, reason)

    def _part(self, event: PartStart) -> bytes:
        before = b'%b{"index":%d,' % (self._head, event.choice)
        out, twice = b"", False
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
            out = self._chunk(event.choice, b'"delta":{"tool_calls":[' + encode_line(call) + b"]}")
            before, after = before + b'"delta":{"tool_calls":[{"index":%d,"function":{"arguments":' % position, b"}}]}"
        else:
            name = {"text": b"content", "thinking": b"reasoning"}.get(event.kind, b"refusal")
            before, after = before + b'"delta":{"%b":' % name, b"}"
            twice = event.kind == "thinking"
        self._open[event.choice, event.index] = _Open(before, after, twice)
        return out

    def _special(self, event: Delta, part: _Open, text: bytes) -> bytes:
        """The chunk of a text with logprobs, or of a thinking text."""
        if part.twice:
            text = b'%b,"reasoning_content":%b' % (text, text)
        if event.logprobs is None:
            return part.before + text + part.ordinary
        if self._chat:
            logprobs = b'{"content":%b,"refusal":null}' % one_line(bytes(event.logprobs))
        else:
            offset = self._offsets.get(event.choice, 0)
            self._offsets[event.choice] = offset + len(event.text)
            logprobs = encode_line(text_logprobs((event.logprobs,), offset))
        return b'%b%b%b,"logprobs":%b,"finish_reason":null}]}\n\n' % (part.before, text, part.after, logprobs)

    def _finish(self, event: Finish) -> bytes:
        delta = b'"delta":{}' if self._chat else b'"text":""'
        chunk = self._chunk(event.choice, delta, reason=encode(event.reason))
        self._unfinished -= 1
        return chunk if self._unfinished else self._held_back(chunk)

    def _held_back(self, chunk: bytes) -> bytes:
        """Keeps the last chunk until the fingerprint is known. Returns what may be sent now."""
        if not self._without_fingerprint:
            return chunk
        before, self._last = self._last, chunk
        return before

    def _usage(self, usage: Usage) -> bytes:
        return self._head + b'],"usage":' + encode(write_usage(usage)) + b"}\n\n"

    def _end(self, event: End) -> bytes:
        last = self._last
        if last and event.fingerprint is not None:
            told = b'"system_fingerprint":%b,"choices":[' % encode_line(event.fingerprint)
            last = self._head.replace(b'"choices":[', told) + last[len(self._head) :]
        return last + sse.DONE
