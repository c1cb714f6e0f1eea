"""What llama.cpp is asked: the body of `/completion`, and chats in its words for what OpenAI's wire has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from gateway.backends.llamacpp.patterns import grammar
from gateway.backends.openai.compose import Words
from gateway.backends.openai.requests import (
    RISING,
    VLLM_MEMBERS,
    refuse_members,
    unsupported,
    unwritten,
    write_tool,
)
from gateway.core.errors import GatewayError, Kind
from gateway.core.messages import Chat, Complete, NamedTool, Output, Sampling
from gateway.core.ports import Capabilities
from gateway.wire.json import encode, valid

NAME = "llamacpp"

# Its seeds have 32 bits, of which the highest value means "draw one".
_SEEDS = 2**32 - 1
# Tokens that penalties look back on where the context is unknown. Its memory for them is reserved for each request:
# with 2**31 - 1 one token took 30 s.
_WINDOW = 65_536
# Members of vLLM's that it also has.
_SHARED = frozenset({"add_generation_prompt", "chat_template_kwargs", "continue_final_message", "structured_outputs"})
_NOT_ITS = {name: neutral for name, neutral in VLLM_MEMBERS.items() if name not in _SHARED}


class _Words(Words):
    """Of chats that are written from the canonical form."""

    def sampling(self, body: dict[str, Any], sampling: Sampling) -> None:
        write_sampling(body, sampling)

    def output(self, body: dict[str, Any], output: Output) -> None:
        if output.kind in ("regex", "grammar", "choice"):
            _constrain(body, output)
        else:
            super().output(body, output)


WORDS = _Words(NAME)


def text_body(op: Complete, can: Capabilities) -> dict[str, Any]:
    """The body of `/completion`. Raises GatewayError(UNSUPPORTED) naming what it cannot do."""
    _refuse(op)
    _refuse_second_words(op.extra)
    refuse_members(op.extra, {**_NOT_ITS, **_NO_TEXT}, NAME)
    body: dict[str, Any] = {"prompt": op.prompts[0] if len(op.prompts) == 1 else op.prompts}
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
    write_sampling(body, op.sampling)
    if op.seeds:
        body["seed"] = _seed_of(op)
    if "seed" in body:
        # A prompt read from its cache is not computed bit for bit as a new one: the same seed must give the same.
        body["cache_prompt"] = False
    if op.output is not None:
        _constrain(body, op.output)
    body.update({name: raw for name, raw in op.extra.items() if name != "stream_options"})
    _translate(body)
    _set_window(body, op.sampling, can)
    return body


# Members that mean nothing to a plain text.
_NO_TEXT: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True, False),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
}


def text_dropped(op: Complete) -> tuple[str, ...]:
    """The names of what `text_body` leaves out without refusing it."""
    return (*unwritten(op), *op.unnamed, *(("user",) if op.user is not None else ()))


def adjust_chat(body: dict[str, Any], op: Chat, can: Capabilities) -> None:
    """Puts the members of a chat in llama.cpp's words, those that the client sent itself among them.

    Raises GatewayError(UNSUPPORTED) naming what llama.cpp would pass over in silence.
    """
    _refuse_second_words(body)
    refuse_members(body, _NOT_ITS, NAME)
    _refuse_sampling(op.sampling)
    if body.pop("max_completion_tokens", None) is not None:
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
    if not op.stream:
        body.pop("stream_options", None)


def _only(body: dict[str, Any], op: Chat, name: str) -> None:
    """It does not read the name of a function that must be called: with that tool alone, `required` means it."""
    tools = [tool for tool in op.tools if tool.name == name]
    if not tools:
        raise GatewayError(Kind.BAD_REQUEST, f"there is no tool '{name}'", param="tool_choice", code="invalid_value")
    body["tools"] = [write_tool(tool) for tool in tools]
    body["tool_choice"] = "required"


def write_sampling(body: dict[str, Any], sampling: Sampling) -> None:
    """Raises GatewayError(UNSUPPORTED) naming what it has no word for."""
    for name in (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "ignore_eos",
    ):
        value = getattr(sampling, name)
        if value is not None:
            body[name] = value
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
    _refuse_sampling(sampling)


def _refuse_sampling(sampling: Sampling) -> None:
    for name, param in (
        ("min_tokens", "min_tokens"),
        ("stop_tokens", "stop_tokens"),
        ("eos_tokens", "eos_tokens"),
        ("bad_words", "bad_words"),
    ):
        if getattr(sampling, name):
            raise unsupported(param, NAME)
    if sampling.no_repeat_ngram is not None and sampling.no_repeat_ngram > 1:
        raise unsupported("no_repeat_ngram", NAME)


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
            raise unsupported(name, NAME)


def _refuse_second_words(members: Mapping[str, Any]) -> None:
    """Raises GatewayError(UNSUPPORTED) for llama.cpp's own names of members that have a canonical one. It obeys its own
    name first, so the request would not be the one that was read and that limits have counted."""
    for own, name in (("n_predict", "max_tokens"), ("n_cmpl", "n")):
        if own in members:
            raise unsupported(own, NAME, f"use '{name}'")
    if "repeat_penalty" in members and "repetition_penalty" in members:
        raise unsupported("repeat_penalty", NAME, "use 'repetition_penalty'")


def _translate(body: dict[str, Any]) -> None:
    """Members of vLLM's wire that llama.cpp has another word for."""
    if "repetition_penalty" in body:
        body["repeat_penalty"] = body.pop("repetition_penalty")
    given = body.pop("structured_outputs", None)
    if given is not None:
        _constrain(body, _structured(given))


