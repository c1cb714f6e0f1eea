"""Constraints of OpenAI's and vLLM's wire on an answer. A client of any dialect may send these members, and each
is obeyed or refused: an answer that ignores it looks like one that obeys it.

Source: vLLM 0.33's protocols of chats, completions, responses, messages and embeddings (see tests/acceptance/engine).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from gateway.core.errors import GatewayError, Kind
from gateway.core.messages import Chat, Complete, Extra, Sampling
from gateway.wire.json import bad_value, encode
from gateway.wire.openai.requests import reading
from gateway.wire.openai.requests.bounds import refuse_out_of_range
from gateway.wire.openai.requests.views import TextBody

ENGINE: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "detokenize": (True,),
    "documents": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "media_io_kwargs": ({},),
    "mm_payload": (),
    "mm_processor_kwargs": ({},),
    "prompt_embeds": (),
    "repetition_detection": (),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "thinking_token_budget": (-1,),
    "truncate_prompt_tokens": (-1,),
    "truncation_side": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermarking": (False,),
}
"""Members without a canonical form that change the answer, each with the values that change nothing. Other engines
silently ignore most of them."""

OPENAI: Mapping[str, tuple[Any, ...]] = {
    "modalities": (["text"],),
}
"""Members of OpenAI's own service that ask for another reply, and that no engine reads, in the same form."""

REPORTS: Mapping[str, tuple[Any, ...]] = {
    "include_reasoning": (True, False),  # there is none
    "kv_transfer_params": (),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
}
"""Members that add something to the reply, in the same form. A dialect whose replies have no place for it may drop
them."""

_SHARED = frozenset(Sampling.__struct_fields__).intersection(TextBody.__struct_fields__)
_SHARED |= {"stop", "stop_token_ids", "n", "max_tokens", "max_completion_tokens", "response_format"}
_CANONICAL = {Chat: _SHARED | {"best_of"}, Complete: _SHARED | {"best_of", "echo", "suffix"}}

CONSTRAINTS: Mapping[str, frozenset[str]] = {
    "chat": _CANONICAL[Chat] | ENGINE.keys() | OPENAI.keys() | {"echo"},
    "complete": _CANONICAL[Complete] | ENGINE.keys() | OPENAI.keys(),
    "embed": frozenset({"instruction", "normalize", "truncate_prompt_tokens", "truncation_side", "use_activation"})
    | {"add_special_tokens", "chat_template", "chat_template_kwargs", "mm_processor_kwargs"},
}
"""Operation -> the names of the members that change its answer."""


class _Members(TextBody):
    max_completion_tokens: int | None = None


_members = msgspec.json.Decoder(_Members)


def constrain(op: Chat | Complete, extra: Extra) -> Extra:
    """Applies to `op` those members of `extra` that constrain the answer and have a canonical form. Returns the others.

    Raises GatewayError: BAD_REQUEST for a value out of range, and for one beside another value under the dialect's own
    name; UNSUPPORTED for several replies in one.
    """
    if not extra:
        return extra
    refuse_out_of_range(extra, extra)
    names = _CANONICAL[type(op)]
    given = {name: raw for name, raw in extra.items() if name in names}
    if not given:
        return extra
    found = reading.typed_body(encode(given), _members)
    for name, wanted in (("n", op.n), ("best_of", op.n)):
        if getattr(found, name) not in (None, wanted):
            message = f"'{name}' must be {wanted} here: a reply has one message"
            raise GatewayError(Kind.UNSUPPORTED, message, param=name)
    own = asdict(op.sampling)
    other = {name: value for name, value in asdict(reading.read_sampling(found)).items() if value not in _UNSET}
    op.sampling = replace(op.sampling, **{name: _one(_WIRE.get(name, name), own[name], other[name]) for name in other})
    op.stop = _one("stop", op.stop, reading.read_stop(found))
    op.max_output = _one("max_tokens", op.max_output, found.max_completion_tokens or found.max_tokens)
    op.output = _one("response_format", op.output, reading.read_output(found.response_format))
    if isinstance(op, Complete):
        op.suffix = _one("suffix", op.suffix, found.suffix)
        op.echo = op.echo or bool(found.echo)
    return {name: raw for name, raw in extra.items() if name not in given}


def lift(inside: Extra, raw: Extra, around: str, operation: str) -> Extra:
    """Moves the constraints among the unknown members `inside` an object to `raw`, the members of the body. Returns the
    others. around: the name of the object, for the error. Raises GatewayError(BAD_REQUEST) for a member that stands in
    both places."""
    moved = {name: value for name, value in inside.items() if name in CONSTRAINTS[operation]}
    twice = next((name for name in moved if name in raw), None)
    if twice is not None:
        param = f"{around}.{twice}"
        raise bad_value(param, f"'{param}' and '{twice}' are the same: send one of them")
    raw |= moved
    return {name: value for name, value in inside.items() if name not in moved}


_UNSET: Collection[Any] = (None, ())
_WIRE = {"stop_tokens": "stop_token_ids"}


def _one(name: str, own: Any, other: Any) -> Any:
    """The value that was given, under the dialect's own name (`own`) or vLLM's (`other`)."""
    if own in _UNSET or other in _UNSET or own == other:
        return own if other in _UNSET else other
    raise bad_value(name, f"'{name}' is given twice, with two values and under two names: send one of them")
