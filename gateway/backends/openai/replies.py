"""Replies of OpenAI's wire as canonical events: one reader for a stream and for a whole body."""

from __future__ import annotations

import time
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
from gateway.core.messages import Chat, Extra, Generate
from gateway.wire import openai as wire
from gateway.wire import sse
from gateway.wire.json import encode
from gateway.wire.stencil import TRIES, Stencil, cut, text_of

# Bytes that a choice, or a part of one, takes for as long as the reply lasts, here and in a writer.
_PART = 512


class Parts:
    """The open parts of one choice."""

    __slots__ = ("finished", "next", "open_index", "open_kind", "tools")

    def __init__(self) -> None:
        self.open_kind: PartKind | None = None
        self.open_index = 0
        self.next = 0
        self.tools: dict[int, int] = {}
        self.finished = False


def reader_of(op: Generate) -> ChatReader | TextReader:
    """For one reply to `op`, by `feed` and `eof` or by `whole`."""
    return ChatReader(op) if isinstance(op, Chat) else TextReader(op)


class Reader(ABC):
    """What the chat and the text reader share: frames, the terminal mark, errors, usage."""

    def __init__(self, op: Generate) -> None:
        self.frames = sse.Reader()
        self.held = 0
        self.started = False
        self.over = False
        self.parts: dict[int, Parts] = {}
        self.unfinished = 0
        # What the ordinary chunks of one open part look like, and where that part is: (choice, index).
        self.usual: Stencil | None = None
        self.usual_at = (0, 0)
        self.tries = TRIES

    def feed(self, block: bytes) -> Iterable[Event]:
        usual = self.usual
        if usual is not None and block.startswith(usual.before) and self.frames.idle:
            event = self.ordinary(block, usual)
            if event is not None:
                return (event,)
        return self.frame(block)

    def ordinary(self, block: bytes, usual: Stencil) -> Delta | None:
        """The one event of a block that is the usual chunk with another text, which is read without the rest."""
        tokens: tuple[int, ...] = ()
        if usual.end:
            close = block.rfind(usual.after)
            digits = block[close + len(usual.after) : -len(usual.end)]
            if not digits.isdigit() or not block.endswith(usual.end):
                return None
            tokens = (int(digits),)
        elif block.endswith(usual.after):
            close = len(block) - len(usual.after)
        else:
            return None
        try:
            text = text_of(block[len(usual.before) - 1 : close + 1])
        except msgspec.DecodeError:
            return None
        choice, index = self.usual_at
        return Delta(choice, index, text, tokens) if text else None

    def learn(self, data: bytes, holder: tuple[str | int, ...], name: str, choice: int, tokens: bool) -> None:
        """Takes `data`, which is all text, for what chunks of the open part of `choice` look like."""
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
        """A buffered reply. A Content-Length or the last chunk framed it, so that its end is its terminal mark."""
        try:
            yield from self.chunk(body)
            if not self.over:
                yield from self.finish()
        except GatewayError as error:
            yield self.fail(error)

    @abstractmethod
    def chunk(self, data: bytes) -> Iterator[Event]:
        """The events of one chunk, or of a whole reply; raises GatewayError when it is an error or malformed."""

    def finish(self) -> Iterator[Event]:
        if not self.started or not self.parts or self.unfinished:
            yield self.fail(wire.truncated())
            return
        self.over, self.usual = True, None
        yield End()

    def fail(self, error: GatewayError) -> Failed:
        self.over, self.usual = True, None
        return Failed(error)

    def start(self, found: wire.ChatIn | wire.TextIn, extra: Extra) -> Start:
        self.started = True
        return Start(
            found.id or "",
            found.model or "",
            int(found.created or time.time()),
            found.system_fingerprint,
            found.service_tier,
            extra or None,
        )

    def of(self, choice: int) -> Parts:
        parts = self.parts.get(choice)
        if parts is None:
            parts = self.parts[choice] = Parts()
            self.unfinished += 1
            self.held += _PART
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
            self.held += _PART
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
        for index in parts.tools.values():
            yield PartEnd(choice, index)
        parts.finished = True
        self.unfinished -= 1
        yield Finish(choice, wire.reason(word), word, stop, extra)


