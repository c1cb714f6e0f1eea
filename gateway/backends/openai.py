"""Backend for any server of OpenAI's wire: chat, text completions, embeddings.

One mapping from choices to events serves the streamed and the buffered reply. Engine quirks live in subclasses.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Raw

from gateway.core.errors import GatewayError, Kind
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
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.lifecycle import Embeddings
from gateway.core.messages import (
    Audio,
    Chat,
    Complete,
    Embed,
    Extra,
    Generate,
    Image,
    Message,
    NamedTool,
    Nested,
    Op,
    Opaque,
    Output,
    Refusal,
    Sampling,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
)
from gateway.core.ports import Capabilities, Counting, StreamReader
from gateway.wire import openai as wire
from gateway.wire import sse
from gateway.wire.json import encode
from gateway.wire.stencil import TRIES, Stencil, cut, text_of


class OpenAI:
    """`openai`: remote endpoints and servers without quirks of their own."""

    name = "openai"
    wire = "openai"
    paths = {Chat: "/v1/chat/completions", Complete: "/v1/completions", Embed: "/v1/embeddings"}

    def wire_of(self, op: Op) -> str:
        return self.wire

    def write(self, op: Op, can: Capabilities) -> Request:
        """The worker's request: the client's own members where it speaks this wire, else made from the canonical form.

        Raises GatewayError(UNSUPPORTED) naming a parameter that this wire cannot carry.
        """
        assert isinstance(op, (Chat, Complete, Embed))
        dropped: tuple[str, ...] = ()
        if op.raw is not None and op.wire == self.wire:
            body: dict[str, Any] = dict(op.raw)
        else:
            body = self.compose(op, can)
            if not isinstance(op, Embed):
                dropped = top_level(op.unnamed)
        body["model"] = can.upstream_model
        if op.stream:
            body["stream"] = True
            body["stream_options"] = self.stream_options(op)
        self.adjust(body, op)
        return Request("POST", self.paths[type(op)], [JSON_TYPE], encode(body), dropped=dropped)

    def stream_options(self, op: Chat | Complete | Embed) -> dict[str, Any]:
        """Usage is always asked for: limits and records need it. What the client did not ask for is stripped later."""
        given = (op.raw if op.raw is not None else op.extra).get("stream_options")
        options: dict[str, Any] = {}
        if given is not None:
            options = msgspec.json.decode(given, type=dict[str, Any])
        options["include_usage"] = True
        return options

    def adjust(self, body: dict[str, Any], op: Chat | Complete | Embed) -> None:
        """Last changes to the outgoing members, for a server's quirks. Here: none."""

    def compose(self, op: Chat | Complete | Embed, can: Capabilities) -> dict[str, Any]:
        """The outgoing members from the canonical form, for a client of another wire."""
        body: dict[str, Any]
        if isinstance(op, Embed):
            body = {"input": op.inputs[0] if len(op.inputs) == 1 else op.inputs}
            _put(body, encoding_format=op.encoding, dimensions=op.dimensions, user=op.user)
            body.update(op.extra)
            return body
        if isinstance(op, Chat):
            body = {"messages": [write_message(message) for message in op.messages]}
            _put(body, max_tokens=op.max_output, parallel_tool_calls=op.parallel_tools, reasoning_effort=op.reasoning)
            if op.tools:
                body["tools"] = [_write_tool(tool) for tool in op.tools]
            if op.tool_choice is not None:
                body["tool_choice"] = _write_tool_choice(op.tool_choice)
            if op.logprobs is not None:
                body["logprobs"] = True
                if op.logprobs.top:
                    body["top_logprobs"] = op.logprobs.top
        else:
            body = {"prompt": op.prompts[0] if len(op.prompts) == 1 else op.prompts}
            _put(body, max_tokens=op.max_output, suffix=op.suffix)
            if op.echo:
                body["echo"] = True
            if op.logprobs is not None:
                body["logprobs"] = op.logprobs.top
            self.compose_completion(body, op, can)
        if op.n != 1:
            body["n"] = op.n
        if op.stop:
            body["stop"] = op.stop
        _put(body, user=op.user)
        self.compose_sampling(body, op.sampling)
        if op.output is not None:
            self.compose_output(body, op.output)
        if op.want_tokens:
            self.compose_tokens(body)
        body.update(op.extra)
        return body

    def compose_completion(self, body: dict[str, Any], op: Complete, can: Capabilities) -> None:
        """Beam search, lists of seeds and totals are beyond OpenAI's own wire."""
        for param, value in (
            ("num_beams", op.beams),
            ("max_total_tokens", op.max_total),
            ("min_total_tokens", op.min_total),
        ):
            if value is not None:
                raise unsupported(param, self.name)
        if op.seeds:
            if op.seeds != tuple(range(op.seeds[0], op.seeds[0] + len(op.seeds))):
                raise unsupported("seed", self.name, RISING)
            body["seed"] = op.seeds[0]

    def count(self, op: Complete, can: Capabilities) -> Counting:
        """OpenAI's wire has no word for it."""
        raise unsupported(total_of(op), self.name)

    def counting(self, op: Complete, body: dict[str, Any], length: Callable[[bytes], int]) -> Counting:
        """For workers that have `/tokenize`; `length` reads what it answers."""

        def read(response: Response) -> int:
            if response.status in (404, 405):  # switched off, or hidden by what stands before the worker
                raise unsupported(total_of(op), self.name)
            if response.status != 200:
                raise self.fault(response)
            try:
                return length(response.body)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                raise wire.malformed() from None

        return Counting(Request("POST", "/tokenize", [JSON_TYPE], encode(body)), read)

    def compose_sampling(self, body: dict[str, Any], sampling: Sampling) -> None:
        """What OpenAI itself defines is sent by name; the rest is refused."""
        _put(
            body,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
        )
        if sampling.logit_bias:
            body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
        neutral = {"top_k": 0, "min_p": 0, "repetition_penalty": 1, "min_tokens": 0, "no_repeat_ngram": 0}
        for name in ("top_k", "min_p", "repetition_penalty", "min_tokens", "no_repeat_ngram"):
            value = getattr(sampling, name)
            if value is not None and value != neutral[name]:
                raise unsupported(name, self.name)
        for name in ("stop_tokens", "eos_tokens", "bad_words", "bad_tokens", "ignore_eos"):
            if getattr(sampling, name):
                raise unsupported(name, self.name)

    def compose_output(self, body: dict[str, Any], output: Output) -> None:
        if output.kind == "text":
            if output.extra:
                body["response_format"] = _with({"type": "text"}, output.extra)
        elif output.kind == "json":
            body["response_format"] = _with({"type": "json_object"}, output.extra)
        elif output.kind == "schema":
            schema: dict[str, Any] = {"name": output.name or "output", "schema": output.schema}
            _put(schema, strict=output.strict, description=output.description)
            body["response_format"] = _with({"type": "json_schema", "json_schema": schema}, output.extra)
        else:
            raise unsupported("response_format", self.name)

    def compose_tokens(self, body: dict[str, Any]) -> None:
        raise no_token_ids(self.name)

    def read(self, response: Response, op: Generate) -> Iterator[Event]:
        reader = _reader(op)
        yield from reader.whole(response.body)

    def reader(self, op: Generate) -> StreamReader:
        return _reader(op)

    def read_embeddings(self, response: Response, op: Embed) -> Embeddings:
        try:
            found = wire.embeddings_decoder.decode(response.body)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise wire.malformed() from None
        if found.error is not None:
            raise wire.late_fault(found.error)
        if found.data is None:
            raise wire.malformed()
        vectors = tuple(vector.embedding for vector in sorted(found.data, key=lambda vector: vector.index))
        return Embeddings(found.model or "", vectors, wire.usage(found.usage) if found.usage else None)

    def fault(self, response: Response) -> GatewayError:
        error = wire.fault(response.status, response.body)
        if error.retry_after is not None:
            error.retry_after = _retry_after(response) or error.retry_after
        return error


