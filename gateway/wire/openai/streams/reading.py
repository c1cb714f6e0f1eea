"""The common part of readers of replies: frames, choices and their parts, usage, and the ends of a reply."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from gateway.core.errors import GatewayError
from gateway.core.events import Delta, End, Event, Failed, Finish, PartEnd, PartKind, PartStart, Start, UsageReport
from gateway.core.messages import Chat, Complete, Extra, Generate
from gateway.core.usage import Usage
from gateway.wire import clock, sse
from gateway.wire.chunk_template import TRIES, ChunkTemplate, cut, id_of, text_of
from gateway.wire.json import NULL
from gateway.wire.openai.replies import views as wire
from gateway.wire.openai.replies.excess import ORDINARY_BYTES, refuse_bulky, refuse_excess
from gateway.wire.openai.replies.tool_calls import Calls
from gateway.wire.openai.replies.whole import is_named

PART_BYTES = 512
"""Bytes of memory that a choice, or a part of one, takes until the reply ends, here and in a writer."""


class Parts(Struct):
    """The open parts and the tool calls of one choice."""

    open_kind: PartKind | None = None
    open_index: int = 0
    next: int = 0
    calls: Calls = field(default_factory=Calls)
    finished: bool = False


class Reader(ABC):
    """The common part of the chat and text readers: frames, the terminal mark, errors, usage.

    A reply is complete when exactly the choices asked for are there and all have ended. A beam search needs at least
    one choice for each prompt.
    """

    prefix: str

    def __init__(self, op: Generate) -> None:
        prompts = 1 if isinstance(op, Chat) else len(op.prompts)
        beams = op.beams if isinstance(op, Complete) else None
        self.least = prompts if beams is not None else prompts * op.n
        self.most = prompts * (beams.width if beams is not None else op.n)
        self.logprobs = op.logprobs is not None
        self.named_tool = is_named(op)
        self.buffered = False
        self.frames = sse.Reader()
        self.buffered_bytes = 0
        self.started = False
        self.over = False
        self.parts: dict[int, Parts] = {}
        self.usage: Usage | None = None
        # The tokens of the reply so far, as the last ordinary chunk wrote them, if it is later than `usage`.
        self.late_output = b""
        # The worker's fingerprint, if it comes after the first chunk: vLLM sends it in the last one only.
        self.late_fingerprint: str | None = None
        self.unfinished = 0
        # The template of ordinary chunks of one open part, and the place of that part: (choice, index).
        self.usual: ChunkTemplate | None = None
        self.usual_at = (0, 0)
        self.tries = TRIES

    def feed(self, block: bytes) -> Iterable[Event]:
        usual = self.usual
        if usual is not None and self.frames.idle:
            event = self.ordinary(block, usual)
            if event is not None:
                return (event,)
        return self.frame(block)

    def ordinary(self, block: bytes, usual: ChunkTemplate) -> Delta | None:
        """The event of a block that matches the template `usual`. Only its text is parsed. None without a match."""
        if not block.startswith(usual.before):
            return None
        found = usual.number(block)
        if found is None:
            return None
        close, digits = found
        if usual.middle:
            self.late_output, digits = digits, b""
        try:
            tokens = (id_of(digits),) if digits else ()
            text = text_of(block[len(usual.before) - 1 : close + 1])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        choice, index = self.usual_at
        return Delta(choice, index, text, tokens) if text else None

    def learn(
        self, data: bytes, holder: tuple[str | int, ...], name: str, choice: int, tokens: bool, usage: bool = False
    ) -> None:
        """Learns a template from the chunk `data`, which holds only text, for the open part of `choice`."""
        parts = self.parts[choice]
        if not parts.finished:
            self.tries -= 1
            self.usual = cut(data, holder, name, token=tokens, usage=usage)
            self.usual_at = (choice, parts.open_index)

    def frame(self, block: bytes) -> Iterator[Event]:
        if self.over:
            return
        try:
            for frame in self.frames.feed(block):
                if frame.data == b"[DONE]":
                    yield from self.finish()
                    return
                # A gateway that is late gets several chunks in one block: they must not cost more than one at a time.
                usual = self.usual
                event = self.ordinary(b"data: %b\n\n" % frame.data, usual) if usual is not None else None
                if event is not None:
                    yield event
                else:
                    if frame.silent:
                        continue
                    if len(frame.data) > ORDINARY_BYTES:
                        refuse_bulky(frame.data, self.most, self.logprobs)
                    yield from self.chunk(frame.data)
        except GatewayError as error:
            yield self.fail(error)

    def eof(self) -> Iterator[Event]:
        if not self.over:
            yield self.fail(wire.truncated())

    def whole(self, body: bytes) -> Iterator[Event]:
        """Reads a buffered reply. Content-Length or the last HTTP chunk framed it, so its end is its terminal mark."""
        self.buffered = True
        try:
            if len(body) > ORDINARY_BYTES:
                refuse_excess(body, self.most)
            yield from self.chunk(body)
            if not self.over:
                yield from self.finish()
        except GatewayError as error:
            yield self.fail(error)

    @abstractmethod
    def chunk(self, data: bytes) -> Iterator[Event]:
        """The events of one chunk, or of a buffered reply. Raises GatewayError if it is an error or malformed."""

    def finish(self) -> Iterator[Event]:
        if not self.started or self.unfinished or len(self.parts) < self.least:
            # A buffered reply is not truncated: anything missing was never sent.
            yield self.fail(wire.malformed() if self.buffered and not self.unfinished else wire.truncated())
            return
        self.over, self.usual = True, None
        if self.usage is not None:
            late = self.late_output
            yield UsageReport(replace(self.usage, output=int(late)) if late else self.usage)
        yield End(self.late_fingerprint)

    def fail(self, error: GatewayError) -> Failed:
        self.over, self.usual = True, None
        return Failed(error)

    def counted(self, newest: Usage) -> Usage:
        """The usage so far, after a chunk with the usage `newest`. Nearly every server reports totals of the reply."""
        return newest

    def begin(self, found: wire.ChatIn | wire.TextIn, **members: Raw) -> Iterator[Event]:
        """The reply's Start, with these extra members, if `found` is its first chunk. Raises GatewayError for a chunk
        that is an error or has no choices."""
        if found.error is not None:
            raise wire.late_fault(found.error)
        if found.choices is None:
            raise wire.malformed()
        if not self.started:
            self.started = True
            yield Start(
                found.id or clock.new_id(self.prefix),
                found.model or "",
                wire.created_at(found.created, clock.seconds()),
                found.system_fingerprint,
                found.service_tier,
                extra_of(**members) or None,
                wire.usage(found.usage) if found.usage is not None and not self.buffered else None,
            )
        elif found.system_fingerprint is not None:
            self.late_fingerprint = found.system_fingerprint

    def of(self, choice: int) -> Parts:
        parts = self.parts.get(choice)
        if parts is None:
            if len(self.parts) == self.most:
                raise wire.malformed()
            parts = self.parts[choice] = Parts()
            self.unfinished += 1
            self.buffered_bytes += PART_BYTES
        return parts

    def text(
        self,
        choice: int,
        parts: Parts,
        kind: PartKind,
        text: str,
        tokens: tuple[int, ...],
        logprobs: Raw | None,
        last: bool = False,
    ) -> Iterator[Event]:
        if parts.open_kind != kind:
            self.usual = None
            if parts.open_kind is not None:
                yield PartEnd(choice, parts.open_index)
            parts.open_kind = kind
            parts.open_index = parts.next
            parts.next += 1
            self.buffered_bytes += PART_BYTES
            yield PartStart(choice, parts.open_index, kind)
        yield Delta(choice, parts.open_index, text, tokens, logprobs, last)

    def close(
        self,
        choice: int,
        parts: Parts,
        word: str,
        stop: str | int | None,
        extra: Extra | None = None,
        end_token: int | None = None,
    ) -> Iterator[Event]:
        self.usual = None
        if word in wire.FAILING:
            raise wire.aborted(word)
        if parts.open_kind is not None:
            yield PartEnd(choice, parts.open_index)
        reason = wire.reason(word)
        for call, rest in parts.calls.rests(reason):
            if rest:
                yield Delta(choice, call.part, rest)
            yield PartEnd(choice, call.part)
        if reason == "stop" and parts.calls.begun and not self.named_tool:
            reason = "tool_calls"  # OpenAI itself says `stop` only where the request names the function
        parts.finished = True
        self.unfinished -= 1
        yield Finish(choice, reason, word, stop, extra, end_token)


def extra_of(**members: Raw) -> Extra:
    """The members that are present. Raises GatewayError for a value that no client could read."""
    found = {name: raw for name, raw in members.items() if raw != NULL}
    for raw in found.values():
        wire.require_strict(raw)
    return found
