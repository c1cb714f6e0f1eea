"""Backend for text-generation-inference: `/generate` and `/generate_stream` for texts, its chat endpoint for chats.

Sources: TGI 3.3 (router/src/lib.rs, validation.rs, server.rs, chat.rs; server utils/tokens.py) and its client,
text-generation 0.7.0. Its limits, and the gateway's corrections: docs/backends/tgi.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from gateway.backends.tgi.errors import fault_of
from gateway.backends.tgi.replies import StopSequenceTrimmer, count, tokens_of
from gateway.backends.tgi.requests import (
    NAME,
    below_one,
    grammar_of,
    greedy,
    left_out,
    refuse,
    rest_of,
    split_message,
    text_body,
)
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Event
from gateway.core.http import Request, Response
from gateway.core.lifecycle import Detokenized, TokenCount, Tokens
from gateway.core.messages import (
    Audio,
    Chat,
    Complete,
    Detokenize,
    Embed,
    Extra,
    Generate,
    Media,
    Op,
    Opaque,
    Output,
    Sampling,
    Score,
    Tokenize,
)
from gateway.core.ports import Ask, Capabilities, Gauges, Partial, Resumption, StreamReader
from gateway.wire import clock
from gateway.wire.openai.backend import CANNOT_TOKENIZE, OpenAIBackend, Written
from gateway.wire.openai.media.requests import unable
from gateway.wire.openai.replies.waits import counted
from gateway.wire.openai.requests.parts import put
from gateway.wire.openai.requests.resuming import append_to_prompt, resumed
from gateway.wire.openai.requests.turns import left_behind, messages_of
from gateway.wire.openai.requests.unsupported import beyond, cannot_count, unsupported
from gateway.wire.openai.requests.writing import PATHS, ParameterWriter, compose, stream_options

# TGI takes a chat's `model` as the id of a LoRA adapter, except for this value.
_NO_ADAPTER = "tgi"
_NO_PARAMETERS = Raw(b'{"type":"object","properties":{}}')


class _Parameters(ParameterWriter):
    """TGI's names in chats, as far as they differ from OpenAI's."""

    def sampling(self, body: dict[str, Any], sampling: Sampling) -> None:
        """Never sends `presence_penalty`: TGI turns it into a repetition penalty, and a 0 into a penalty of 2."""
        if sampling.repetition_penalty not in (None, 1):
            raise unsupported("repetition_penalty", NAME)
        if greedy(sampling):
            body["temperature"] = 0.0
        else:
            if sampling.top_k is not None and sampling.top_k > 0:
                raise unsupported("top_k", NAME)
            put(body, temperature=sampling.temperature, top_p=below_one(sampling.top_p))
        put(body, seed=sampling.seed, frequency_penalty=sampling.frequency_penalty or None)

    def output(self, body: dict[str, Any], output: Output) -> None:
        grammar = grammar_of(output)
        if grammar is not None:
            body["response_format"] = grammar


_PARAMETERS = _Parameters(NAME)


class Tgi(OpenAIBackend):
    name = NAME
    gauges = Gauges("tgi_batch_current_size", "tgi_queue_size", progress=("tgi_batch_inference_success",))
    facts_path = None

    def reply_wire(self, op: Op) -> str:
        """TGI's chat endpoint resembles OpenAI's wire, but its streams cannot be passed on as they are: see
        docs/backends/tgi.md."""
        return NAME

    def _media(self, op: Media, can: Capabilities) -> Request:
        raise unable(op, NAME)

    def _written(self, op: Chat | Complete | Embed | Score, can: Capabilities) -> Written:
        if type(op) is Embed:
            raise GatewayError(Kind.UNSUPPORTED, "a tgi worker makes no embeddings")
        if type(op) is Score:
            raise beyond(NAME, "does not rank documents")
        rest = rest_of(op)
        dropped = (*refuse(op, rest), *left_out(op))
        if type(op) is Chat:
            return Written(PATHS[Chat], _chat_body(op, can, rest), (*dropped, *left_behind(op, can)))
        return Written("/generate_stream" if op.stream else "/generate", text_body(op, rest), dropped)

    def resume(self, request: Request, partial: Partial) -> Resumption | str:
        if request.path == PATHS[Chat]:
            return "engine"
        return resumed(request, partial, append_to_prompt, parameters="parameters")

    def count(self, op: Generate, can: Capabilities) -> Ask[TokenCount]:
        """Counts with `/tokenize`, which reads the same body as `/generate` and truncates in the same way. It cannot
        count chats."""
        if isinstance(op, Chat):
            raise cannot_count(op, NAME)
        if op.min_total is not None:
            raise unsupported("min_total_tokens", NAME)
        return self._ask(op, "/tokenize", text_body(replace(op, max_total=None), rest_of(op)), count)

    def tokenize(self, op: Tokenize | Detokenize, can: Capabilities) -> Ask[Tokens | Detokenized]:
        """Asks for the tokens of a text, always with the special ones. Raises GatewayError(UNSUPPORTED) for anything
        else."""
        if isinstance(op, Detokenize):
            raise beyond(NAME, CANNOT_TOKENIZE)
        if isinstance(op.prompt, Chat):
            raise unsupported("messages", NAME, "it returns the tokens of a text, in 'prompt'")
        if not op.special:
            raise unsupported("add_special_tokens", NAME, "special tokens are always added")
        return self._ask(op, "/tokenize", {"inputs": op.prompt}, lambda body: tokens_of(body, op, can.max_context))

    def read(self, response: Response, op: Generate) -> Iterator[Event]:
        counts = counted(response.header(b"x-prompt-tokens"))
        return StopSequenceTrimmer(op).whole(response.body, counts)

    def reader(self, op: Generate) -> StreamReader:
        return StopSequenceTrimmer(op)

    def _fault(self, response: Response) -> GatewayError:
        return fault_of(response, clock.seconds())


def _chat_body(op: Chat, can: Capabilities, rest: Extra) -> dict[str, Any]:
    if op.reasoning is not None:
        raise unsupported("reasoning_effort", NAME)
    if op.want_tokens:
        raise unsupported("tokens", NAME)
    for index, message in enumerate(op.messages):
        for position, part in enumerate(message.parts):
            if isinstance(part, (Audio, Opaque)):
                raise unsupported(f"messages.{index}.content.{position}", NAME)
    tools = tuple(replace(tool, parameters=tool.parameters or _NO_PARAMETERS) for tool in op.tools)
    body = compose(replace(op, tools=tools, extra={}, user=None), can, _PARAMETERS)
    body["messages"] = [written for message in messages_of(op, can) for written in split_message(message)]
    body["model"] = _NO_ADAPTER
    if not op.tools:
        body.pop("tool_choice", None)
    body.pop("parallel_tool_calls", None)  # TGI's tool grammar makes at most one call
    if op.stream:
        body["stream"] = True
        body["stream_options"] = stream_options(op)
    for name, raw in rest.items():
        body.setdefault(name, raw)
    return body
