"""Backend for llama.cpp's server: chats over its OpenAI endpoint, text completions over its own `/completion`.

`/v1/completions` is not used: it has no token ids, counts one choice only, and passes over `echo` and `suffix` in
silence. Measured with xllamacpp 2026.10.11549; what was seen is in docs/backends/llamacpp.md.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.backends.openai import OpenAI
from gateway.backends.openai.requests import RISING, unsupported, unwritten
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, End, Event, Failed, Finish, PartEnd, PartStart, Reason, Start, UsageReport
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.messages import Chat, Complete, Embed, Generate, Op, Output, Sampling
from gateway.core.ports import Capabilities, Counting, StreamReader
from gateway.core.usage import Usage
from gateway.wire import sse
from gateway.wire.json import encode
from gateway.wire.openai import answers as wire
from gateway.wire.openai.defaults import ReplyDefaults

# Look-arounds, back-references and boundaries, where the backslash is not itself escaped.
_UNCOMPILABLE = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?<?[=!]|\\[1-9bBAzZaG])")
_UNICODE_CLASS = re.compile(r"\\[pP](?:\{\w+\}|\w)")
_TO_ESCAPE = re.compile(r"\\.|[/\n\r]", re.S)
_ESCAPED = {"/": "\\/", "\n": "\\n", "\r": "\\r"}
# Its seeds have 32 bits, of which the highest value means "draw one".
_SEEDS = 2**32 - 1
_REASONS: dict[str, Reason] = {"eos": "stop", "word": "stop", "limit": "length"}
# "Field 'n': Value must be between ...": its own names, and ours where they differ.
_FIELD = re.compile(r"^Field '(\w+)'")
_PARAMS = {"n_predict": "max_tokens", "n_probs": "logprobs", "repeat_penalty": "repetition_penalty"}


class LlamaCpp(OpenAI):
    """`llamacpp`."""

    name = "llamacpp"

    def wire_of(self, op: Op) -> str:
        return self.name if isinstance(op, Complete) else self.wire

    def write(self, op: Op, can: Capabilities) -> Request:
        if not isinstance(op, Complete):
            return super().write(op, can)
        body: dict[str, Any] = {"prompt": op.prompts[0] if len(op.prompts) == 1 else op.prompts}
        _refuse(op)
        _one_word(op.extra)
        body["n_predict"] = -1 if op.max_output is None else op.max_output
        if op.n != 1:
            body["n"] = op.n
        if op.stream:
            body["stream"] = True
        if op.want_tokens:
            body["return_tokens"] = True
        if op.logprobs is not None:
            body["n_probs"] = max(1, op.logprobs.top)
        if op.stop:
            body["stop"] = op.stop
        self.compose_sampling(body, op.sampling)
        if op.seeds:
            body["seed"] = _seed_of(op)
        if "seed" in body:
            # A prompt read from its cache is not computed bit for bit as a new one: the same seed must give the same.
            body["cache_prompt"] = False
        if op.output is not None:
            _constrain(body, op.output)
        body.update({name: raw for name, raw in op.extra.items() if name != "stream_options"})
        dropped = (*unwritten(op), *op.unnamed, *(("user",) if op.user is not None else ()))
        return Request("POST", "/completion", [JSON_TYPE], encode(body), dropped=dropped)

    def count(self, op: Complete, can: Capabilities) -> Counting:
        if op.min_total is not None:
            raise unsupported("min_total_tokens", self.name)
        (prompt,) = op.prompts
        # As /completion reads a text: with what the model puts before it.
        return self.counting(
            op, {"content": prompt, "add_special": True}, lambda said: len(_tokens.decode(said).tokens)
        )

    def adjust(self, body: dict[str, Any], op: Chat | Complete | Embed) -> None:
        """Without tools, nothing is said of them."""
        if not isinstance(op, Chat):
            return
        _one_word(body)
        _no_filters(body)
        if not op.tools:
            for name in ("tools", "tool_choice", "parallel_tool_calls"):
                body.pop(name, None)
        if not op.stream:
            body.pop("stream_options", None)

    def compose_sampling(self, body: dict[str, Any], sampling: Sampling) -> None:
        """Penalties count the whole context, not its last 64 tokens."""
        for name in (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "frequency_penalty",
            "presence_penalty",
            "ignore_eos",
        ):
            value = getattr(sampling, name)
            if value is not None:
                body[name] = value
        _no_filters(body)
        if sampling.repetition_penalty is not None:
            body["repeat_penalty"] = sampling.repetition_penalty
        if sampling.frequency_penalty or sampling.presence_penalty or sampling.repetition_penalty not in (None, 1):
            body["repeat_last_n"] = -1
        if sampling.seed is not None:
            body["seed"] = sampling.seed % _SEEDS
        bias: list[tuple[int, float | bool]] = list((sampling.logit_bias or {}).items())
        for sequence in sampling.bad_tokens:
            if len(sequence) != 1:
                raise unsupported("bad_tokens", self.name)
            bias.append((sequence[0], False))
        if bias:
            body["logit_bias"] = bias
        for name in ("min_tokens", "stop_tokens", "eos_tokens", "bad_words"):
            if getattr(sampling, name):
                raise unsupported(name, self.name)
        if sampling.no_repeat_ngram is not None and sampling.no_repeat_ngram > 1:
            raise unsupported("no_repeat_ngram", self.name)

    def read(self, response: Response, op: Generate) -> Iterator[Event]:
        if isinstance(op, Complete):
            return _Reader(op, self.defaults).whole(response.body)
        return super().read(response, op)

    def reader(self, op: Generate) -> StreamReader:
        return _Reader(op, self.defaults) if isinstance(op, Complete) else super().reader(op)

    def fault(self, response: Response) -> GatewayError:
        return _sharpened(super().fault(response))


def _sharpened(error: GatewayError) -> GatewayError:
    """The error with the parameter that its text names."""
    if error.kind is Kind.BAD_REQUEST and error.param is None:
        found = _FIELD.match(error.message)
        if found is not None:
            error.param = _PARAMS.get(found[1], found[1])
        elif "grammar" in error.message:
            error.param = "response_format"
    return error


# -- canonical to wire ----------------------------------------------------------------------------------------------


def _refuse(op: Complete) -> None:
    for name, asked in (
        ("num_beams", op.beams is not None),
        ("max_total_tokens", op.max_total is not None),
        ("min_total_tokens", op.min_total is not None),
        ("echo", op.echo),
        ("suffix", op.suffix is not None),
        # It would still give one token.
        ("max_tokens", op.max_output == 0),
    ):
        if asked:
            raise unsupported(name, LlamaCpp.name)


def _one_word(members: Mapping[str, Any]) -> None:
    """Its own words for what has a canonical one count before that: the request would not be the one that was read, and
    that limits have counted. Raises GatewayError(UNSUPPORTED)."""
    for own, name in (("n_predict", "max_tokens"), ("n_cmpl", "n")):
        if own in members:
            raise unsupported(own, LlamaCpp.name, f"use '{name}'")


def _no_filters(body: dict[str, Any]) -> None:
    """Who says how to sample gets that and no more: it would add top_k 40, top_p 0.95 and min_p 0.05 of its own accord.
    Who says nothing gets its defaults whole."""
    if "temperature" in body or "top_p" in body:
        for name, off in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)):
            body.setdefault(name, off)


def _seed_of(op: Complete) -> int:
    """The one seed it takes: choice i is drawn with seed + i. Raises GatewayError where that is not what was asked."""
    first = op.seeds[0] % _SEEDS
    if op.seeds != tuple(range(op.seeds[0], op.seeds[0] + len(op.seeds))):
        raise unsupported("seed", LlamaCpp.name, RISING)
    if first + len(op.seeds) > _SEEDS:
        raise unsupported("seed", LlamaCpp.name, f"its seeds end at {_SEEDS - 1}")
    return first


def _constrain(body: dict[str, Any], output: Output) -> None:
    if output.kind == "json":
        body["json_schema"] = {"type": "object"}
    elif output.kind == "schema":
        body["json_schema"] = output.schema if output.schema is not None else {}
    elif output.kind == "grammar":
        body["grammar"] = output.pattern
    elif output.kind == "choice":
        # GBNF's literals are JSON strings.
        body["grammar"] = "root ::= " + " | ".join(encode(choice).decode() for choice in output.choices)
    elif output.kind == "regex":
        body["grammar"] = f"%llguidance {{}}\nstart: /{_checked(output.pattern or '')}/"


def _checked(pattern: str) -> str:
    """`pattern` for a place between slashes. Raises GatewayError for what llguidance cannot compile: it would generate
    without any constraint, and say nothing."""
    if _UNCOMPILABLE.search(pattern):
        raise unsupported("response_format", LlamaCpp.name)
    with warnings.catch_warnings(action="ignore"):
        try:
            # Python's syntax is near enough to Rust's to find what is malformed; of Unicode classes it knows none.
            re.compile(_UNICODE_CLASS.sub("x", pattern))
        except (re.error, RecursionError, OverflowError):
            raise GatewayError(
                Kind.BAD_REQUEST, "the regular expression is malformed", param="response_format", code="invalid_value"
            ) from None
    return _TO_ESCAPE.sub(lambda found: _ESCAPED.get(found[0], found[0]), pattern)


# -- wire to canonical ----------------------------------------------------------------------------------------------


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


class _TokensIn(Struct):
    tokens: list[int]


_tokens = msgspec.json.Decoder(_TokensIn)
_chunk = msgspec.json.Decoder(_ChunkIn)
_chunks = msgspec.json.Decoder(_ChunkIn | list[_ChunkIn])


class _Open(Struct):
    """A choice under way. Ids whose text has not come yet wait, in all `waiting` bytes of frames: the last of them may
    be the model's own end."""

    waiting: int = 0
    tokens: list[int] = []
    probs: list[_ProbIn] = []
    texts: list[str] = []