def unsupported(param: str, backend: str, why: str = "") -> GatewayError:
    """`why` says what would work."""
    message = f"'{param}' cannot be executed by the {backend} worker of this model"
    return GatewayError(Kind.UNSUPPORTED, f"{message}: {why}" if why else message, param=param)


def no_token_ids(backend: str) -> GatewayError:
    return GatewayError(
        Kind.UNSUPPORTED,
        f"the reply must hold token ids, and the {backend} worker of this model gives none:"
        " workers of the backends vllm (0.10.2 and later), tgi and llamacpp do",
        param="tokens",
    )


RISING = "a list must rise by one, as in [5, 6, 7]: a worker takes one seed, and draws choice i with that seed plus i"
"""Of seeds."""


def top_level(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `op.unnamed` that stood in no object: the others are written where they stood."""
    return tuple(name for name in names if "." not in name)


def unwritten(op: Chat | Complete) -> Iterator[str]:
    """What an endpoint with a format of its own for the output has no word for."""
    if op.output is not None and op.output.description is not None:
        yield "response_format.json_schema.description"


def total_of(op: Complete) -> str:
    """The name of the total that `op` asks for."""
    return "max_total_tokens" if op.max_total is not None else "min_total_tokens"


def _retry_after(response: Response) -> float | None:
    value = response.header(b"retry-after")
    return float(value) if value is not None and value.isdigit() else None


def _put(body: dict[str, Any], **members: Any) -> None:
    for name, value in members.items():
        if value is not None:
            body[name] = value


def _with(out: dict[str, Any], extra: Nested | None) -> dict[str, Any]:
    """`out` with members that have no canonical name where they stood."""
    for name, value in (extra or {}).items():
        out[name] = value if isinstance(value, Raw) else _with(out.get(name, {}), value)
    return out


# -- canonical to wire ----------------------------------------------------------------------------------------------


def write_message(message: Message) -> dict[str, Any]:
    """One chat message. A message of text alone has a plain string: not every server reads part arrays."""
    out: dict[str, Any] = {"role": message.role}
    calls = [part for part in message.parts if isinstance(part, ToolCall)]
    thinking = [part.text for part in message.parts if isinstance(part, Thinking)]
    # One that was a content part with something beside it stays one.
    refusals = [part.text for part in message.parts if isinstance(part, Refusal) and part.extra is None]
    content = [
        part
        for part in message.parts
        if not isinstance(part, (ToolCall, Thinking)) and (not isinstance(part, Refusal) or part.extra is not None)
    ]
    if len(content) == 1 and isinstance(content[0], Text) and content[0].extra is None:
        out["content"] = content[0].text
    elif content:
        out["content"] = [_write_part(part) for part in content]
    elif calls or refusals:
        out["content"] = None
    else:
        out["content"] = ""
    if thinking:
        out["reasoning_content"] = "".join(thinking)
    if refusals:
        out["refusal"] = "".join(refusals)
    if calls:
        out["tool_calls"] = [
            _with(
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}},
                call.extra,
            )
            for call in calls
        ]
    _put(out, name=message.name, tool_call_id=message.call_id)
    return out if message.extra is None else _with(out, message.extra)


def _write_part(part: Text | Image | Audio | Refusal | Opaque | Any) -> Any:
    if isinstance(part, Text):
        return _with({"type": "text", "text": part.text}, part.extra)
    if isinstance(part, Image):
        image = {"url": part.url}
        _put(image, detail=part.detail)
        return _with({"type": "image_url", "image_url": image}, part.extra)
    if isinstance(part, Audio):
        audio = {"data": part.data, "format": part.format}
        return _with({"type": "input_audio", "input_audio": audio}, part.extra)
    if isinstance(part, Refusal):
        return _with({"type": "refusal", "refusal": part.text}, part.extra)
    return part.raw


def _write_tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    _put(function, description=tool.description, parameters=tool.parameters, strict=tool.strict)
    return _with({"type": "function", "function": function}, tool.extra)


def _write_tool_choice(choice: ToolChoice) -> Any:
    if isinstance(choice, NamedTool):
        return _with({"type": "function", "function": {"name": choice.name}}, choice.extra)
    return choice


# -- wire to canonical ----------------------------------------------------------------------------------------------


# Bytes that a choice, or a part of one, takes for as long as the reply lasts, here and in a writer.
_PART = 512


class _Parts:
    """The open parts of one choice."""

    __slots__ = ("finished", "next", "open_index", "open_kind", "tools")

    def __init__(self) -> None:
        self.open_kind: PartKind | None = None
        self.open_index = 0
        self.next = 0
        self.tools: dict[int, int] = {}
        self.finished = False


def _reader(op: Generate) -> _ChatReader | _TextReader:
    return _ChatReader(op) if isinstance(op, Chat) else _TextReader(op)


class _Reader(ABC):
    """What the chat and the text reader share: frames, the terminal mark, errors, usage."""

    def __init__(self, op: Generate) -> None:
        self.frames = sse.Reader()
        self.held = 0
        self.started = False
        self.over = False
        self.parts: dict[int, _Parts] = {}
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

    def of(self, choice: int) -> _Parts:
        parts = self.parts.get(choice)
        if parts is None:
            parts = self.parts[choice] = _Parts()
            self.unfinished += 1
            self.held += _PART
        return parts

    def text(
        self,
        choice: int,
        parts: _Parts,
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
        self, choice: int, parts: _Parts, word: str, stop: str | int | None, extra: Extra | None = None
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


class _ChatReader(_Reader):
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

    def calls(self, choice: int, parts: _Parts, calls: Iterable[wire.ToolCallIn]) -> Iterator[Event]:
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


class _TextReader(_Reader):
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
