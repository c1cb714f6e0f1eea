"""Backend for text-generation-inference: `/generate` and `/generate_stream` for texts, its chat endpoint for chats.

Sources: TGI 3.3 (router/src/lib.rs, validation.rs, server.rs, chat.rs; server utils/tokens.py) and its client,
text-generation 0.7.0. What it cannot do and what is mended on the way: docs/backends/tgi.md.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.backends.openai import OpenAI
from gateway.backends.openai.replies import ChatReader, Reader
from gateway.backends.openai.requests import put, unsupported, unwritten, write_message
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, End, Event, Failed, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.lifecycle import Embeddings
from gateway.core.messages import (
    Audio,
    Chat,
    Complete,
    Embed,
    Extra,
    Generate,
    Message,
    Op,
    Opaque,
    Output,
    Sampling,
    ToolCall,
)
from gateway.core.ports import Capabilities, Counting, StreamReader
from gateway.core.usage import Usage
from gateway.wire import openai as wire
from gateway.wire.json import encode
from gateway.wire.openai_requests import CHAT_MEMBERS, TEXT_MEMBERS

# TGI's own default of --max-stop-sequences.
MAX_STOPS = 4
# To TGI a chat's `model` is the id of a LoRA adapter, unless it is this word.
_NO_ADAPTER = "tgi"
_NO_PARAMETERS = Raw(b'{"type":"object","properties":{}}')

# -- members of OpenAI's and vLLM's wire without a canonical place --------------------------------------------------

# Those that change what is generated or answered, which TGI would ignore without a word; values that change nothing.
_ENGINE: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_reasoning": (True, False),  # there is none
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "prompt_logprobs": (),
    "skip_special_tokens": (True,),
    "structured_outputs": (),
    "truncate_prompt_tokens": (-1,),
    "use_beam_search": (False,),
}
# Parameters of /generate that only clients who know TGI send.
_OWN = frozenset({"adapter_id", "truncate", "typical_p", "watermark"})


class Tgi(OpenAI):
    name = "tgi"
    # Its chat endpoint resembles OpenAI's wire, yet no stream of it is fit for a client as it is: see the page.
    wire = "tgi"

    def write(self, op: Op, can: Capabilities) -> Request:
        assert isinstance(op, (Chat, Complete, Embed))
        if isinstance(op, Embed):
            raise GatewayError(Kind.UNSUPPORTED, "a tgi worker makes no embeddings")
        rest = _rest(op)
        self._refuse(op, rest)
        dropped = tuple(_left_out(op))
        if isinstance(op, Chat):
            return Request("POST", self.paths[Chat], [JSON_TYPE], encode(self._chat(op, can, rest)), dropped=dropped)
        path = "/generate_stream" if op.stream else "/generate"
        return Request("POST", path, [JSON_TYPE], encode(self._text(op, rest)), dropped=dropped)

    def _refuse(self, op: Chat | Complete, rest: Extra) -> None:
        """What neither of its endpoints can do."""
        sampling = op.sampling
        if op.n > 1:
            raise unsupported("n", self.name)
        if len(op.stop) > MAX_STOPS:
            raise unsupported("stop", self.name)
        if sampling.seed is not None and sampling.seed < 0:
            raise unsupported("seed", self.name)
        neutral = {"presence_penalty": (0,), "min_p": (0,), "min_tokens": (0,), "no_repeat_ngram": (0, 1)}
        for name, values in neutral.items():
            value = getattr(sampling, name)
            if value is not None and value not in values:
                raise unsupported(name, self.name)
        for name in ("logit_bias", "stop_tokens", "eos_tokens", "bad_words", "bad_tokens", "ignore_eos"):
            if getattr(sampling, name):
                raise unsupported(name, self.name)
        for name, values in _ENGINE.items():
            if name in rest and msgspec.json.decode(rest[name]) not in values:
                raise unsupported(name, self.name)

    # -- chats ------------------------------------------------------------------------------------------------------

    def _chat(self, op: Chat, can: Capabilities, rest: Extra) -> dict[str, Any]:
        if op.reasoning is not None:
            raise unsupported("reasoning_effort", self.name)
        if op.want_tokens:
            raise unsupported("tokens", self.name)
        for index, message in enumerate(op.messages):
            for position, part in enumerate(message.parts):
                if isinstance(part, (Audio, Opaque)):
                    raise unsupported(f"messages.{index}.content.{position}", self.name)
        body = self.compose(msgspec.structs.replace(op, extra={}), can)
        body["messages"] = [written for message in op.messages for written in _write_message(message)]
        body["model"] = _NO_ADAPTER
        for tool in body.get("tools", ()):
            tool["function"].setdefault("parameters", _NO_PARAMETERS)
        if not op.tools:
            body.pop("tool_choice", None)
        body.pop("parallel_tool_calls", None)  # its grammar of tools makes one call at most
        if op.stream:
            body["stream"] = True
            body["stream_options"] = self.stream_options(op)
        for name, raw in rest.items():
            body.setdefault(name, raw)
        return body

    def compose_sampling(self, body: dict[str, Any], sampling: Sampling) -> None:
        """`presence_penalty` never goes there: TGI makes a repetition penalty of it, 2 where it is 0."""
        if sampling.repetition_penalty not in (None, 1):
            raise unsupported("repetition_penalty", self.name)
        if _greedy(sampling):
            body["temperature"] = 0.0
        else:
            if sampling.top_k is not None and sampling.top_k > 0:
                raise unsupported("top_k", self.name)
            put(body, temperature=sampling.temperature, top_p=_below_one(sampling.top_p))
        put(body, seed=sampling.seed, frequency_penalty=sampling.frequency_penalty or None)

    def compose_output(self, body: dict[str, Any], output: Output) -> None:
        grammar = _grammar(output)
        if grammar is not None:
            body["response_format"] = grammar

    # -- texts ------------------------------------------------------------------------------------------------------

    def count(self, op: Complete, can: Capabilities) -> Counting:
        """`/tokenize` reads the same body as `/generate`, what it truncates included."""
        if op.min_total is not None:
            raise unsupported("min_total_tokens", self.name)
        body = self._text(msgspec.structs.replace(op, max_total=None), _rest(op))
        return self.counting(op, body, lambda said: len(_ids.decode(said)))

    def _text(self, op: Complete, rest: Extra) -> dict[str, Any]:
        prompt, sampling = op.prompts[0], op.sampling
        if len(op.prompts) != 1 or not isinstance(prompt, str):
            raise unsupported("prompt", self.name)
        for name, value in (
            ("num_beams", op.beams),
            ("max_total_tokens", op.max_total),
            ("min_total_tokens", op.min_total),
            ("suffix", op.suffix),
            ("echo", op.echo or None),
        ):
            if value is not None:
                raise unsupported(name, self.name)
        seed = op.seeds[0] if op.seeds else sampling.seed
        if seed is not None and seed < 0:
            raise unsupported("seed", self.name)
        parameters: dict[str, Any] = {"details": True, "do_sample": not _greedy(sampling)}
        if parameters["do_sample"]:
            top_k = sampling.top_k if sampling.top_k is not None and sampling.top_k > 0 else None
            put(parameters, temperature=sampling.temperature, top_k=top_k, top_p=_below_one(sampling.top_p))
        put(
            parameters,
            max_new_tokens=op.max_output,
            stop=op.stop or None,
            seed=seed,
            frequency_penalty=sampling.frequency_penalty or None,
            repetition_penalty=sampling.repetition_penalty if sampling.repetition_penalty != 1 else None,
            top_n_tokens=op.logprobs.top or None if op.logprobs is not None else None,
            grammar=_grammar(op.output) if op.output is not None else None,
        )
        body: dict[str, Any] = {"inputs": prompt, "parameters": parameters}
        for name, raw in rest.items():
            (parameters if name in _OWN else body).setdefault(name, raw)
        return body

    # -- replies ----------------------------------------------------------------------------------------------------

    def read(self, response: Response, op: Generate) -> Iterator[Event]:
        reader = _reader(op)
        if isinstance(reader, _TextReader):
            counted = response.header(b"x-prompt-tokens")
            reader.input = int(counted) if counted is not None and counted.isdigit() else None
        return _Mended(op).mend(reader.whole(response.body))

    def reader(self, op: Generate) -> StreamReader:
        return _Stream(op)

    def read_embeddings(self, response: Response, op: Embed) -> Embeddings:
        raise wire.malformed()

    def fault(self, response: Response) -> GatewayError:
        try:
            found = _fault_decoder.decode(response.body)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return wire.classify(response.status, None, None)
        return _fault(response.status, found)


# -- requests -------------------------------------------------------------------------------------------------------


def _rest(op: Chat | Complete) -> Extra:
    """The client's top-level members that the canonical form does not hold."""
    known = CHAT_MEMBERS if isinstance(op, Chat) else TEXT_MEMBERS
    given = {**(op.raw or {}), **op.extra}
    return {name: raw for name, raw in given.items() if name not in known}


