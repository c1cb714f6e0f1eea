"""Replies of OpenAI's wire as canonical events: one reader for a stream and for a whole body."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Raw

from gateway.core.errors import GatewayError
from gateway.core.events import (
    Delta,
    End,
    Event,
    Failed,
    Finish,
    PartEnd,
    PartKind,
    PartStart,
    Start,
    UsageReport,
)
from gateway.core.http import Response
from gateway.core.lifecycle import Embeddings
from gateway.core.messages import Chat, Complete, Embed, Extra, Generate
from gateway.core.usage import Usage
from gateway.wire import sse
from gateway.wire.chunk_template import TRIES, ChunkTemplate, cut, id_of, text_of
from gateway.wire.json import NULL, encode
from gateway.wire.openai import answers as wire
from gateway.wire.openai.defaults import DEFAULTS, ReplyDefaults
from gateway.wire.openai.tool_calls import Calls

# The most digits of a token id in an ordinary chunk. A chunk with a longer id is parsed, which checks the range.
_ID_DIGITS = 10
# Bytes of memory that a choice, or a part of one, takes until the reply ends, here and in a writer.
_PART = 512


class Parts:
    """The open parts and the tool calls of one choice."""

    __slots__ = ("calls", "finished", "next", "open_index", "open_kind")

    def __init__(self) -> None:
        self.open_kind: PartKind | None = None
        self.open_index = 0
        self.next = 0
        self.calls = Calls()
        self.finished = False


def read_embeddings(response: Response, op: Embed) -> Embeddings:
    """The reply to `op`, with vectors in order. Raises GatewayError(UPSTREAM) for an invalid or incomplete reply."""
    try:
        found = wire.embeddings_decoder.decode(response.body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise wire.malformed() from None
    if found.error is not None:
        raise wire.late_fault(found.error)
    if found.data is None or len(found.data) != len(op.inputs):
        raise wire.malformed()
    vectors = tuple(wire.vector(one) for one in sorted(found.data, key=lambda one: one.index))
    return Embeddings(found.model or "", vectors, wire.usage(found.usage) if found.usage else None)


def reader_of(op: Generate, defaults: ReplyDefaults = DEFAULTS) -> ChatReader | TextReader:
    """A reader for one reply to `op`: call `feed` and `eof` for a stream, or `whole` for a buffered reply."""
    return ChatReader(op, defaults) if isinstance(op, Chat) else TextReader(op, defaults)


class Reader(ABC):
    """The common part of the chat and text readers: frames, the terminal mark, errors, usage.

    A reply is complete when exactly the choices asked for are there and all have ended. A beam search needs at least
    one choice for each prompt.
    """

    prefix: str

    def __init__(self, op: Generate, defaults: ReplyDefaults = DEFAULTS) -> None:
        self.defaults = defaults
        prompts = 1 if isinstance(op, Chat) else len(op.prompts)
        beams = op.beams if isinstance(op, Complete) else None
        self.least = prompts if beams is not None else prompts * op.n
        self.most = prompts * (beams.width if beams is not None else op.n)
        self.buffered = False
        self.frames = sse.Reader()
        self.buffered_bytes = 0
        self.started = False
        self.over = False
        self.parts: dict[int, Parts] = {}
        self.usage: Usage | None = None
        self.unfinished = 0
        # The template of ordinary chunks of one open part, and the place of that part: (choice, index).
        self.usual: ChunkTemplate | None = None
        self.usual_at = (0, 0)
        self.tries = TRIES

    def feed(self, block: bytes) -> Iterable[Event]:
        usual = self.usual
        if usual is not None and block.startswith(usual.before) and self.frames.idle:
            event = self.ordinary(block, usual)
            if event is not None:
                return (event,)
        return self.frame(block)

    def ordinary(self, block: bytes, usual: ChunkTemplate) -> Delta | None:
        """The event of a block that matches the template `usual`. Only its text is parsed. None without a match."""
        digits = b""
        if usual.end:
            close = block.rfind(usual.after)
            digits = block[close + len(usual.after) : -len(usual.end)]
            if not digits.isdigit() or len(digits) > _ID_DIGITS or not block.endswith(usual.end):
                return None
        elif block.endswith(usual.after):
            close = len(block) - len(usual.after)
        else:
            return None
        try:
            tokens = (id_of(digits),) if digits else ()
            text = text_of(block[len(usual.before) - 1 : close + 1])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        choice, index = self.usual_at
        return Delta(choice, index, text, tokens) if text else None

    def learn(self, data: bytes, holder: tuple[str | int, ...], name: str, choice: int, tokens: bool) -> None:
        """Learns a template from the chunk `data`, which holds only text, for the open part of `choice`."""
        parts = self.parts[choice]
        if not parts.finished:
            self.tries -= 1
            self.usual = cut(data, holder, name, token=tokens)
            self.usual_at = (choice, parts.open_index)

    def frame(self, block: bytes) -> Iterator[Event]:
        if self.over:
            return
        try:
            for frame in self.frames.feed(block):
                if frame.data == b"[DONE]":
                    yield from self.finish()
                    return
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
            yield UsageReport(self.usage)
        yield End()

    def fail(self, error: GatewayError) -> Failed:
        self.over, self.usual = True, None
        return Failed(error)

    def counted(self, said: Usage) -> Usage:
        """The usage so far, after a chunk with the usage `said`. Nearly every server reports totals of the reply."""
        return said

    def start(self, found: wire.ChatIn | wire.TextIn, extra: Extra) -> Start:
        self.started = True
        return Start(
            found.id or self.defaults.new_id(self.prefix),
            found.model or "",
            wire.created_at(found.created, self.defaults.now()),
            found.system_fingerprint,
            found.service_tier,
            extra or None,
        )

    def of(self, choice: int) -> Parts:
        parts = self.parts.get(choice)
        if parts is None:
            if len(self.parts) == self.most:
                raise wire.malformed()
            parts = self.parts[choice] = Parts()
            self.unfinished += 1
            self.buffered_bytes += _PART
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
            self.buffered_bytes += _PART
            yield PartStart(choice, parts.open_index, kind)
        yield Delta(choice, parts.open_index, text, tokens, logprobs, last)

    def close(
        self, choice: int, parts: Parts, word: str, stop: str | int | None, extra: Extra | None = None
    ) -> Iterator[Event]:
        self.usual = None
        if word in wire.FAILING:
            raise wire.aborted(word)
        if parts.open_kind is not None:
            yield PartEnd(choice, parts.open_index)
        for call in parts.calls.begun:
            yield PartEnd(choice, call.part)
        parts.finished = True
        self.unfinished -= 1
        yield Finish(choice, wire.reason(word), word, stop, extra)


class ChatReader(Reader):
    prefix = "chatcmpl-"

    def chunk(self, data: bytes) -> Iterator[Event]:
        try:
            found = wire.chat_decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise wire.malformed() from None
        if found.error is not None:
            raise wire.late_fault(found.error)
        if found.choices is None:
            raise wire.malformed()
        if not self.started:
            yield self.start(
                found, _extra(prompt_logprobs=found.prompt_logprobs, kv_transfer_params=found.kv_transfer_params)
            )
        for choice in found.choices:
            yield from self.choice(choice)
        if found.usage is not None:
            self.usage = self.counted(wire.usage(found.usage))
        elif self.usual is None and self.tries and len(found.choices) == 1:
            choice = found.choices[0]
            name = _only_text(choice)
            if name is not None:
                self.learn(data, _DELTA, name, choice.index, bool(choice.token_ids))

    def choice(self, found: wire.ChatChoiceIn) -> Iterator[Event]:
        index = found.index
        parts = self.of(index)
        message = found.message
        whole = message is not None and (self.buffered or found.delta is None)
        delta = message if whole else found.delta
        if parts.finished:
            if delta is not None and _says(delta):
                raise wire.malformed()  # what comes after a choice's end would be lost
            return
        if self.buffered and not whole:
            raise wire.malformed()
        tokens = _spoken(found)
        logprobs = _canonical(found.logprobs.content) if found.logprobs and found.logprobs.content else None
        if delta is not None:
            thinking = delta.reasoning or delta.reasoning_content
            ends = bool(found.finish_reason) and not delta.tool_calls and delta.function_call is None
            if thinking:
                # Ids and logprobs of a chunk belong to its last text.
                last = not delta.content
                yield from self.text(
                    index,
                    parts,
                    "thinking",
                    thinking,
                    tokens if last else (),
                    logprobs if last else None,
                    ends and last,
                )
            if delta.refusal:
                yield from self.text(index, parts, "refusal", delta.refusal, (), None)
            if delta.content:
                yield from self.text(index, parts, "text", delta.content, tokens, logprobs, ends)
            elif (tokens or logprobs) and not thinking:
                yield from self.text(index, parts, parts.open_kind or "text", "", tokens, logprobs, ends)
            if delta.tool_calls:
                yield from self.calls(index, parts, delta.tool_calls, whole)
            if delta.function_call is not None:
                legacy = wire.ToolCallIn(0, None, delta.function_call)
                yield from self.calls(index, parts, [legacy], whole)
        if found.finish_reason or whole:  # "" is LocalAI's null
            extra = _extra(annotations=message.annotations, audio=message.audio) if message is not None else None
            yield from self.close(index, parts, found.finish_reason or "stop", found.stop_reason, extra or None)

    def calls(self, choice: int, parts: Parts, pieces: list[wire.ToolCallIn], whole: bool) -> Iterator[Event]:
        """The events of tool call pieces. With `whole`, each piece is a complete call, whatever its index."""
        for position, piece in enumerate(pieces):
            function = piece.function or wire.FunctionIn()
            call = None if whole else parts.calls.continued(piece, position if len(pieces) > 1 else None)
            if call is None:
                self.usual = None
                if parts.open_kind is not None:
                    yield PartEnd(choice, parts.open_index)
                    parts.open_kind = None
                call = parts.calls.begin(piece, position, parts.next)
                parts.next += 1
                self.buffered_bytes += _PART
                said_id = call.id or self.defaults.new_id("call_")
                yield PartStart(choice, call.part, "tool", said_id, function.name or "")
            if function.arguments:
                yield Delta(choice, call.part, function.arguments)


class TextReader(Reader):
    prefix = "cmpl-"

    def chunk(self, data: bytes) -> Iterator[Event]:
        try:
            found = wire.text_decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise wire.malformed() from None
        if found.error is not None:
            raise wire.late_fault(found.error)
        if found.choices is None:
            raise wire.malformed()
        if not self.started:
            yield self.start(found, _extra(kv_transfer_params=found.kv_transfer_params))
        for choice in found.choices:
            parts = self.of(choice.index)
            if parts.finished:
                if choice.text:
                    raise wire.malformed()  # what comes after a choice's end would be lost
                continue
            if choice.text is None and self.buffered:
                raise wire.malformed()
            tokens = _spoken(choice)
            logprobs = _chat_logprobs(choice.logprobs) if choice.logprobs is not None else None
            if choice.text or tokens or logprobs is not None:
                ends = bool(choice.finish_reason)
                yield from self.text(choice.index, parts, "text", choice.text or "", tokens, logprobs, ends)
            if choice.finish_reason:
                extra = _extra(prompt_logprobs=choice.prompt_logprobs, prompt_token_ids=choice.prompt_token_ids)
                yield from self.close(choice.index, parts, choice.finish_reason, choice.stop_reason, extra or None)
        if found.usage is not None:
            self.usage = self.counted(wire.usage(found.usage))
        elif self.usual is None and self.tries and len(found.choices) == 1:
            choice = found.choices[0]
            if choice.text and choice.logprobs is None and not choice.finish_reason and _few(choice.token_ids):
                self.learn(data, _CHOICE, "text", choice.index, bool(choice.token_ids))


# The path to a chunk's choice, which holds the text.
_CHOICE: tuple[str | int, ...] = ("choices", 0)
_DELTA = (*_CHOICE, "delta")


def _says(found: wire.DeltaIn) -> bool:
    """True if the delta has any content that must not be lost."""
    calls = [call.function for call in found.tool_calls or () if call.function is not None]
    return bool(
        found.content
        or found.reasoning
        or found.reasoning_content
        or found.refusal
        or any(function.name or function.arguments for function in (*calls, found.function_call) if function)
    )


def _only_text(found: wire.ChatChoiceIn) -> str | None:
    """The name of the choice's only member with content, or None if there are none or several."""
    delta = found.delta
    if (
        delta is None
        or found.finish_reason
        or found.logprobs is not None
        or not _few(found.token_ids)
        or delta.tool_calls
        or delta.function_call is not None
        or delta.refusal
    ):
        return None
    texts = [name for name in ("content", "reasoning", "reasoning_content") if getattr(delta, name)]
    return texts[0] if len(texts) == 1 else None


