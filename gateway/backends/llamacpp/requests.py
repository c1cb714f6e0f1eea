"""Requests to llama.cpp: the body of `/completion`, and the members of chats that only llama.cpp names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from gateway.backends.llamacpp.patterns import grammar
from gateway.core.messages import Chat, Complete, Embed, NamedTool, Output, Sampling, Score
from gateway.core.ports import Capabilities
from gateway.wire.json import bad_value, decoded, encode, valid
from gateway.wire.openai.requests.parts import put, write_tool
from gateway.wire.openai.requests.unsupported import (
    IDLE,
    OPENAI_MEMBERS,
    UNREAD,
    Unread,
    refuse_given,
    refuse_sampling,
    unsupported,
    unwritten,
)
from gateway.wire.openai.requests.writing import ParameterWriter, beyond_openai
from gateway.wire.openai.scores import rerank_body

NAME = "llamacpp"

# Seeds have 32 bits. The highest value means "draw one".
_SEEDS = 2**32 - 1
# The window of penalties, in tokens, if the context length is unknown. llama.cpp reserves memory for the whole
# window with each request: with 2**31 - 1 one token took 30 s.
_WINDOW = 65_536
# Parameters of sampling that llama.cpp lacks -> the values that change nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "min_tokens": (0,),
    "no_repeat_ngram": (0, 1),
    **dict.fromkeys(("stop_tokens", "eos_tokens", "bad_words"), ()),
}
# vLLM's members that llama.cpp has too.
_SHARED = frozenset({"add_generation_prompt", "chat_template_kwargs", "continue_final_message", "structured_outputs"})
_NOT_ITS: Mapping[str, tuple[Any, ...]] = {name: off for name, off in UNREAD.items() if name not in _SHARED}
# Its reasoning models always include their reasoning.
_NOT_ITS = {**_NOT_ITS, "include_reasoning": (True,)}

# vLLM's members of requests for scores and embeddings that change them, with the values that change nothing.
_POOLING_MEMBERS: Mapping[str, tuple[Any, ...]] = {
    **OPENAI_MEMBERS,
    "add_special_tokens": (True,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "instruction": ("",),
    "max_tokens_per_doc": (0,),
    "max_tokens_per_query": (0,),
    "mm_processor_kwargs": ({},),
    "normalize": (True,),
    "truncate_prompt_tokens": (),
    "truncation_side": ("right",),
    "use_activation": (True,),
}
_UNREAD = Unread(_NOT_ITS, IDLE, NAME)
_UNREAD_SCORE = Unread(_POOLING_MEMBERS, IDLE, NAME)
_UNREAD_EMBED = Unread({**_NOT_ITS, **_POOLING_MEMBERS}, IDLE, NAME)


class _Parameters(ParameterWriter):
    """llama.cpp's names in requests that are written from the canonical form."""

    passed = (
        *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty"),
        *("repetition_penalty", "ignore_eos"),
    )
    neutral = _NEUTRAL

    def sampling(self, body: dict[str, Any], sampling: Sampling) -> None:
        super().sampling(body, sampling)
        _no_filters(body)
        if sampling.seed is not None:
            body["seed"] = sampling.seed % _SEEDS
        bias: list[tuple[int, float | bool]] = list((sampling.logit_bias or {}).items())
        for sequence in sampling.bad_tokens:
            if len(sequence) != 1:
                raise unsupported("bad_tokens", NAME)
            bias.append((sequence[0], False))
        if bias:
            body["logit_bias"] = bias

    def output(self, body: dict[str, Any], output: Output) -> None:
        if output.kind in ("regex", "grammar", "choice"):
            _constrain(body, output)
        else:
            super().output(body, output)


PARAMETERS = _Parameters(NAME)