def _left_out(op: Chat | Complete) -> Iterator[str]:
    """The names of what is neither sent nor refused."""
    yield from unwritten(op)
    if isinstance(op, Complete):
        yield from op.unnamed
        if op.user is not None:
            yield "user"
        return
    yield from (name for name in op.unnamed if "." not in name or name.startswith("response_format."))
    if op.parallel_tools:
        yield "parallel_tool_calls"


def _greedy(sampling: Sampling) -> bool:
    return sampling.temperature == 0 or sampling.top_p == 0


def _below_one(top_p: float | None) -> float | None:
    """TGI takes top_p between 0 and 1, both excluded; 1 is its absence."""
    return top_p if top_p is not None and top_p < 1 else None


def _grammar(output: Output) -> dict[str, Any] | None:
    if output.kind == "text":
        return None
    if output.kind == "schema" and output.schema is not None:
        return {"type": "json", "value": output.schema}
    if output.kind == "regex":
        return {"type": "regex", "value": output.pattern}
    if output.kind == "choice":
        return {"type": "regex", "value": "(" + "|".join(re.escape(choice) for choice in output.choices) + ")"}
    # It compiles schemas with properties; JSON of any form is none.
    raise unsupported("response_format", Tgi.name)


def _write_message(message: Message) -> Iterator[dict[str, Any]]:
    """TGI reads a message's `content` or else its `tool_calls`: a message with both becomes two."""
    calls = tuple(part for part in message.parts if isinstance(part, ToolCall))
    others = tuple(part for part in message.parts if not isinstance(part, ToolCall))
    extra = message.extra
    for parts in (others, calls) if others and calls else (message.parts,):
        written = write_message(msgspec.structs.replace(message, parts=parts, extra=extra))
        extra = None
        if written["content"] is None and "tool_calls" in written:
            del written["content"]
        yield written


