"""Canonical replies and events to the bodies and streams of Google's API.

A stream is one of server-sent events, or, without `alt=sse`, a JSON array that arrives item by item.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from gateway.core.errors import GatewayError
from gateway.core.events import Delta, Event, Finish, PartStart, Reason, Start
from gateway.core.http import JSON_TYPE, Headers, Response
from gateway.core.lifecycle import Embeddings, Reply, ReplyChoice, TokenCount
from gateway.core.messages import Generate, Op
from gateway.core.usage import Usage
from gateway.dialects._shared.objects import call_arguments
from gateway.dialects._shared.streams import PIECE, WholeCallWriter
from gateway.dialects.gemini import embeddings
from gateway.dialects.gemini.errors import error_line
from gateway.dialects.gemini.requests import Asked
from gateway.dialects.gemini.signatures import Thoughts
from gateway.wire import sse
from gateway.wire.json import encode, encode_line, one_line
from gateway.wire.openai.replies.writing import join_logprobs, shown

ARRAY: Headers = [JSON_TYPE, *sse.HEADERS[1:]]
"""The headers of a stream that is an array."""
_ENDS: dict[Reason, str] = {
    "stop": "STOP",
    "length": "MAX_TOKENS",
    "tool_calls": "STOP",
    "content_filter": "SAFETY",
}
_EMPTY: Any = {"text": ""}
PartKey = tuple[int, int]


def write_usage(usage: Usage) -> dict[str, Any]:
    """The usage of a whole or streamed reply. Unknown counts are 0, because clients need the members."""
    thoughts = min(usage.reasoning or 0, usage.output or 0)
    body = {
        "promptTokenCount": usage.input or 0,
        "candidatesTokenCount": (usage.output or 0) - thoughts,
        "totalTokenCount": (usage.input or 0) + (usage.output or 0),
    }
    if usage.cached:
        body["cachedContentTokenCount"] = usage.cached
    if usage.reasoning is not None:
        body["thoughtsTokenCount"] = thoughts
    return body


def _call(call_id: str | None, name: str | None, text: str, signature: str | None) -> dict[str, Any]:
    call: dict[str, Any] = {"name": name, "args": call_arguments(text)}
    if call_id:
        call["id"] = call_id
    part: dict[str, Any] = {"functionCall": call}
    if signature is not None:
        part["thoughtSignature"] = signature
    return part


def _logprobs(raws: Sequence[Raw]) -> dict[str, Any]:
    """The log probabilities of tokens, in the form of a candidate."""
    found = join_logprobs(raws)
    return {
        "chosenCandidates": [_measured(token) for token in found],
        "topCandidates": [{"candidates": [_measured(top) for top in token["top_logprobs"]]} for token in found],
    }


def _measured(token: dict[str, Any]) -> dict[str, Any]:
    return {"token": token["token"], "logProbability": token["logprob"]}


# -- whole ------------------------------------------------------------------------------------------------------------


def write(reply: Reply, op: Generate) -> Response:
    facts = op.facts(Asked)
    body: dict[str, Any] = {"candidates": [_candidate(choice, facts) for choice in reply.choices]}
    if reply.usage is not None:
        body["usageMetadata"] = write_usage(reply.usage)
    return Response(200, [JSON_TYPE], encode(body | _tail(op, reply.start.model)))


def _tail(op: Op, model: str) -> dict[str, Any]:
    return {"modelVersion": shown(op, model), "responseId": op.facts(Asked).id}


def _candidate(choice: ReplyChoice, facts: Asked) -> dict[str, Any]:
    thinking = choice.text("thinking") if facts.tools and choice.calls else None
    signature = Thoughts(facts.sealing).close(thinking) if thinking else None
    parts: list[dict[str, Any]] = []
    for part in choice.parts:
        match part.kind:
            case "tool":
                parts.append(_call(part.call_id, part.name, part.text, signature))
                signature = None
            case "thinking":
                if facts.thoughts and part.text:
                    parts.append({"text": part.text, "thought": True})
            case "text" | "refusal":
                if part.text:
                    parts.append({"text": part.text})
    body: dict[str, Any] = {
        "content": {"parts": parts or [_EMPTY], "role": "model"},
        "finishReason": _ENDS[choice.reason],
        "index": choice.index,
    }
    if choice.logprobs:
        body["logprobsResult"] = _logprobs(choice.logprobs)
        chosen = [token["logProbability"] for token in body["logprobsResult"]["chosenCandidates"]]
        if chosen and all(isinstance(one, (int, float)) for one in chosen):
            body["avgLogprobs"] = sum(chosen) / len(chosen)
    return body


def write_count(reply: TokenCount) -> Response:
    return Response(200, [JSON_TYPE], encode({"totalTokens": reply.tokens}))


def write_embeddings(reply: Embeddings, op: Op) -> Response:
    return embeddings.write_embeddings(reply, op.facts(Asked).route)


# -- streamed ---------------------------------------------------------------------------------------------------------


class StreamWriter(WholeCallWriter):
    """Canonical events to the items of one stream.

    Candidates end together, in the last item: clients take a finish reason for the end, and only the worker's own mark
    is one.
    """

    def __init__(self, op: Generate) -> None:
        super().__init__()
        self._op = op
        self._facts = facts = op.facts(Asked)
        if facts.events:
            self._before = self._next = b"data: "
            self._after = b"\n\n"
        else:
            self.headers = ARRAY
            self._before, self._next, self._after = b"[\n", b",\n", b"\n"
        self._tail = b""
        # The bytes before and after a text in its item, by the part.
        self._lines: dict[PartKey, tuple[bytes, bytes]] = {}
        # The thinking that the next call of a choice brings back.
        self._thinking: dict[int, list[str]] = {}
        self._silent: set[PartKey] = set()
        self._finishes: dict[int, Finish] = {}

    def write(self, event: Event) -> bytes:
        if type(event) is Delta:
            key = (event.choice, event.index)
            line = self._lines.get(key)
            if self._thinking and key in self._silent:
                self._keep(event)
            if line is None:
                return self.gather(event)
            if event.logprobs is not None:
                return self._with_logprobs(event, line)
            return self._item(line[0] + encode_line(event.text) + line[1]) if event.text else b""
        return self.other(event)

    def _item(self, body: bytes) -> bytes:
        out = self._before + body + self._after
        self._before = self._next
        return out

    def _keep(self, event: Delta) -> None:
        pieces = self._thinking.get(event.choice)
        if pieces is not None:
            pieces.append(event.text)
            self.buffered_bytes += PIECE + len(event.text)

    def started(self, event: Start) -> bytes:
        self._tail = b"," + encode_line(_tail(self._op, event.model))[1:]
        return b""

    def text_started(self, event: PartStart, thinking: bool) -> None:
        key, facts = (event.choice, event.index), self._facts
        if facts.thoughts or not thinking:
            more = b',"thought":true' if thinking else b""
            after = b'%b}],"role":"model"},"index":%d}]%b' % (more, event.choice, self._tail)
            self._lines[key] = b'{"candidates":[{"content":{"parts":[{"text":', after
        if thinking and facts.tools:
            self._thinking.setdefault(event.choice, [])
            self._silent.add(key)

    def _with_logprobs(self, event: Delta, line: tuple[bytes, bytes]) -> bytes:
        found = one_line(encode(_logprobs((event.logprobs or Raw(b"[]"),))))
        before, after = line
        end = after.index(b',"index"')
        text = encode_line(event.text)
        return self._item(before + text + after[:end] + b',"logprobsResult":' + found + after[end:])

    def called(self, start: PartStart, text: str) -> bytes:
        pieces = self._thinking.pop(start.choice, [])
        thinking = "".join(pieces)
        self.buffered_bytes -= PIECE * len(pieces) + len(thinking)
        signature = Thoughts(self._facts.sealing).close(thinking) if thinking else None
        part = _call(start.call_id, start.name, text, signature)
        candidate = {"content": {"parts": [part], "role": "model"}, "index": start.choice}
        return self._item(b'{"candidates":[' + encode_line(candidate) + b"]" + self._tail)

    def finished(self, event: Finish) -> bytes:
        self._finishes[event.choice] = event
        return b""

    def ended(self) -> bytes:
        content = {"parts": [_EMPTY], "role": "model"}
        candidates = [
            {"content": content, "finishReason": _ENDS[finish.reason], "index": choice}
            for choice, finish in sorted(self._finishes.items())
        ]
        body: dict[str, Any] = {"candidates": candidates}
        if self.usage is not None:
            body["usageMetadata"] = write_usage(self.usage)
        out = self._item(encode_line(body)[:-1] + self._tail)
        return out if self._facts.events else out + b"]\n"

    def failed(self, error: GatewayError) -> bytes:
        body = error_line(error, self._op)
        return body + b"\n\n" if self._facts.events else self._item(body)