def _few(ids: list[int] | None) -> bool:
    return ids is None or len(ids) <= 1


def _spoken(found: wire.ChatChoiceIn | wire.TextChoiceIn) -> tuple[int, ...]:
    """The token ids of a chunk's text. vLLM also lists the id that ended the choice (the model's end token, or a stop
    token, named in stop_reason). It has no text and is left out. Ids of a stop phrase stay, as vLLM gives them."""
    ids = found.token_ids
    if not ids:
        return ()
    if found.finish_reason == "stop" and not isinstance(found.stop_reason, str):
        return tuple(ids[:-1])
    return tuple(ids)


def _extra(**members: Raw) -> Extra:
    """The members that are present. Raises GatewayError for a value that no client could read."""
    found = {name: raw for name, raw in members.items() if raw != NULL}
    for raw in found.values():
        wire.require_strict(raw)
    return found


def _canonical(found: list[wire.LogprobIn]) -> Raw:
    """Chat logprobs, completed with all members of a canonical token object."""
    for token in found:
        token.top_logprobs = token.top_logprobs or []
    return Raw(encode(found))


def _chat_logprobs(found: wire.TextLogprobsIn) -> Raw | None:
    """Text completion logprobs in the canonical (chat) form. Text offsets are left out: they follow from the tokens."""
    if not found.tokens:
        return None
    values = found.token_logprobs or []
    tops = found.top_logprobs or []
    out = []
    for position, token in enumerate(found.tokens):
        top = tops[position] if position < len(tops) else None
        out.append(
            {
                "token": token,
                "logprob": values[position] if position < len(values) else None,
                "bytes": list(token.encode()),
                "top_logprobs": [
                    {"token": other, "logprob": value, "bytes": list(other.encode())}
                    for other, value in (top or {}).items()
                ],
            }
        )
    return Raw(encode(out))
