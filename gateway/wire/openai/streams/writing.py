"""Writes canonical events as chunks of OpenAI's wire, for every dialect whose streams resemble OpenAI's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.core.errors import GatewayError
from gateway.core.events import Delta, End, Event, Failed, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.http import Headers
from gateway.core.messages import Chat, Generate
from gateway.core.usage import Usage
from gateway.wire import sse
from gateway.wire.json import encode, encode_line, one_line
from gateway.wire.openai.replies.writing import shown, text_logprobs, write_usage


class _Open:
    """An open part: the bytes before and after its text in a chunk, up to the logprobs. twice: the text is thinking and
    is sent under both names."""

    __slots__ = ("after", "before", "ordinary", "twice")

    def __init__(self, before: bytes, after: bytes, more: bytes, twice: bool) -> None:
        self.before = before
        self.after = after
        self.ordinary = after + b',"logprobs":null' + more
        self.twice = twice


class OpenAIStreamWriter:
    """Canonical events to chunks. The bytes that are the same in every chunk are encoded once.

    thinking  the names of a thinking text: one, or two that both have it
    logprobs  the form of a chat's logprobs
    silent    a delta without text
    more      the end of a chunk, behind its logprobs, if its choice goes on
    """

    headers: Headers = sse.HEADERS
    clean_end = False
    buffered_bytes = 0
    thinking: tuple[bytes, ...] = (b"reasoning", b"reasoning_content")
    logprobs = b'{"content":%b,"refusal":null}'
    silent = b'"delta":{}'
    more = b',"finish_reason":null}]}\n\n'

    def __init__(self, op: Generate, refuse: Callable[[GatewayError], bytes]) -> None:
        self._op = op
        self._refuse = refuse
        self._chat = isinstance(op, Chat)
        self._head = b""
        self._open: dict[tuple[int, int], _Open] = {}
        self._calls: dict[int, int] = {}
        self._offsets: dict[int, int] = {}
        self._unfinished = op.n if isinstance(op, Chat) else op.n * len(op.prompts)
        # The last chunk of a stream without a fingerprint so far. It is held back: the worker may send one after it.
        self._last = b""
        self._without_fingerprint = False

    def write(self, event: Event) -> bytes:
        if type(event) is Delta:
            part = self._open[event.choice, event.index]
            text = encode_line(event.text)
            if event.logprobs is None and not part.twice:
                return part.before + text + part.ordinary
            return self._special(event, part, text)
        match event:
            case PartStart():
                return self._part(event)
            case PartEnd():
                return b""
            case Finish():
                return self._finish(event)
            case Start():
                return self._start(event)
            case UsageReport():
                return self._held_back(self._usage(event.usage)) if self._op.include_usage else b""
            case Failed():
                return self._last + self._refuse(event.error)
            case End():
                return self._end(event)

    def keepalive(self) -> bytes:
        return sse.KEEPALIVE

    def _envelope(self, event: Start) -> dict[str, Any]:
        """The members of every chunk."""
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
        return head

    def _start(self, event: Start) -> bytes:
        self._head = b"data: " + encode_line(self._envelope(event))[:-1] + b',"choices":['
        if not self._chat:
            return b""
        role = b'"delta":{"role":"assistant","content":""}'
        return b"".join([self._chunk(choice, role, self.more) for choice in range(self._op.n)])

    def _chunk(self, choice: int, delta: bytes, end: bytes) -> bytes:
        return b'%b{"index":%d,%b,"logprobs":null%b' % (self._head, choice, delta, end)

    def _last_end(self, event: Finish) -> bytes:
        """The end of the last chunk of a choice, as `more`."""
        return b',"finish_reason":%b}]}\n\n' % encode(event.reason)

    def _part(self, event: PartStart) -> bytes:
        before = b'%b{"index":%d,' % (self._head, event.choice)
        out, after, twice = b"", b"}", False
        if not self._chat:
            before, after = before + b'"text":', b""
        else:
            match event.kind:
                case "text":
                    before += b'"delta":{"content":'
                case "refusal":
                    before += b'"delta":{"refusal":'
                case "thinking":
                    before += b'"delta":{"%b":' % self.thinking[0]
                    twice = len(self.thinking) > 1
                case "tool":
                    position = self._calls.get(event.choice, 0)
                    self._calls[event.choice] = position + 1
                    function = {"name": event.name, "arguments": ""}
                    call = {"index": position, "id": event.call_id, "type": "function", "function": function}
                    out = self._chunk(event.choice, b'"delta":{"tool_calls":[' + encode_line(call) + b"]}", self.more)
                    before += b'"delta":{"tool_calls":[{"index":%d,"function":{"arguments":' % position
                    after = b"}}]}"
        self._open[event.choice, event.index] = _Open(before, after, self.more, twice)
        return out

    def _special(self, event: Delta, part: _Open, text: bytes) -> bytes:
        """The chunk of a text with logprobs, or of a thinking text."""
        if part.twice:
            text = b'%b,"%b":%b' % (text, self.thinking[1], text)
        if event.logprobs is None:
            return part.before + text + part.ordinary
        if self._chat:
            logprobs = self.logprobs % one_line(bytes(event.logprobs))
        else:
            offset = self._offsets.get(event.choice, 0)
            self._offsets[event.choice] = offset + len(event.text)
            logprobs = encode_line(text_logprobs((event.logprobs,), offset))
        return b'%b%b%b,"logprobs":%b%b' % (part.before, text, part.after, logprobs, self.more)

    def _finish(self, event: Finish) -> bytes:
        delta = self.silent if self._chat else b'"text":""'
        chunk = self._chunk(event.choice, delta, self._last_end(event))
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
            opening = b'"system_fingerprint":%b,"choices":[' % encode_line(event.fingerprint)
            last = self._head.replace(b'"choices":[', opening) + last[len(self._head) :]
        return last + sse.DONE