def text_body(op: Complete, can: Capabilities) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(the body of `/completion`, the names of members that it lacks). Raises GatewayError(UNSUPPORTED), which names
    the parameter, for what llama.cpp cannot do."""
    _refuse(op)
    if op.n > 1 and not all(op.prompts):
        # llama.cpp answers nothing, ever, and its slots stay taken.
        raise unsupported("n", NAME, "an empty prompt has one choice")
    extra = {name: raw for name, raw in op.extra.items() if name != "stream_options"}
    _refuse_second_words(extra)
    dropped = (*unwritten(op), *op.unnamed, *_UNREAD.leave_out(extra, op))
    if op.user is not None:
        dropped += ("user",)
    body: dict[str, Any] = {"prompt": op.prompts[0] if len(op.prompts) == 1 else op.prompts}
    put(
        body,
        n_predict=op.max_output,
        n=op.n if op.n != 1 else None,
        stream=op.stream or None,
        return_tokens=op.want_tokens or None,
        n_probs=max(1, op.logprobs.top) if op.logprobs is not None else None,
        stop=op.stop or None,
    )
    PARAMETERS.sampling(body, op.sampling)
    if op.seeds:
        body["seed"] = _seed_of(op)
    if "seed" in body:
        # The same seed must give the same text, but a cached prompt gives slightly other numbers than a new one.
        body["cache_prompt"] = False
    if op.output is not None:
        _constrain(body, op.output)
    body.update(extra)
    _translate(body)
    _set_window(body, op.sampling, can)
    return body, dropped


def score_body(op: Score, can: Capabilities) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(the body of `/v1/rerank`, the names of members that it lacks). Raises GatewayError(UNSUPPORTED) for what
    llama.cpp would silently ignore."""
    body = rerank_body(op, can, NAME)
    return body, _UNREAD_SCORE.leave_out(body, op)


def adjust_embed(body: dict[str, Any], op: Embed) -> tuple[str, ...]:
    """Removes the members that llama.cpp does not read, in place, and returns their names. Raises
    GatewayError(UNSUPPORTED) for what it would silently ignore."""
    if body.pop("dimensions", None) is not None and op.dimensions is not None:
        raise unsupported("dimensions", NAME)
    return _UNREAD_EMBED.leave_out(body, op)


def adjust_chat(body: dict[str, Any], op: Chat, can: Capabilities) -> tuple[str, ...]:
    """Renames the members of a chat to llama.cpp's names, in place, including members passed on from the client.

    Returns the names of members that are left out. Raises GatewayError(UNSUPPORTED), which names the parameter, for
    what llama.cpp would silently ignore.
    """
    _refuse_second_words(body)
    dropped = _UNREAD.leave_out(body, op)
    refuse_sampling(op.sampling, _NEUTRAL, NAME)
    if body.pop("max_completion_tokens", None) is not None:
        if body.get("max_tokens") is not None:
            dropped += ("max_tokens",)
        body["max_tokens"] = op.max_output
    if op.sampling.seed is not None:
        body["seed"] = op.sampling.seed % _SEEDS
    _translate(body)
    _no_filters(body)
    _set_window(body, op.sampling, can)
    if not op.tools:
        for name in ("tools", "tool_choice", "parallel_tool_calls"):
            body.pop(name, None)
    elif isinstance(op.tool_choice, NamedTool):
        _only(body, op, op.tool_choice.name)
        dropped += tuple(name for name in op.unnamed if name.startswith("tool_choice."))
    if not op.stream:
        body.pop("stream_options", None)
    if op.stop:
        # A chat's reply only reports that it stopped. This adds the fields of its own API, cut to the phrase that was
        # met.
        body["verbose"], body["response_fields"] = True, ["stopping_word"]
    if op.n > 1:
        # The usage of a buffered reply covers one choice only; a stream reports the usage of each.
        body["stream"], body["stream_options"] = True, {"include_usage": True}
    return dropped


