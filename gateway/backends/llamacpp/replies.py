"""llama.cpp's replies as canonical events."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from gateway.backends.llamacpp.requests import NAME
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, End, Event, Finish, PartEnd, PartStart, Reason, Start, UsageReport
from gateway.core.lifecycle import TokenCount, Tokens
from gateway.core.messages import Chat, Complete, Tokenize
from gateway.core.usage import Usage
from gateway.wire import clock
from gateway.wire.json import encode, valid
from gateway.wire.openai.replies import views as wire
from gateway.wire.openai.replies.excess import MOST_TOKENS, refuse_longer
from gateway.wire.openai.replies.reading import ChatReader
from gateway.wire.openai.requests.unsupported import unsupported
from gateway.wire.openai.streams.reading import Reader
from gateway.wire.openai.tokens import whole_tokens, with_spans

_REASONS: dict[str, Reason] = {"eos": "stop", "word": "stop", "limit": "length"}


class VerboseReader(ChatReader):
    """A chat with several choices, or with stop phrases. Each choice has its own usage chunk, and each of these counts
    the prompt again. The chunk that ends a choice names the phrase that was met, if the client asked for it."""

    def chunk(self, data: bytes) -> Iterator[Event]:
        verbose = wire.decoded(data, _verbose).verbose if b'"__verbose"' in data else None
        # A chat template may have phrases of its own, which no client asked for.
        word = verbose.stopping_word if verbose is not None and verbose.stopping_word in self.stop else None
        for event in super().chunk(data):
            if word is not None and isinstance(event, Finish):
                event = replace(event, stop_sequence=word)
            yield event

    def __init__(self, op: Chat) -> None:
        super().__init__(op)
        self.stop = op.stop

    def counted(self, newest: Usage) -> Usage:
        before = self.usage
        if before is None or self.most == 1:
            return newest
        return replace(
            newest,
            input=max(before.input or 0, newest.input or 0),
            output=(before.output or 0) + (newest.output or 0),
            # Cached tokens come from the first choice only: the others find in the cache what the first one computed.
            cached=before.cached,
        )


def token_count(answer: bytes) -> TokenCount:
    """The number of tokens in an answer of `/tokenize`. Raises msgspec's errors for anything else."""
    return TokenCount(len(_tokens.decode(answer).tokens))


def input_tokens(answer: bytes) -> TokenCount:
    """The same in an answer of `/v1/chat/completions/input_tokens`."""
    return TokenCount(_input.decode(answer).input_tokens)


class _PieceIn(Struct):
    """A token and its text, as bytes if it is not valid text."""

    id: wire.Count
    piece: str | list[wire.Index]


class _PiecesIn(Struct):
    tokens: list[wire.Count | _PieceIn]


_pieces = msgspec.json.Decoder(_PiecesIn)


def tokens_of(answer: bytes, op: Tokenize, max_context: int | None) -> Tokens:
    """The tokens in an answer of `/tokenize`, with their texts if it has them. Raises msgspec's errors, or ValueError,
    for anything else."""
    found = _pieces.decode(answer).tokens
    ids = tuple(one if isinstance(one, int) else one.id for one in found)
    pieces = [_bytes_of(one.piece) for one in found if isinstance(one, _PieceIn)]
    texts = tuple([piece.decode(errors="replace") for piece in pieces])
    return with_spans(whole_tokens(ids, texts or None, max_context), op, NAME, pieces)


def _bytes_of(piece: str | list[int]) -> bytes:
    return piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else bytes(piece)


class _TopIn(Struct):
    token: str
    logprob: float | None
    bytes: list[wire.Index] | None = None


class _ProbIn(_TopIn):
    top_logprobs: list[_TopIn] = []


class _TimingsIn(Struct):
    cache_n: wire.Count | None = None


class _ChunkIn(Struct):
    """One token's event, the last event of a choice (`stop` is true), or a whole choice."""

    content: str = ""
    index: wire.Index = 0
    stop: bool = False
    tokens: list[wire.Number] = []
    completion_probabilities: list[_ProbIn] = []
    stop_type: str = "none"
    stopping_word: str = ""
    tokens_predicted: wire.Count = 0
    tokens_evaluated: wire.Count = 0
    timings: _TimingsIn | None = None
    error: wire.ErrorIn | str | None = None


class _VerboseIn(Struct):
    stopping_word: str = ""


class _WithVerboseIn(Struct):
    """A chunk of a chat, with what llama.cpp adds to OpenAI's wire."""

    verbose: _VerboseIn | None = field(default=None, name="__verbose")


class _TokensIn(Struct):
    tokens: list[wire.Number]


class _InputIn(Struct):
    input_tokens: wire.Count


_tokens = msgspec.json.Decoder(_TokensIn)
_input = msgspec.json.Decoder(_InputIn)
_verbose = msgspec.json.Decoder(_WithVerboseIn)
_chunk = msgspec.json.Decoder(_ChunkIn)
_chunks = msgspec.json.Decoder(_ChunkIn | list[_ChunkIn])


class _Open(Struct):
    """A choice in progress. Token ids wait here until their text arrives: the last one may be the model's end token,
    which has no text. `waiting` is the size of their frames, in bytes."""

    waiting: int = 0
    tokens: list[int] = []
    probs: list[_ProbIn] = []
    texts: list[str] = []


