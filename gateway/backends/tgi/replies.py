"""TGI's replies as canonical events, with corrections where TGI differs from what dialects promise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.backends.tgi.errors import late_fault
from gateway.core.events import Delta, End, Event, Failed, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.lifecycle import TokenCount, Tokens
from gateway.core.messages import Chat, Generate, Tokenize
from gateway.core.usage import Usage
from gateway.wire import clock
from gateway.wire.json import encode
from gateway.wire.openai.replies import views as wire
from gateway.wire.openai.replies.excess import MOST_TOKENS
from gateway.wire.openai.replies.reading import ChatReader
from gateway.wire.openai.streams.reading import Reader


class _Token(Struct):
    id: wire.Number
    text: str
    logprob: float | None = None
    special: bool = False


class _Details(Struct):
    finish_reason: str
    generated_tokens: wire.Count | None = None
    input_length: wire.Count | None = None
    prefill: list[Raw] = []
    tokens: list[_Token] = []
    top_tokens: list[list[_Token]] = []


class _GenerationIn(Struct):
    """One event of /generate_stream, or the whole answer of /generate."""

    token: _Token | None = None
    top_tokens: list[_Token] | None = None
    generated_text: str | None = None
    details: _Details | None = None
    error: str | None = None
    error_type: str | None = None


class _IdIn(Struct):
    id: wire.Number
    text: str = ""
    start: wire.Count = 0
    stop: wire.Count = 0


_generation_decoder = msgspec.json.Decoder(_GenerationIn)
_ids = msgspec.json.Decoder(list[_IdIn])


def count(answer: bytes) -> TokenCount:
    """The number of tokens in an answer of `/tokenize`."""
    return TokenCount(len(_ids.decode(answer)))


def tokens_of(answer: bytes, op: Tokenize, max_context: int | None) -> Tokens:
    """The tokens in an answer of `/tokenize`, with their texts and spans if `op` asks for them."""
    found = _ids.decode(answer)
    texts = tuple([one.text for one in found]) if op.texts else None
    spans = tuple([(one.start, one.stop) for one in found]) if op.spans else None
    return Tokens(tuple([one.id for one in found]), texts, max_context, spans)


class _ChatReader(ChatReader):
    def chunk(self, data: bytes) -> Iterator[Event]:
        error = late_fault(data)
        if error is not None:
            raise error
        yield from super().chunk(data)


class TextReader(Reader):
    """Reads a reply of `/generate` or `/generate_stream`. `input` is the prompt's token count, if a header gave it."""

    def __init__(self, op: Generate) -> None:
        super().__init__(op)
        self.input: int | None = None
        self._op = op

    def chunk(self, data: bytes) -> Iterator[Event]:
        if self.over:
            return
        error = late_fault(data)
        if error is not None:
            raise error
        found = wire.decoded(data, _generation_decoder)
        details = found.details
        if found.token is not None:
            tokens, text = [found.token], "" if found.token.special else found.token.text
            tops = [found.top_tokens] if found.top_tokens else []
            if tops and len(tops[0]) > MOST_TOKENS:
                raise wire.malformed()  # they are looked at one by one
        elif found.generated_text is not None and details is not None:
            tokens, text, tops = details.tokens, found.generated_text, details.top_tokens
            # A whole reply may have more: a large one is read in a thread.
            if not self.buffered and len(tokens) + sum(map(len, tops)) > MOST_TOKENS:
                raise wire.malformed()
        else:
            raise wire.malformed()
        end_token = None
        if details is not None and details.finish_reason == "eos_token" and tokens and tokens[-1].special:
            # The model's end token has no text.
            tokens, end_token = tokens[:-1], tokens[-1].id if self._op.want_tokens else None
        if not self.started:
            self.started = True
            yield Start(clock.new_id("cmpl-"), "", int(clock.seconds()))
        parts = self.of(0)
        ids = tuple(token.id for token in tokens) if self._op.want_tokens else ()
        logprobs = _logprobs(tokens, tops) if self._op.logprobs is not None and tokens else None
        if text or ids or logprobs is not None:
            yield from self.text(0, parts, "text", text, ids, logprobs, details is not None)
        if details is None:
            return
        # The last event: there is no other terminal mark.
        yield from self.close(0, parts, details.finish_reason, None, None, end_token)
        prompt = details.input_length or self.input or len(details.prefill) or None
        yield UsageReport(Usage(prompt, details.generated_tokens))
        yield from self.finish()

    def finish(self) -> Iterator[Event]:
        if not self.over:
            yield from super().finish()