def _only(body: dict[str, Any], op: Chat, name: str) -> None:
    """Forces the function `name`. llama.cpp ignores the name in `tool_choice`, so only that tool is sent, with
    `required`."""
    tools = [tool for tool in op.tools if tool.name == name]
    if not tools:
        raise bad_value("tool_choice", f"there is no tool '{name}'")
    body["tools"] = [write_tool(tool) for tool in tools]
    body["tool_choice"] = "required"


def _refuse(op: Complete) -> None:
    # With `max_tokens` 0 llama.cpp would still generate one token.
    given = {"echo": op.echo, "suffix": op.suffix is not None, "max_tokens": op.max_output == 0}
    refuse_given(beyond_openai(op) | given, NAME)


def _refuse_second_words(members: Mapping[str, Any]) -> None:
    """Raises GatewayError(UNSUPPORTED) for llama.cpp's own names of members that have a canonical name. llama.cpp
    prefers its own name, so it would run another request than the one that was validated and counted by limits."""
    for own, name in (("n_predict", "max_tokens"), ("n_cmpl", "n")):
        if own in members:
            raise unsupported(own, NAME, f"use '{name}'")
    if "repeat_penalty" in members and "repetition_penalty" in members:
        raise unsupported("repeat_penalty", NAME, "use 'repetition_penalty'")


def _translate(body: dict[str, Any]) -> None:
    """Renames members of vLLM's wire, in place, to llama.cpp's names."""
    if "repetition_penalty" in body:
        body["repeat_penalty"] = body.pop("repetition_penalty")
    given = body.pop("structured_outputs", None)
    if given is not None:
        _constrain(body, _structured(given))


def _set_window(body: dict[str, Any], sampling: Sampling, can: Capabilities) -> None:
    """Penalties cover the whole context, as in other engines. llama.cpp's default is the last 64 tokens."""
    penalties = (sampling.frequency_penalty, sampling.presence_penalty)
    if any(penalties) or sampling.repetition_penalty not in (None, 1) or "repeat_penalty" in body:
        body.setdefault("repeat_last_n", can.max_context or _WINDOW)


def _no_filters(body: dict[str, Any]) -> None:
    """Switches off filters that the client did not ask for, if it set temperature or top_p: llama.cpp would add top_k
    40, top_p 0.95 and min_p 0.05. A request that sets neither gets llama.cpp's defaults."""
    if "temperature" in body or "top_p" in body:
        for name, off in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)):
            body.setdefault(name, off)


def _seed_of(op: Complete) -> int:
    """The one seed of the request: llama.cpp draws choice i with seed + i. Raises GatewayError if it cannot."""
    first = op.seeds[0] % _SEEDS
    if first + len(op.seeds) > _SEEDS:
        raise unsupported("seed", NAME, f"its seeds end at {_SEEDS - 1}")
    return first


# -- constraints on the output --------------------------------------------------------------------------------------


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
        body["grammar"] = grammar(output.pattern or "")


class _StructuredIn(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's `structured_outputs`: exactly one of these members."""

    json: Raw = Raw()
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


_structured_in = msgspec.json.Decoder(_StructuredIn).decode


def _structured(given: Raw) -> Output:
    found = decoded(_structured_in, given)
    if found is None:
        raise unsupported("structured_outputs", NAME)
    constraints: list[Output] = []
    if bytes(found.json) not in (b"", b"null"):
        schema = found.json
        if bytes(schema)[:1] == b'"':
            schema = Raw(msgspec.json.decode(schema, type=str).encode())
        if not valid(schema):
            raise unsupported("structured_outputs", NAME)
        constraints.append(Output("schema", schema))
    if found.regex is not None:
        constraints.append(Output("regex", pattern=found.regex))
    if found.choice:
        constraints.append(Output("choice", choices=tuple(found.choice)))
    if found.grammar is not None:
        constraints.append(Output("grammar", pattern=found.grammar))
    if found.json_object:
        constraints.append(Output("json"))
    if len(constraints) != 1:
        raise unsupported("structured_outputs", NAME, "it must hold one constraint")
    return constraints[0]
