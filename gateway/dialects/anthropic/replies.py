"""Canonical replies and events to the bodies and streams of the Messages API."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from gateway.core.errors import GatewayError
from gateway.core.events import Delta, Event, PartEnd, PartKind, PartStart, Start
from gateway.core.http import JSON_TYPE, Response
from gateway.core.lifecycle import Reply, ReplyChoice, ReplyPart, TokenCount
from gateway.core.messages import Citation, Generate, Op, ServerCall
from gateway.core.usage import Usage
from gateway.dialects._shared.objects import members_of
from gateway.dialects._shared.streams import EventWriter
from gateway.dialects.anthropic.errors import error_event
from gateway.dialects.anthropic.server_tools import arguments, call_block, citation, result_block, server_usage
from gateway.wire import sse
from gateway.wire.json import encode, encode_line
from gateway.wire.openai.replies.writing import shown

SIGNATURE = "ZHJhZ29tYW4="
"""The signature of every thinking block. It proves nothing, and none is checked when it comes back; some clients drop
blocks without one."""

_ORDER: dict[PartKind, int] = {"thinking": 0, "text": 1, "refusal": 1, "tool": 2}
_PING = sse.frame(b'{"type":"ping"}', b"ping")
_STOP = sse.frame(b'{"type":"message_stop"}', b"message_stop")
# Bytes that a frame adds to a waiting piece of text, about.
_PIECE = 128
_TRIES = 8
_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
_AFTER = b"}}\n\n"
_DELTAS: dict[PartKind, tuple[bytes, bytes]] = {
    "thinking": (b"thinking_delta", b"thinking"),
    "text": (b"text_delta", b"text"),
    "refusal": (b"text_delta", b"text"),
    "tool": (b"input_json_delta", b"partial_json"),
}


class Message(Struct):
    """The reply to one request (`op.memo`). begun: a keep-alive sent its `message_start`, whichever model answers."""

    request_id: str
    begun: bool = False


def write_usage(usage: Usage | None) -> dict[str, Any]:
    """The usage of a whole or streamed reply. Unknown counts are 0, because clients need the members. `input_tokens`
    leaves out what a prefix cache served or stored."""
    usage = usage or Usage()
    cached = min(usage.cached or 0, usage.input or 0)
    stored = min(usage.stored or 0, (usage.input or 0) - cached)
    body: dict[str, Any] = {
        "input_tokens": (usage.input or 0) - cached - stored,
        "cache_creation_input_tokens": stored,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.output or 0,
    }
    if usage.reasoning is not None:
        body["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return body


def stop_of(reason: str, stop: str | int | None, *, calls: bool, refused: bool) -> tuple[str, str | None]:
    """(stop_reason, stop_sequence) for the worker's finish `reason` and matched `stop`. calls: the reply has tool
    calls; refused: it has a refusal."""
    if reason == "length":
        return "max_tokens", None
    if reason == "content_filter" or (refused and not calls):
        return "refusal", None
    if calls or reason == "tool_calls":
        return ("tool_use" if calls else "end_turn"), None
    return ("stop_sequence", stop) if isinstance(stop, str) and stop else ("end_turn", None)


# -- whole ----------------------------------------------------------------------------------------------------------


def write(reply: Reply, op: Op) -> Response:
    choice = reply.choices[0]
    stop_reason, stop_sequence = stop_of(
        choice.reason, choice.stop_sequence, calls=bool(choice.calls), refused=choice.text("refusal") is not None
    )
    ended: dict[str, Any] = {"content": _blocks(choice), "stop_reason": stop_reason, "stop_sequence": stop_sequence}
    if choice.server_calls:
        ended["usage"] = write_usage(reply.usage) | server_usage([call for _, call in choice.server_calls])
    return Response(200, [JSON_TYPE], encode(_message(op, shown(op, reply.start.model), reply.usage) | ended))


def _message(op: Op, model: str, usage: Usage | None) -> dict[str, Any]:
    """A message without content."""
    return {
        "id": f"msg_{op.facts(Message).request_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": write_usage(usage),
    }


def write_count(reply: TokenCount) -> Response:
    return Response(200, [JSON_TYPE], encode({"input_tokens": reply.tokens}))


def _blocks(choice: ReplyChoice) -> list[dict[str, Any]]:
    """The content: thinking, then text, then calls; behind each round what the server's own tools did. Clients read the
    first block, so an empty reply has an empty text block."""
    blocks: list[dict[str, Any]] = []
    for parts, call in choice.segments():
        parts = sorted(parts, key=lambda part: _ORDER[part.kind])
        blocks += [_block(part) for part in parts if part.text or part.kind == "tool"]
        if call is not None:
            blocks += [call_block(call), result_block(call)]
    return blocks or [{"type": "text", "text": ""}]


def _block(part: ReplyPart) -> dict[str, Any]:
    match part.kind:
        case "thinking":
            return {"type": "thinking", "thinking": part.text, "signature": SIGNATURE}
        case "text" | "refusal":
            block = {"type": "text", "text": part.text}
            return block | {"citations": cited} if (cited := _citations(part.citations)) else block
        case "tool":
            return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": _input(part.text)}


def _citations(found: Sequence[Citation]) -> list[dict[str, Any]]:
    """The pages that a text names, each once."""
    return [citation(one) for one in {one.page.url: one for one in found}.values()]


def _input(text: str) -> Any:
    """A call's arguments as an object, which this API requires. Arguments that are not a JSON object get the form in
    which Claude Code sends such arguments back."""
    found = members_of(text if text.strip() else "{}")
    return {"__unparsedToolInput": {"raw": text, "len": len(text)}} if found is None else found


# -- streamed -------------------------------------------------------------------------------------------------------


class _Block(Struct):
    """A content block of the stream. state: known (nothing to show yet), waiting (for the block before it), open, or
    closed.

    before  of an open block: the bytes before a delta's text
    texts   of a waiting block: its text so far; of an open call: its arguments so far
    ended   the worker has ended it
    tries   how many more times `complete` may parse the arguments
    citations  the pages that its text names
    """

    kind: PartKind
    start: dict[str, Any]
    state: Literal["known", "waiting", "open", "closed"] = "known"
    before: bytes = b""
    texts: list[str] = []
    ended: bool = False
    tries: int = _TRIES
    citations: list[dict[str, Any]] = []

    @property
    def complete(self) -> bool:
        """True if the arguments of an open call are a whole JSON object. Parses them at most `_TRIES` times, so that
        the work stays linear."""
        if self.kind != "tool" or not self.texts or not self.texts[-1].rstrip().endswith("}") or not self.tries:
            return False
        self.tries -= 1
        return members_of("".join(self.texts)) is not None


def _event(kind: str, **members: Any) -> bytes:
    return sse.frame(encode_line({"type": kind, **members}), kind.encode())


class StreamWriter(EventWriter):
    """Canonical events to the events of one stream.

    Only one block is open at a time, in the order in which blocks began; later ones wait. A call is closed when the
    next block begins and its arguments are complete, because workers end calls only at the end of the reply. Few
    workers interleave calls.
    """

    clean_end = True  # every client takes `event: error` for a failure

    def __init__(self, op: Generate) -> None:
        super().__init__()
        self._op = op
        self._begun = False
        self._blocks: dict[int, _Block] = {}
        self._waiting: deque[_Block] = deque()
        self._open: _Block | None = None
        self._opened = 0
        self._calls = self._refused = False
        self._server_calls: list[ServerCall] = []

    def write(self, event: Event) -> bytes:
        if type(event) is Delta:
            block = self._blocks[event.index]
            if block is self._open and block.kind != "tool" and event.text:
                return block.before + encode_line(event.text) + _AFTER
            return self._delta(block, event.text) if event.text else b""
        return self.other(event)

    def started(self, event: Start) -> bytes:
        return self._begin(shown(self._op, event.model), event.usage)

    def failed(self, error: GatewayError) -> bytes:
        return error_event(error, self._op)

    def keepalive(self) -> bytes:
        """A ping, behind a `message_start` if none was sent yet. A later writer for the same request does not send a
        second one."""
        out = self._begin(self._op.model or "") + _PING
        self._op.facts(Message).begun = True
        return out

    def _begin(self, model: str, usage: Usage | None = None) -> bytes:
        op = self._op
        if self._begun or op.facts(Message).begun:
            return b""
        self._begun = True
        return _event("message_start", message=_message(op, model, usage))

    def part_started(self, event: PartStart) -> bytes:
        start: dict[str, Any]
        match event.kind:
            case "tool":
                start = {"type": "tool_use", "id": event.call_id, "name": event.name, "input": {}}
            case "thinking":
                start = {"type": "thinking", "thinking": "", "signature": ""}
            case "text" | "refusal":
                start = {"type": "text", "text": ""}
        block = self._blocks[event.index] = _Block(event.kind, start)
        self._calls = self._calls or event.kind == "tool"
        self._refused = self._refused or event.kind == "refusal"
        return self._arrive(block) if event.kind == "tool" else b""

    def _arrive(self, block: _Block) -> bytes:
        """Queues a block: a call when it begins, any other with its first text."""
        block.state = "waiting"
        self._waiting.append(block)
        self.buffered_bytes += _PIECE
        return self._advance()

    def _delta(self, block: _Block, text: str) -> bytes:
        if block.kind == "tool" and not block.texts:
            # Clients parse what they have with every delta, and white space alone is not JSON.
            text = text.lstrip()
            if not text:
                return b""
        if block.state == "open":
            if block.kind == "tool":
                block.texts.append(text)
                self.buffered_bytes += len(text)
            return block.before + encode_line(text) + _AFTER
        if block.state == "closed":
            return b""  # white space behind complete arguments
        block.texts.append(text)
        self.buffered_bytes += len(text) + _PIECE
        return self._arrive(block) if block.state == "known" else self._advance()

    def part_ended(self, event: PartEnd) -> bytes:
        self._blocks.pop(event.index).ended = True
        return self._advance()

    def _advance(self) -> bytes:
        """Closes the open block if it is over and opens the next waiting one, repeatedly."""
        out = b""
        while (block := self._open) is None or block.ended or (self._waiting and block.complete):
            if block is not None:
                out += self._close(block)
            if not self._waiting:
                break
            out += self._show(self._waiting.popleft())
        return out

    def _show(self, block: _Block) -> bytes:
        index = self._opened
        self._opened += 1
        self._open, block.state = block, "open"
        name, member = _DELTAS[block.kind]
        block.before = _DELTA % (index, name, member)
        out = _event("content_block_start", index=index, content_block=block.start)
        texts = block.texts
        if texts:
            self.buffered_bytes -= _PIECE * len(texts)
            out += block.before + encode_line("".join(texts)) + _AFTER
        if block.kind != "tool":
            self.buffered_bytes -= sum(map(len, texts))
            block.texts = []
        return out

    def _close(self, block: _Block) -> bytes:
        index = self._opened - 1
        self._open, block.state = None, "closed"
        self.buffered_bytes -= _PIECE + sum(map(len, block.texts))
        block.texts = []
        out = b""
        for cited in block.citations:
            delta = {"type": "citations_delta", "citation": cited}
            out += _event("content_block_delta", index=index, delta=delta)
        if block.kind == "thinking":
            out = _event("content_block_delta", index=index, delta={"type": "signature_delta", "signature": SIGNATURE})
        return out + _event("content_block_stop", index=index)

    # -- calls of the server's own tools ----------------------------------------------------------------------------

    def called(self, call: ServerCall) -> bytes:
        self._server_calls.append(call)
        return self._whole({**call_block(call), "input": {}}, encode(arguments(call)).decode() if call.asked else "")

    def returned(self, call: ServerCall) -> bytes:
        return self._whole(result_block(call))

    def cite(self, index: int, citations: Sequence[Citation]) -> None:
        block = self._blocks.get(index)
        if block is not None:
            block.citations = _citations(citations)

    def _whole(self, block: dict[str, Any], text: str = "") -> bytes:
        """A block at once. text: the arguments of a call, as its only delta."""
        index = self._opened
        self._opened += 1
        out = _event("content_block_start", index=index, content_block=block)
        if text:
            out += _DELTA % (index, *_DELTAS["tool"]) + encode_line(text) + _AFTER
        return out + _event("content_block_stop", index=index)

    # -- the end ----------------------------------------------------------------------------------------------------

    def ended(self) -> bytes:
        out = b""
        if not self._opened:
            out = self._show(_Block("text", {"type": "text", "text": ""}))
            assert self._open is not None
            out += self._close(self._open)
        reason, sequence = stop_of(
            self.finish.reason, self.finish.stop_sequence, calls=self._calls, refused=self._refused
        )
        usage = write_usage(self.usage) | server_usage(self._server_calls)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return out + _event("message_delta", delta=delta, usage=usage) + _STOP