# -- replies --------------------------------------------------------------------------------------------------------


class _Token(Struct):
    id: int
    text: str
    logprob: float | None = None
    special: bool = False


class _Details(Struct):
    finish_reason: str
    generated_tokens: int | None = None
    input_length: int | None = None
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
    id: int


class _ApiErrorIn(Struct):
    message: str | None = None
    http_status_code: int | None = None


class _FaultIn(Struct):
    error: _ApiErrorIn | str | None = None
    error_type: str | None = None


_generation_decoder = msgspec.json.Decoder(_GenerationIn)
_ids = msgspec.json.Decoder(list[_IdIn])
_fault_decoder = msgspec.json.Decoder(_FaultIn)

# error_type -> the status that TGI gives it. Its chat streams say 422 of every error: there the words must do.
_TYPES = {"generation": 424, "overloaded": 429, "validation": 422, "template_error": 422, "tool_error": 422}
_TYPES |= {"missing_template_variable": 422, "incomplete_generation": 500, "incomplete_generation_stream": 500}
_TYPES |= {"stream_serialization_error": 500, "healthcheck": 503}
_WORDS = (
    ("Request failed during generation", "generation"),
    ("Model is overloaded", "overloaded"),
    ("Incomplete generation", "incomplete_generation"),
)
_CONTEXT = ("`inputs` tokens + `max_new_tokens` must be", "`inputs` must have less than")
# TGI's names in its messages, as the wire of OpenAI has them.
_NAMES = {"max_new_tokens": "max_tokens", "stop": "stop", "top_n_tokens": "logprobs", "grammar": "response_format"}


def _fault(status: int, found: _FaultIn) -> GatewayError:
    """`status` is the HTTP status, or what stands for it where the error came inside a 200."""
    if isinstance(found.error, _ApiErrorIn):
        message = found.error.message or ""
        kind = next((type_ for words, type_ in _WORDS if message.startswith(words)), None)
        status = _TYPES[kind] if kind is not None else found.error.http_status_code or status
    else:
        message = found.error or ""
        status = _TYPES.get(found.error_type or "", status)
    if status == 424:
        return GatewayError(Kind.UPSTREAM, "the worker failed during generation", upstream=status)
    message = message.removeprefix("Input validation error: ")
    if status == 422 and any(words in message for words in _CONTEXT):
        return GatewayError(Kind.CONTEXT_LENGTH, message, upstream=status)
    named = re.match(r"`(\w+)`", message)
    param = _NAMES.get(named[1], named[1] if named[1] in TEXT_MEMBERS else None) if named is not None else None
    return wire.classify(status, message or None, param)


