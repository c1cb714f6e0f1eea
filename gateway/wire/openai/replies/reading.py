"""Replies of OpenAI's wire as canonical events: chats, text completions and embeddings, streamed and whole."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Raw

from gateway.core.events import Delta, Event, PartEnd, PartStart
from gateway.core.http import Response
from gateway.core.lifecycle import Embeddings
from gateway.core.messages import Chat, Complete, Embed, Generate
from gateway.wire import clock
from gateway.wire.json import encode
from gateway.wire.openai.replies import views as wire
from gateway.wire.openai.replies.excess import MOST_TOKENS, refuse_longer
from gateway.wire.openai.replies.vectors import as_asked
from gateway.wire.openai.streams.reading import PART_BYTES, Parts, Reader, extra_of


def read_embeddings(response: Response, op: Embed) -> Embeddings:
    """The reply to `op`, with vectors in order. Raises GatewayError: UPSTREAM for an invalid or incomplete reply,
    UNSUPPORTED for vectors of another length than was asked for."""
    refuse_longer(response.body, len(op.inputs))
    found = wire.decoded(response.body, wire.embeddings_decoder)
    if found.error is not None:
        raise wire.late_fault(found.error)
    if found.data is None or len(found.data) != len(op.inputs):
        raise wire.malformed()
    vectors = as_asked([one.embedding for one in sorted(found.data, key=lambda one: one.index)], op)
    return Embeddings(found.model or "", vectors, wire.usage(found.usage) if found.usage else None)


def reader_of(op: Generate) -> ChatReader | TextReader:
    """A reader for one reply to `op`: call `feed` and `eof` for a stream, or `whole` for a buffered reply."""
    return ChatReader(op) if isinstance(op, Chat) else TextReader(op)


class ChatReader(Reader):
    prefix = "chatcmpl-"

    def chunk(self, data: bytes) -> Iterator[Event]:
        found = wire.decoded(data, wire.chat_decoder)
        yield from self.begin(found, prompt_logprobs=found.prompt_logprobs, kv_transfer_params=found.kv_transfer_params)
        choices = found.choices or []
        for choice in choices:
            yield from self.choice(choice)
        if found.usage is not None:
            self.usage, self.late_output = self.counted(wire.usage(found.usage)), b""
        if self.usual is None and self.tries and len(choices) == 1:
            choice = choices[0]
            name = _only_text(choice)
            if name is not None:
                self.learn(data, _DELTA, name, choice.index, bool(choice.token_ids), found.usage is not None)

    def choice(self, found: wire.ChatChoiceIn) -> Iterator[Event]:
        index = found.index
        parts = self.of(index)
        message = found.message
        whole = message is not None and (self.buffered or found.delta is None)
        delta = message if whole else found.delta
        if parts.finished:
            if delta is not None and _has_content(delta):
                raise wire.malformed()  # what comes after a choice's end would be lost
            return
        if self.buffered and not whole:
            raise wire.malformed()
        tokens = _spoken(found)
        logprobs = chat_logprobs(found.logprobs.content) if found.logprobs and found.logprobs.content else None
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
            for kind, text in delta.parts:
                yield from self.text(index, parts, kind, text, (), None)
            if delta.words:
                yield from self.text(index, parts, "text", delta.words, tokens, logprobs, ends)
            elif (tokens or logprobs) and not thinking:
                yield from self.text(index, parts, parts.open_kind or "text", "", tokens, logprobs, ends)
            if delta.tool_calls:
                yield from self.calls(index, parts, delta.tool_calls, whole)
            if delta.function_call is not None:
                legacy = wire.ToolCallIn(0, None, delta.function_call)
                yield from self.calls(index, parts, [legacy], whole)
        if found.finish_reason or whole:  # "" is LocalAI's null
            extra = extra_of(annotations=message.annotations, audio=message.audio) if message is not None else None
            yield from self.close(
                index, parts, found.finish_reason or "stop", found.stop_reason, extra or None, _end_token(found)
            )

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
                self.buffered_bytes += PART_BYTES
                call_id = call.id or clock.new_id("call_")
                yield PartStart(choice, call.part, "tool", call_id, function.name or "")
            text = call.next(function.text)
            if text:
                yield Delta(choice, call.part, text)


class TextReader(Reader):
    prefix = "cmpl-"

    def __init__(self, op: Generate) -> None:
        super().__init__(op)
        # No character is more than four tokens: those are its bytes.
        echoed = 4 * sum(map(len, op.prompts)) if isinstance(op, Complete) and op.echo else 0
        self._most_tokens = MOST_TOKENS + echoed

    def chunk(self, data: bytes) -> Iterator[Event]:
        found = wire.decoded(data, wire.text_decoder)
        yield from self.begin(found, kv_transfer_params=found.kv_transfer_params)
        choices = found.choices or []
        for choice in choices:
            parts = self.of(choice.index)
            if parts.finished:
                if choice.text:
                    raise wire.malformed()  # what comes after a choice's end would be lost
                continue
            if choice.text is None and self.buffered:
                raise wire.malformed()
            tokens = _spoken(choice)
            logprobs = self._logprobs(choice.logprobs) if choice.logprobs is not None else None
            if choice.text or tokens or logprobs is not None:
                ends = bool(choice.finish_reason)
                yield from self.text(choice.index, parts, "text", choice.text or "", tokens, logprobs, ends)
            if choice.finish_reason:
                extra = extra_of(prompt_logprobs=choice.prompt_logprobs, prompt_token_ids=choice.prompt_token_ids)
                yield from self.close(
                    choice.index, parts, choice.finish_reason, choice.stop_reason, extra or None, _end_token(choice)
                )
        if found.usage is not None:
            self.usage = self.counted(wire.usage(found.usage))
        elif self.usual is None and self.tries and len(choices) == 1:
            choice = choices[0]
            if choice.text and choice.logprobs is None and not choice.finish_reason and _few(choice.token_ids):
                self.learn(data, _CHOICE, "text", choice.index, bool(choice.token_ids))

    def _logprobs(self, found: wire.TextLogprobsIn) -> Raw | None:
        """The logprobs in the canonical form. A chunk with those of very many tokens is malformed, because they are
        looked at one by one. A whole reply may have more: a large one is read in a thread."""
        tokens, tops = found.tokens or (), found.top_logprobs or ()
        if not self.buffered and (
            len(tokens) > self._most_tokens or sum(len(top) for top in tops if top) > _MOST_TOPS * self._most_tokens
        ):
            raise wire.malformed()
        return text_logprobs(found)


# The most alternatives of a token, on average over one chunk.
_MOST_TOPS = 32
# The path to a chunk's choice, which holds the text.
_CHOICE: tuple[str | int, ...] = ("choices", 0)
_DELTA = (*_CHOICE, "delta")


def _has_content(found: wire.DeltaIn) -> bool:
    """True if the delta has content."""
    calls = [call.function for call in found.tool_calls or () if call.function is not None]
    return bool(
        found.content
        or found.reasoning
        or found.reasoning_content
        or found.refusal
        or any(function.name or function.text for function in (*calls, found.function_call) if function)
    )


def _only_text(found: wire.ChatChoiceIn) -> str | None:
    """The member that holds the text of an ordinary chunk: `content`, `reasoning` or `reasoning_content`. None for any
    other chunk: with text in several members or in none, a tool call, a refusal, logprobs, a finish reason, or more
    than one token id."""
    delta = found.delta
    if (
        delta is None
        or found.finish_reason
        or found.logprobs is not None
        or not _few(found.token_ids)
        or delta.tool_calls
        or delta.function_call is not None
        or delta.refusal
        or isinstance(delta.content, list)
    ):
        return None
    texts = [name for name in ("content", "reasoning", "reasoning_content") if getattr(delta, name)]
    return texts[0] if len(texts) == 1 else None


def _few(ids: list[int] | None) -> bool:
    return ids is None or len(ids) <= 1


def _spoken(found: wire.ChoiceIn) -> tuple[int, ...]:
    """The token ids of a chunk's text. vLLM also lists the id that ended the choice (the model's end token, or a stop
    token, named in stop_reason). It has no text and is left out. Ids of a stop phrase stay, as vLLM gives them."""
    ids = found.token_ids
    if not ids:
        return ()
    return tuple(ids) if _end_token(found) is None else tuple(ids[:-1])


def _end_token(found: wire.ChoiceIn) -> int | None:
    """The id that ended the choice, if the chunk has one."""
    ended = found.token_ids and found.finish_reason == "stop" and not isinstance(found.stop_reason, str)
    return found.token_ids[-1] if ended and found.token_ids else None


def chat_logprobs(found: list[wire.LogprobIn]) -> Raw:
    """Chat logprobs, completed with all members of a canonical token object."""
    for token in found:
        token.top_logprobs = token.top_logprobs or []
    return Raw(encode(found))


def text_logprobs(found: wire.TextLogprobsIn) -> Raw | None:
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
