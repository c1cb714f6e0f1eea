"""Requests of OpenAI's wire for every engine that speaks it: the client's own members, or the canonical form.

Each engine's own names are in its `ParameterWriter`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.core.messages import Chat, Complete, Embed, Message, Output, Sampling
from gateway.core.ports import Capabilities
from gateway.wire.openai.requests.parts import (
    put,
    with_extra,
    write_message,
    write_tool,
    write_tool_choice,
)
from gateway.wire.openai.requests.turns import is_out_of_turn, left_behind, messages_of, spliced
from gateway.wire.openai.requests.unsupported import no_token_ids, refuse_given, refuse_sampling, unsupported

PATHS = {Chat: "/v1/chat/completions", Complete: "/v1/completions", Embed: "/v1/embeddings"}


# Parameters of sampling that OpenAI's wire lacks -> the values that change nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_k": (0,),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "min_tokens": (0,),
    "no_repeat_ngram": (0,),
    "ignore_eos": (False,),
    **dict.fromkeys(("stop_tokens", "eos_tokens", "bad_words", "bad_tokens"), ()),
}


def beyond_openai(op: Complete) -> dict[str, bool]:
    """Parameters of text completions that OpenAI's wire lacks -> whether `op` has them."""
    return {
        "num_beams": op.beams is not None,
        "max_total_tokens": op.max_total is not None,
        "min_total_tokens": op.min_total is not None,
    }


class ParameterWriter:
    """An engine's names for what OpenAI's wire does not define. This class has only OpenAI's own and refuses the rest.

    Each method adds members to the outgoing body, or raises GatewayError(UNSUPPORTED), which names the parameter.

    passed   the parameters of sampling that the engine has under their own names
    neutral  those that it lacks -> the values that change nothing
    """

    passed: Sequence[str] = ("temperature", "top_p", "seed", "frequency_penalty", "presence_penalty")
    neutral = _NEUTRAL

    def __init__(self, name: str) -> None:
        self.name = name

    def completion(self, body: dict[str, Any], op: Complete, can: Capabilities) -> None:
        """The parameters of text completions only: beams, lists of seeds, total lengths."""
        refuse_given(beyond_openai(op), self.name)
        if op.seeds:
            body["seed"] = op.seeds[0]

    def sampling(self, body: dict[str, Any], sampling: Sampling) -> None:
        refuse_sampling(sampling, self.neutral, self.name)
        given = msgspec.to_builtins(sampling)  # what is set
        body.update({name: given[name] for name in self.passed if name in given})
        if sampling.logit_bias:
            body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}

    def output(self, body: dict[str, Any], output: Output) -> None:
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

    def message(self, message: Message) -> dict[str, Any]:
        return write_message(message)

    def continuation(self, body: dict[str, Any], op: Chat) -> None:
        """Asks for a reply that continues the last message."""
        last = f"messages.{len(op.messages) - 1}"
        raise unsupported(last, self.name, "the last message must not be the assistant's")

    def truncation(self, body: dict[str, Any]) -> None:
        """Asks to cut off inputs of embeddings that are too long. Engines that cannot refuse such inputs."""

    def tokens(self, body: dict[str, Any]) -> None:
        """Asks for token ids in the reply."""
        raise no_token_ids(self.name)


def outgoing(
    op: Chat | Complete | Embed, can: Capabilities, parameters: ParameterWriter
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(the members of the worker's request, the names of dropped members). The members are the client's own if it
    speaks this wire; else they are made from the canonical form.

    Raises GatewayError(UNSUPPORTED), which names the parameter, for what the engine cannot do.
    """
    dropped: tuple[str, ...] = ()
    moved = type(op) is Chat and is_out_of_turn(op, can)
    if op.raw is not None and op.wire == "openai":
        body: dict[str, Any] = dict(op.raw)
        if op.rewritten:
            body.update(_texts(op, can, parameters))
        elif type(op) is Chat and moved:
            body["messages"] = spliced(op.raw["messages"], op.messages, messages_of(op, can))
    else:
        body = compose(op, can, parameters)
        if type(op) is not Embed:
            dropped = top_level(op.unnamed)
    if type(op) is Chat and moved:
        dropped += left_behind(op, can)
    body["model"] = can.upstream_model
    if op.stream:
        body["stream"] = True
        body["stream_options"] = stream_options(op)
    return body, dropped


def _texts(op: Chat | Complete | Embed, can: Capabilities, parameters: ParameterWriter) -> dict[str, Any]:
    """The members that have the texts of a request."""
    if type(op) is Embed:
        return {"input": op.inputs[0] if len(op.inputs) == 1 else op.inputs}
    if type(op) is Complete:
        body: dict[str, Any] = {"prompt": op.prompts[0] if len(op.prompts) == 1 else op.prompts}
        put(body, suffix=op.suffix)
    else:
        body = {"messages": [parameters.message(message) for message in messages_of(op, can)]}
        if op.tools:
            body["tools"] = [write_tool(tool) for tool in op.tools]
    if op.output is not None and op.output.schema is not None and "response_format" in (op.raw or ()):
        parameters.output(body, op.output)
    return body


def top_level(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of `op.unnamed` at the top level. The others are written back inside their objects."""
    return tuple(name for name in names if "." not in name)


def stream_options(op: Chat | Complete | Embed) -> dict[str, Any]:
    """Always asks for usage, because limits and records need it. It is stripped later if the client did not ask."""
    given = (op.raw if op.raw is not None else op.extra).get("stream_options")
    options: dict[str, Any] = {}
    if given is not None:
        options = msgspec.json.decode(given, type=dict[str, Any])
    options["include_usage"] = True
    return options


def compose(op: Chat | Complete | Embed, can: Capabilities, parameters: ParameterWriter) -> dict[str, Any]:
    """The outgoing members, from the canonical form, for a client of another wire. Raises as `outgoing`."""
    body: dict[str, Any]
    if type(op) is Embed:
        body = _texts(op, can, parameters)
        put(body, encoding_format=op.encoding, dimensions=op.dimensions, user=op.user)
        if op.truncate:
            parameters.truncation(body)
        body.update(op.extra)
        return body
    if type(op) is Chat:
        body = prompt_of(op, can, parameters)
        put(body, max_tokens=op.max_output, parallel_tool_calls=op.parallel_tools, reasoning_effort=op.reasoning)
        if op.tool_choice is not None:
            body["tool_choice"] = write_tool_choice(op.tool_choice)
        if op.logprobs is not None:
            put(body, logprobs=True, top_logprobs=op.logprobs.top or None)
    else:
        body = _texts(op, can, parameters)
        put(body, max_tokens=op.max_output)
        put(body, echo=op.echo or None, logprobs=op.logprobs.top if op.logprobs is not None else None)
        parameters.completion(body, op, can)
    put(body, n=op.n if op.n != 1 else None, stop=op.stop or None, user=op.user)
    parameters.sampling(body, op.sampling)
    if op.output is not None:
        parameters.output(body, op.output)
    if op.want_tokens:
        parameters.tokens(body)
    body.update(op.extra)
    return body


def prompt_of(op: Chat, can: Capabilities, parameters: ParameterWriter) -> dict[str, Any]:
    """The input of a chat template: the messages, the tools, and whether the reply continues the last message. Raises
    as `outgoing`."""
    body = _texts(op, can, parameters)
    if op.continue_last:
        parameters.continuation(body, op)
    return body
