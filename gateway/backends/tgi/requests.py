"""Requests to TGI: the body of `/generate`, parts of the chat body, and refusals of what neither endpoint can do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.core.messages import Chat, Complete, Extra, Message, Output, Sampling, ToolCall
from gateway.wire.openai.requests.parts import put, write_message
from gateway.wire.openai.requests.unsupported import (
    IDLE,
    UNREAD,
    Unread,
    refuse_given,
    refuse_sampling,
    unsupported,
    unwritten,
)
from gateway.wire.openai.requests.views import CHAT_MEMBERS, TEXT_MEMBERS
from gateway.wire.openai.requests.writing import beyond_openai

NAME = "tgi"

MAX_STOPS = 4
"""TGI's default of --max-stop-sequences."""

# Parameters of sampling that TGI lacks -> the values that change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "min_p": (0,),
    "min_tokens": (0,),
    "no_repeat_ngram": (0, 1),
    "ignore_eos": (False,),
    **dict.fromkeys(("logit_bias", "stop_tokens", "eos_tokens", "bad_words", "bad_tokens"), ()),
}
_UNREAD = Unread(UNREAD, IDLE, NAME)
# TGI's own parameters of /generate, which only TGI clients send.
_OWN = frozenset({"adapter_id", "truncate", "typical_p", "watermark"})


def refuse(op: Chat | Complete, rest: dict[str, Any]) -> tuple[str, ...]:
    """Raises GatewayError(UNSUPPORTED) for what neither of TGI's endpoints can do. Removes from `rest`, in place, what
    they would not read, and returns the names."""
    sampling = op.sampling
    negative = sampling.seed is not None and sampling.seed < 0
    refuse_given({"n": op.n > 1, "stop": len(op.stop) > MAX_STOPS, "seed": negative}, NAME)
    refuse_sampling(sampling, _NEUTRAL, NAME)
    return _UNREAD.leave_out(rest, op)


def text_body(op: Complete, rest: Extra) -> dict[str, Any]:
    """The body of `/generate`. Raises GatewayError(UNSUPPORTED) for what that endpoint cannot do."""
    prompt, sampling = op.prompts[0], op.sampling
    if len(op.prompts) != 1 or not isinstance(prompt, str):
        raise unsupported("prompt", NAME)
    refuse_given(beyond_openai(op) | {"suffix": op.suffix is not None, "echo": op.echo}, NAME)
    seed = op.seeds[0] if op.seeds else sampling.seed
    if seed is not None and seed < 0:
        raise unsupported("seed", NAME)
    parameters: dict[str, Any] = {"details": True, "do_sample": not greedy(sampling)}
    if parameters["do_sample"]:
        top_k = sampling.top_k if sampling.top_k is not None and sampling.top_k > 0 else None
        put(parameters, temperature=sampling.temperature, top_k=top_k, top_p=below_one(sampling.top_p))
    put(
        parameters,
        max_new_tokens=op.max_output,
        stop=op.stop or None,
        seed=seed,
        frequency_penalty=sampling.frequency_penalty or None,
        repetition_penalty=sampling.repetition_penalty if sampling.repetition_penalty != 1 else None,
        top_n_tokens=op.logprobs.top or None if op.logprobs is not None else None,
        grammar=grammar_of(op.output) if op.output is not None else None,
    )
    body: dict[str, Any] = {"inputs": prompt, "parameters": parameters}
    for name, raw in rest.items():
        (parameters if name in _OWN else body).setdefault(name, raw)
    return body


def rest_of(op: Chat | Complete) -> dict[str, Any]:
    """The client's top-level members that have no canonical form."""
    known = CHAT_MEMBERS if isinstance(op, Chat) else TEXT_MEMBERS
    given = {**(op.raw or {}), **op.extra}
    return {name: raw for name, raw in given.items() if name not in known}


def left_out(op: Chat | Complete) -> Iterator[str]:
    """The names of members that are neither sent nor refused."""
    yield from unwritten(op)
    if op.user is not None:
        yield "user"
    if isinstance(op, Complete):
        yield from op.unnamed
        return
    yield from (name for name in op.unnamed if "." not in name or name.startswith("response_format."))
    if op.parallel_tools:
        yield "parallel_tool_calls"


def greedy(sampling: Sampling) -> bool:
    """True if the request asks for greedy decoding, without random sampling."""
    return sampling.temperature == 0 or sampling.top_p == 0


def below_one(top_p: float | None) -> float | None:
    """TGI takes top_p between 0 and 1, both excluded. A top_p of 1 changes nothing and is left out."""
    return top_p if top_p is not None and top_p < 1 else None


def grammar_of(output: Output) -> dict[str, Any] | None:
    """TGI's grammar for `output`; None for free text. Raises GatewayError(UNSUPPORTED) if TGI has no such grammar."""
    if output.kind == "text":
        return None
    if output.kind == "schema" and output.schema is not None:
        return {"type": "json", "value": output.schema}
    if output.kind == "regex":
        return {"type": "regex", "value": output.pattern}
    if output.kind == "choice":
        return {"type": "regex", "value": "(" + "|".join(re.escape(choice) for choice in output.choices) + ")"}
    # TGI compiles only schemas with properties; "any JSON object" has none.
    raise unsupported("response_format", NAME)


def split_message(message: Message) -> Iterator[dict[str, Any]]:
    """TGI reads either `content` or `tool_calls` of a message, so a message with both becomes two."""
    calls = tuple(part for part in message.parts if isinstance(part, ToolCall))
    others = tuple(part for part in message.parts if not isinstance(part, ToolCall))
    extra = message.extra
    for parts in (others, calls) if others and calls else (message.parts,):
        written = write_message(msgspec.structs.replace(message, parts=parts, extra=extra))
        extra = None
        if written["content"] is None and "tool_calls" in written:
            del written["content"]
        yield written