def _set_window(body: dict[str, Any], sampling: Sampling, can: Capabilities) -> None:
    """Penalties count the whole context, as elsewhere, and not its last 64 tokens."""
    penalties = (sampling.frequency_penalty, sampling.presence_penalty)
    if any(penalties) or sampling.repetition_penalty not in (None, 1) or "repeat_penalty" in body:
        body.setdefault("repeat_last_n", can.max_context or _WINDOW)


def _no_filters(body: dict[str, Any]) -> None:
    """Switches off the filters that were not asked for, where temperature or top_p was: llama.cpp would add top_k 40,
    top_p 0.95 and min_p 0.05. A request that says neither gets llama.cpp's defaults."""
    if "temperature" in body or "top_p" in body:
        for name, off in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)):
            body.setdefault(name, off)


def _seed_of(op: Complete) -> int:
    """The one seed it takes: choice i is drawn with seed + i. Raises GatewayError where that is not what was asked."""
    first = op.seeds[0] % _SEEDS
    if op.seeds != tuple(range(op.seeds[0], op.seeds[0] + len(op.seeds))):
        raise unsupported("seed", NAME, RISING)
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
    """vLLM's `structured_outputs`: one of these."""

    json: Raw = Raw()
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


def _structured(given: Raw) -> Output:
    try:
        found = msgspec.json.decode(given, type=_StructuredIn)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise unsupported("structured_outputs", NAME) from None
    said: list[Output] = []
    if bytes(found.json) not in (b"", b"null"):
        schema = found.json
        if bytes(schema)[:1] == b'"':
            schema = Raw(msgspec.json.decode(schema, type=str).encode())
        if not valid(schema):
            raise unsupported("structured_outputs", NAME)
        said.append(Output("schema", schema))
    if found.regex is not None:
        said.append(Output("regex", pattern=found.regex))
    if found.choice:
        said.append(Output("choice", choices=tuple(found.choice)))
    if found.grammar is not None:
        said.append(Output("grammar", pattern=found.grammar))
    if found.json_object:
        said.append(Output("json"))
    if len(said) != 1:
        raise unsupported("structured_outputs", NAME, "it must hold one constraint")
    return said[0]
