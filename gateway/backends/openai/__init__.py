"""Backend for any server of OpenAI's wire: chat, text completions, embeddings.

One mapping from choices to events serves the streamed and the buffered reply. Engine quirks live in subclasses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from gateway.backends.openai.errors import fault_of
from gateway.backends.openai.replies import reader_of
from gateway.backends.openai.requests import (
    RISING,
    no_token_ids,
    put,
    top_level,
    total_of,
    unsupported,
    with_extra,
    write_message,
    write_tool,
    write_tool_choice,
)
from gateway.core.errors import GatewayError
from gateway.core.events import Event
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.lifecycle import Embeddings
from gateway.core.messages import Chat, Complete, Embed, Generate, Op, Output, Sampling
from gateway.core.ports import Capabilities, Counting, StreamReader
from gateway.wire.json import encode
from gateway.wire.openai import answers as wire
from gateway.wire.openai.defaults import DEFAULTS, ReplyDefaults


class OpenAI:
    """`openai`: remote endpoints and servers without quirks of their own."""

    name = "openai"
    salts = False
    wire = "openai"
    paths = {Chat: "/v1/chat/completions", Complete: "/v1/completions", Embed: "/v1/embeddings"}

    def __init__(self, defaults: ReplyDefaults = DEFAULTS) -> None:
        self.defaults = defaults

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
            put(body, encoding_format=op.encoding, dimensions=op.dimensions, user=op.user)
            body.update(op.extra)
            return body
        if isinstance(op, Chat):
            body = {"messages": [write_message(message) for message in op.messages]}
            put(body, max_tokens=op.max_output, parallel_tool_calls=op.parallel_tools, reasoning_effort=op.reasoning)
            if op.tools:
                body["tools"] = [write_tool(tool) for tool in op.tools]
            if op.tool_choice is not None:
                body["tool_choice"] = write_tool_choice(op.tool_choice)
            if op.logprobs is not None:
                body["logprobs"] = True
                if op.logprobs.top:
                    body["top_logprobs"] = op.logprobs.top
        else:
            body = {"prompt": op.prompts[0] if len(op.prompts) == 1 else op.prompts}
            put(body, max_tokens=op.max_output, suffix=op.suffix)
            if op.echo:
                body["echo"] = True
            if op.logprobs is not None:
                body["logprobs"] = op.logprobs.top
            self.compose_completion(body, op, can)
        if op.n != 1:
            body["n"] = op.n
        if op.stop:
            body["stop"] = op.stop
        put(body, user=op.user)
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
        put(
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
                body["response_format"] = with_extra({"type": "text"}, output.extra)
        elif output.kind == "json":
            body["response_format"] = with_extra({"type": "json_object"}, output.extra)
        elif output.kind == "schema":
            schema: dict[str, Any] = {"name": output.name or "output", "schema": output.schema}
            put(schema, strict=output.strict, description=output.description)
            body["response_format"] = with_extra({"type": "json_schema", "json_schema": schema}, output.extra)
        else:
            raise unsupported("response_format", self.name)

    def compose_tokens(self, body: dict[str, Any]) -> None:
        raise no_token_ids(self.name)

    def read(self, response: Response, op: Generate) -> Iterator[Event]:
        yield from reader_of(op, self.defaults).whole(response.body)

    def reader(self, op: Generate) -> StreamReader:
        return reader_of(op, self.defaults)

    def read_embeddings(self, response: Response, op: Embed) -> Embeddings:
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

    def fault(self, response: Response) -> GatewayError:
        return fault_of(response, self.defaults.now())