class TextReader(Reader):
    """One reply of `/completion`. There is no `[DONE]`: each choice ends with an event that has `"stop": true`.

    Choice i of prompt p has index p * n + i. Token counts are per choice.
    """

    def __init__(self, op: Complete) -> None:
        super().__init__(op)
        self._op = op
        self._json = op.output is not None and op.output.kind in ("json", "schema")
        self._open: dict[int, _Open] = {}
        self._finished: set[int] = set()
        self._input = self._output = self._cached = 0

    def chunk(self, data: bytes) -> Iterator[Event]:
        # llama.cpp writes `null` after the end of an empty prompt beside others.
        if not self.over and data != b"null":
            found = wire.decoded(data, _chunk)
            if len(found.completion_probabilities) > MOST_TOKENS:
                raise wire.malformed()  # they are looked at one by one
            yield from self._read(found, len(data))

    def whole(self, body: bytes) -> Iterator[Event]:
        """A buffered reply: an object, or an array of them for several choices."""
        try:
            refuse_longer(body, self.most)
            found = wire.decoded(body, _chunks)
            chunks = found if isinstance(found, list) else [found]
            if len(chunks) > self.most:
                raise wire.malformed()
            for chunk in chunks:
                if not chunk.stop and chunk.error is None:
                    raise wire.malformed()
                yield from self._read(chunk, 0)
        except GatewayError as error:
            yield self.fail(error)
        if not self.over:
            yield self.fail(wire.malformed())

    def _read(self, found: _ChunkIn, size: int) -> Iterator[Event]:
        """The events of one object. `size` is the size of its frame in bytes."""
        if found.error is not None:
            raise named(wire.late_fault(found.error))
        index = found.index
        if index in self._finished:
            if found.content:
                raise wire.malformed()  # content after a choice's end would be lost
            return
        choice = self._open.get(index)
        if choice is None:
            if not self._open and not self._finished:
                yield Start(clock.new_id("cmpl-"), self._op.model or "", int(clock.seconds()))
            elif len(self._open) + len(self._finished) == self.most:
                raise wire.malformed()
            choice = self._open[index] = _Open()
            self.buffered_bytes += size
            yield PartStart(index, 0, "text")
        if self._json:
            choice.texts.append(found.content)
            self.buffered_bytes += size
        if found.stop:
            yield from self._finish(found, choice)
        elif found.content and not choice.tokens:
            probs = found.completion_probabilities
            yield Delta(index, 0, found.content, tuple(found.tokens), self._logprobs(probs) if probs else None)
        else:
            choice.tokens += found.tokens
            choice.probs += found.completion_probabilities
            choice.waiting += size
            self.buffered_bytes += size
            if found.content:
                yield Delta(index, 0, found.content, tuple(choice.tokens), self._logprobs(choice.probs))
                self.buffered_bytes -= choice.waiting
                choice.tokens, choice.probs, choice.waiting = [], [], 0

    def _finish(self, found: _ChunkIn, choice: _Open) -> Iterator[Event]:
        # It silently ignores a schema that it cannot compile. A finished reply that is not JSON shows that.
        if self._json and found.stop_type == "eos" and not valid("".join(choice.texts)):
            raise unsupported("response_format", NAME)
        index = found.index
        tokens = [*choice.tokens, *found.tokens]
        probs = [*choice.probs, *found.completion_probabilities]
        end_token: int | None = None
        if found.stop_type == "eos":
            end_token = tokens[-1] if tokens else None
            probs = probs[: len(tokens) - 1] if tokens and len(probs) >= len(tokens) else probs
            tokens = tokens[:-1]
        elif found.stop_type == "none" and not self._op.prompts[index // self._op.n]:
            found.stop_type = "eos"  # an empty prompt is not read, and has no reply
        elif found.stop_type not in _REASONS:
            raise wire.aborted(found.stop_type)
        if found.content or tokens or probs:
            yield Delta(index, 0, found.content, tuple(tokens), self._logprobs(probs), True)
        yield PartEnd(index, 0)
        stop = found.stopping_word or None
        yield Finish(index, _REASONS[found.stop_type], found.stop_type, stop, end_token=end_token)
        del self._open[index]
        self._finished.add(index)
        self._output += found.tokens_predicted
        if index % self._op.n == 0:
            self._input += found.tokens_evaluated
            self._cached += (found.timings.cache_n if found.timings is not None else None) or 0
        if len(self._finished) == self.most:
            self.over = True
            yield UsageReport(Usage(self._input, self._output, self._cached))
            yield End()

    def _logprobs(self, probs: list[_ProbIn]) -> Raw | None:
        if not probs or self._op.logprobs is None:
            return None
        if not self._op.logprobs.top:
            probs = [replace(prob, top_logprobs=[]) for prob in probs]
        return Raw(encode(probs))


# "Field 'n': Value must be between ...". llama.cpp's names are mapped to canonical ones if they differ.
_FIELD = re.compile(r"^Field '(\w+)'")
_PARAMS = {"n_predict": "max_tokens", "n_probs": "logprobs", "repeat_penalty": "repetition_penalty"}


def named(error: GatewayError) -> GatewayError:
    """`error` with the parameter that its message names, if it names one."""
    if error.kind is Kind.BAD_REQUEST and error.param is None:
        found = _FIELD.match(error.message)
        if found is not None:
            error.param = _PARAMS.get(found[1], found[1])
        elif "grammar" in error.message:
            error.param = "response_format"
    return error