class _Reader:
    """One reply of `/completion`. There is no `[DONE]`: each choice ends with an event that says `"stop": true`.

    Choice i of prompt p has index p * n + i, and its counts are its own.
    """

    def __init__(self, op: Complete, defaults: ReplyDefaults) -> None:
        self._op = op
        self._defaults = defaults
        self._choices = op.n * len(op.prompts)
        self._json = op.output is not None and op.output.kind in ("json", "schema")
        self._frames = sse.Reader()
        self.buffered_bytes = 0
        self._over = False
        self._open: dict[int, _Open] = {}
        self._finished: set[int] = set()
        self._input = self._output = self._cached = 0

    def feed(self, block: bytes) -> Iterator[Event]:
        try:
            for frame in self._frames.feed(block):
                if not self._over:
                    yield from self._read(_decoded(_chunk, frame.data), len(frame.data))
        except GatewayError as error:
            yield self._fail(error)

    def eof(self) -> Iterator[Event]:
        if not self._over:
            yield self._fail(wire.truncated())

    def whole(self, body: bytes) -> Iterator[Event]:
        """A buffered reply: an object, or an array of them for several choices."""
        try:
            found = _decoded(_chunks, body)
            chunks = found if isinstance(found, list) else [found]
            if len(chunks) > self._choices:
                raise wire.malformed()
            for chunk in chunks:
                if not chunk.stop and chunk.error is None:
                    raise wire.malformed()
                yield from self._read(chunk, 0)
        except GatewayError as error:
            yield self._fail(error)
        if not self._over:
            yield self._fail(wire.malformed())

    def _fail(self, error: GatewayError) -> Failed:
        self._over = True
        return Failed(error)

    def _read(self, found: _ChunkIn, size: int) -> Iterator[Event]:
        """`size` is that of the frame in bytes."""
        if found.error is not None:
            raise _sharpened(wire.late_fault(found.error))
        index = found.index
        if index in self._finished:
            if found.content:
                raise wire.malformed()  # what comes after a choice's end would be lost
            return
        choice = self._open.get(index)
        if choice is None:
            if not self._open and not self._finished:
                defaults = self._defaults
                yield Start(defaults.new_id("cmpl-"), self._op.model or "", int(defaults.now()))
            elif len(self._open) + len(self._finished) == self._choices:
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
        if self._json and found.stop_type == "eos":
            _check_json("".join(choice.texts))
        index = found.index
        tokens = [*choice.tokens, *found.tokens]
        probs = [*choice.probs, *found.completion_probabilities]
        if found.stop_type == "eos":
            probs = probs[: len(tokens) - 1] if tokens and len(probs) >= len(tokens) else probs
            tokens = tokens[:-1]
        elif found.stop_type not in _REASONS:
            raise wire.aborted(found.stop_type)
        if found.content or tokens or probs:
            yield Delta(index, 0, found.content, tuple(tokens), self._logprobs(probs), True)
        yield PartEnd(index, 0)
        yield Finish(index, _REASONS[found.stop_type], found.stop_type, found.stopping_word or None)
        del self._open[index]
        self._finished.add(index)
        self._output += found.tokens_predicted
        if index % self._op.n == 0:
            self._input += found.tokens_evaluated
            self._cached += (found.timings.cache_n if found.timings is not None else None) or 0
        if len(self._finished) == self._choices:
            self._over = True
            yield UsageReport(Usage(self._input, self._output, self._cached))
            yield End()

    def _logprobs(self, probs: list[_ProbIn]) -> Raw | None:
        if not probs or self._op.logprobs is None:
            return None
        if not self._op.logprobs.top:
            probs = [msgspec.structs.replace(prob, top_logprobs=[]) for prob in probs]
        return Raw(encode(probs))


def _check_json(text: str) -> None:
    """A schema that it cannot compile is passed over in silence: a finished reply that is no JSON tells."""
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        raise unsupported("response_format", LlamaCpp.name) from None


def _decoded(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise wire.malformed() from None