def _late_fault(data: bytes) -> GatewayError | None:
    """The error that an event is, if it is one."""
    if b'"error"' not in data:
        return None
    try:
        found = _fault_decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return _fault(500, found) if found.error is not None else None


def _reader(op: Generate) -> Reader:
    return _TgiChatReader(op) if isinstance(op, Chat) else _TextReader(op)


class _TgiChatReader(ChatReader):
    def chunk(self, data: bytes) -> Iterator[Event]:
        error = _late_fault(data)
        if error is not None:
            raise error
        yield from super().chunk(data)


class _TextReader(Reader):
    """`input` is the number of prompt tokens where a header told it."""

    def __init__(self, op: Generate) -> None:
        super().__init__(op)
        self.input: int | None = None
        self._op = op

    def chunk(self, data: bytes) -> Iterator[Event]:
        if self.over:
            return
        error = _late_fault(data)
        if error is not None:
            raise error
        try:
            found = _generation_decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise wire.malformed() from None
        details = found.details
        if found.token is not None:
            tokens, text = [found.token], "" if found.token.special else found.token.text
            tops = [found.top_tokens] if found.top_tokens else []
        elif found.generated_text is not None and details is not None:
            tokens, text, tops = details.tokens, found.generated_text, details.top_tokens
        else:
            raise wire.malformed()
        if details is not None and details.finish_reason == "eos_token" and tokens and tokens[-1].special:
            tokens = tokens[:-1]  # the model's own end: no text stands for it
        if not self.started:
            self.started = True
            yield Start(f"cmpl-{secrets.token_hex(12)}", "", int(time.time()))
        parts = self.of(0)
        ids = tuple(token.id for token in tokens) if self._op.want_tokens else ()
        logprobs = _logprobs(tokens, tops) if self._op.logprobs is not None and tokens else None
        if text or ids or logprobs is not None:
            yield from self.text(0, parts, "text", text, ids, logprobs, details is not None)
        if details is None:
            return
        # The last event: there is no other terminal mark.
        yield from self.close(0, parts, details.finish_reason, None)
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


class _Stream:
    """Implements core.ports.StreamReader."""

    def __init__(self, op: Generate) -> None:
        self._reader = _reader(op)
        self._mended = _Mended(op)

    @property
    def held(self) -> int:
        return self._reader.held

    def feed(self, block: bytes) -> Iterator[Event]:
        return self._mended.mend(self._reader.feed(block))

    def eof(self) -> Iterator[Event]:
        return self._mended.mend(self._reader.eof())


class _Mended:
    """What every dialect promises and TGI does not do.

    The matched stop sequence is no part of the text: TGI leaves it at the end, so text that may be the beginning of one
    is held back. A reply has an id. A reply that calls a tool ends for that reason.
    """

    def __init__(self, op: Generate) -> None:
        self._chat = isinstance(op, Chat)
        # Its pattern `STOP$` also matches before one newline at the end.
        self._stops = sorted(op.stop, key=len, reverse=True)
        self._heads = tuple(stop + "\n" for stop in self._stops)
        self._text_part: int | None = None
        self._held = ""
        self._waiting: list[Delta | PartEnd] = []
        self._called = False

    def mend(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            if isinstance(event, Delta):
                if self._stops and event.index == self._text_part:
                    yield from self._delta(event)
                else:
                    yield event
            elif isinstance(event, PartStart):
                self._called = self._called or event.kind == "tool"
                self._text_part = event.index if event.kind == "text" else None
                yield event
            elif isinstance(event, PartEnd) and (self._held or self._waiting) and event.index == self._text_part:
                self._waiting.append(event)
            elif isinstance(event, Finish):
                yield from self._finish(event)
            else:
                if isinstance(event, Start) and not event.id:
                    event.id = f"{'chatcmpl' if self._chat else 'cmpl'}-{secrets.token_hex(12)}"
                elif isinstance(event, (Failed, End)) and self._held and self._text_part is not None:
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
        if self._called and event.reason == "stop":
            event.reason = "tool_calls"
        yield event

    def _cut(self, text: str, stopped: bool) -> tuple[str, str | None]:
        for stop in self._stops:
            for ending in (stop, stop + "\n") if stopped else (stop,):
                if text.endswith(ending):
                    return text[: len(text) - len(ending)], stop
        return text, None


def _overlap(text: str, head: str) -> int:
    """The length of the longest end of `text` that is a beginning of `head`."""
    for length in range(min(len(text), len(head)), 0, -1):
        if text.endswith(head[:length]):
            return length
    return 0