def _logprobs(tokens: list[_Token], tops: list[list[_Token]]) -> Raw:
    out = []
    for position, token in enumerate(tokens):
        top = tops[position] if position < len(tops) else []
        out.append({**_logprob(token), "top_logprobs": [_logprob(other) for other in top]})
    return Raw(encode(out))


def _logprob(token: _Token) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.text.encode())}


class StopSequenceTrimmer:
    """Reads a reply as TGI sends it, and corrects its events to what every dialect promises. Implements
    core.ports.StreamReader.

    It removes the matched stop sequence, which TGI leaves at the end of the text. So it holds back text that may be the
    beginning of a stop sequence.
    """

    def __init__(self, op: Generate) -> None:
        self._reader = _ChatReader(op) if isinstance(op, Chat) else TextReader(op)
        # TGI's pattern `STOP$` also matches before one newline at the end.
        self._stops = sorted(op.stop, key=len, reverse=True)
        self._heads = tuple(stop + "\n" for stop in self._stops)
        self._text_part: int | None = None
        self._held = ""
        self._waiting: list[Delta | PartEnd] = []

    @property
    def buffered_bytes(self) -> int:
        return self._reader.buffered_bytes

    def feed(self, block: bytes) -> Iterator[Event]:
        return self._trim(self._reader.feed(block))

    def eof(self) -> Iterator[Event]:
        return self._trim(self._reader.eof())

    def whole(self, body: bytes, input_tokens: int | None) -> Iterator[Event]:
        """Reads a buffered reply; `input_tokens` is the prompt's token count, if a header gave it."""
        if isinstance(self._reader, TextReader):
            self._reader.input = input_tokens
        return self._trim(self._reader.whole(body))

    def _trim(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            if isinstance(event, Delta):
                if self._stops and event.index == self._text_part:
                    yield from self._delta(event)
                else:
                    yield event
            elif isinstance(event, PartStart):
                self._text_part = event.index if event.kind == "text" else None
                yield event
            elif isinstance(event, PartEnd) and (self._held or self._waiting) and event.index == self._text_part:
                self._waiting.append(event)
            elif isinstance(event, Finish):
                yield from self._finish(event)
            else:
                if isinstance(event, (Failed, End)) and self._held and self._text_part is not None:
                    yield Delta(0, self._text_part, self._held)
                    self._held = ""
                yield event

    def _delta(self, event: Delta) -> Iterator[Event]:
        text = self._held + event.text
        if event.last:
            self._held, event.text = "", text
            self._waiting.append(event)
            return
        keep = max((_overlap(text, head) for head in self._heads), default=0)
        self._held, event.text = text[len(text) - keep :], text[: len(text) - keep]
        if event.text or event.tokens or event.logprobs is not None:
            yield event

    def _finish(self, event: Finish) -> Iterator[Event]:
        if self._waiting:
            if isinstance(self._waiting[0], PartEnd):
                self._waiting.insert(0, Delta(0, self._waiting[0].index, self._held, last=True))
            last = self._waiting[0]
            assert isinstance(last, Delta)
            stopped = event.raw == "stop_sequence"
            last.text, stop = self._cut(last.text, stopped)
            event.stop_sequence = stop if stopped else None
            if last.text or last.tokens or last.logprobs is not None:
                yield last
            yield from self._waiting[1:]
            self._waiting, self._held = [], ""
        yield event

    def _cut(self, text: str, stopped: bool) -> tuple[str, str | None]:
        for stop in self._stops:
            for ending in (stop, stop + "\n") if stopped else (stop,):
                if text.endswith(ending):
                    return text[: len(text) - len(ending)], stop
        return text, None


def _overlap(text: str, head: str) -> int:
    """The length of the longest suffix of `text` that is a prefix of `head`."""
    for length in range(min(len(text), len(head)), 0, -1):
        if text.endswith(head[:length]):
            return length
    return 0