class ChatReader(Reader):
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
            yield UsageReport(wire.usage(found.usage))
        elif self.usual is None and self.tries and len(found.choices) == 1:
            choice = found.choices[0]
            name = _only_text(choice)
            if name is not None:
                self.learn(data, _DELTA, name, choice.index, bool(choice.token_ids))

    def choice(self, found: wire.ChatChoiceIn) -> Iterator[Event]:
        index = found.index
        parts = self.of(index)
        if parts.finished:
            return
        delta = found.delta or found.message
        tokens = _spoken(found)
        logprobs = Raw(encode(found.logprobs.content)) if found.logprobs and found.logprobs.content else None
        if delta is not None:
            thinking = delta.reasoning or delta.reasoning_content
            ends = found.finish_reason is not None and not delta.tool_calls and delta.function_call is None
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
                yield from self.calls(index, parts, delta.tool_calls)
            if delta.function_call is not None:
                legacy = wire.ToolCallIn(0, None, delta.function_call)
                yield from self.calls(index, parts, [legacy])
        if found.finish_reason is not None:
            yield from self.close(index, parts, found.finish_reason, found.stop_reason)
        elif found.message is not None:
            yield from self.close(index, parts, "stop", found.stop_reason)

    def calls(self, choice: int, parts: Parts, calls: Iterable[wire.ToolCallIn]) -> Iterator[Event]:
        for position, call in enumerate(calls):
            number = call.index if call.index is not None else position
            function = call.function or wire.FunctionIn()
            index = parts.tools.get(number)
            if index is None:
                self.usual = None
                if parts.open_kind is not None:
                    yield PartEnd(choice, parts.open_index)
                    parts.open_kind = None
                index = parts.tools[number] = parts.next
                parts.next += 1
                self.held += _PART
                yield PartStart(choice, index, "tool", call.id, function.name or "")
            if function.arguments:
                yield Delta(choice, index, function.arguments)


class TextReader(Reader):
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
                continue
            tokens = _spoken(choice)
            logprobs = _chat_logprobs(choice.logprobs) if choice.logprobs is not None else None
            if choice.text or tokens or logprobs is not None:
                ends = choice.finish_reason is not None
                yield from self.text(choice.index, parts, "text", choice.text or "", tokens, logprobs, ends)
            if choice.finish_reason is not None:
                extra = _extra(prompt_logprobs=choice.prompt_logprobs, prompt_token_ids=choice.prompt_token_ids)
                yield from self.close(choice.index, parts, choice.finish_reason, choice.stop_reason, extra or None)
        if found.usage is not None:
            yield UsageReport(wire.usage(found.usage))
        elif self.usual is None and self.tries and len(found.choices) == 1:
            choice = found.choices[0]
            if choice.text and choice.logprobs is None and choice.finish_reason is None and _few(choice.token_ids):
                self.learn(data, _CHOICE, "text", choice.index, bool(choice.token_ids))


# Where the text of a chunk is.
_CHOICE: tuple[str | int, ...] = ("choices", 0)
_DELTA = (*_CHOICE, "delta")


def _only_text(found: wire.ChatChoiceIn) -> str | None:
    """The name of the member that is all the choice says, or None."""
    delta = found.delta
    if (
        delta is None
        or found.finish_reason is not None
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
    """The ids behind a chunk's text. vLLM also lists the id that ended the choice (the model's own end, or a stop
    token, which stop_reason then names): no text stands for that one. Ids of a stop phrase stay, as vLLM gives them."""
    ids = found.token_ids
    if not ids:
        return ()
    if found.finish_reason == "stop" and not isinstance(found.stop_reason, str):
        return tuple(ids[:-1])
    return tuple(ids)


def _extra(**members: Raw | None) -> Extra:
    return {name: raw for name, raw in members.items() if raw is not None and bytes(raw) != b"null"}


def _chat_logprobs(found: wire.TextLogprobsIn) -> Raw | None:
    """Text completion logprobs in the canonical (chat) form. Position offsets are not kept: they follow from the
    tokens."""
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
