"""Friendli's requests to canonical ones.

An invalid value is refused as BAD_REQUEST, and what no worker can do as UNSUPPORTED.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.core.errors import Kind
from gateway.core.fields import ExtrasPolicy
from gateway.core.messages import Beams, Chat, Complete, Extra, Logprobs, Output, Sampling
from gateway.dialects._shared.faults import unsupported, wrong
from gateway.dialects.friendli.fields import NEVER
from gateway.translation import totals
from gateway.wire.json import bad_value, decoded, encode, typed
from gateway.wire.openai.requests import reading
from gateway.wire.openai.requests.constraints import constrain
from gateway.wire.openai.requests.views import CHAT_MEMBERS, LONGEST_PATTERN
from gateway.wire.unknown import read_known

# The bound of drawn seeds. Every engine accepts them unchanged: llama.cpp's seeds have 32 bits.
_SEEDS = 2**31

_Id = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Ids = Annotated[list[_Id], Meta(min_length=1)]
_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Least = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class _SequenceIn(Struct, forbid_unknown_fields=True):
    tokens: _Ids


_Sequences = Annotated[list[_SequenceIn], Meta(max_length=1024)]


class _FormatIn(Struct, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "regex"]
    schema: str | dict[str, Any] | None = None


class _SharedIn(Struct):
    """Members that OpenAI's wire does not have, or has with another range."""

    repetition_penalty: Annotated[float, Meta(ge=1)] | None = None
    min_tokens: _Least | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_k: _Least | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    timeout_microseconds: Annotated[int, Meta(ge=1, le=10**15)] | None = None


class _CompleteIn(_SharedIn):
    """The members that `read_complete` reads. Others are refused before."""

    model: str | None = None
    prompt: str | None = None
    tokens: _Ids | None = None
    stream: bool | None = None
    max_tokens: _Count | None = None
    max_total_tokens: _Count | None = None
    min_total_tokens: _Least | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    num_beams: Annotated[int, Meta(ge=1, le=31)] | None = None
    length_penalty: float | None = None
    early_stopping: bool | None = None
    no_repeat_ngram: _Least | None = None
    encoder_no_repeat_ngram: _Least | None = None
    encoder_repetition_penalty: Annotated[float, Meta(ge=1)] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    stop: Annotated[list[str], Meta(max_length=64)] | None = None
    stop_tokens: _Sequences | None = None
    seed: _Seed | list[_Seed] | None = None
    token_index_to_replace: list[_Id] | None = None
    embedding_to_replace: list[float] | None = None
    beam_search_type: Literal["DETERMINISTIC", "NAIVE_SAMPLING", "STOCHASTIC"] | None = None
    bad_words: Annotated[list[str], Meta(max_length=1024)] | None = None
    bad_word_tokens: _Sequences | None = None
    include_output_logits: bool | None = None
    include_output_logprobs: bool | None = None
    eos_token: Annotated[list[_Id], Meta(max_length=1024)] | None = None
    response_format: _FormatIn | None = None


class _ChatIn(_SharedIn):
    seed: _Seed | None = None


class _TypeIn(Struct):
    type: str = ""


class _OwnFormatIn(Struct):
    response_format: _FormatIn


_complete = msgspec.json.Decoder(_CompleteIn)
_chat = msgspec.json.Decoder(_ChatIn)
_type = msgspec.json.Decoder(_TypeIn).decode
_own_format = msgspec.json.Decoder(_OwnFormatIn)
_object = msgspec.json.Decoder(dict[str, Any]).decode


def read_complete(raw: Extra, extra: Extra, policy: ExtrasPolicy, draw: Callable[[int], int]) -> Complete:
    never = next((name for name in NEVER if name in raw), None)
    if never is not None:
        raise unsupported(never, "cannot be executed here")
    found, dropped = read_known(raw, _complete, policy, Kind.UNSUPPORTED)
    if (found.prompt is None) == (found.tokens is None):
        raise bad_value("prompt", "exactly one of 'prompt' and 'tokens' is required")
    _refuse(found)
    op = Complete(
        model=found.model,
        prompts=(found.prompt if found.prompt is not None else tuple(found.tokens or ()),),
        stream=bool(found.stream),
        sampling=_sampling(found),
        stop=tuple(found.stop or ()),
        n=found.n or 1,
        seeds=_seeds(found, draw),
        output=_output(found.response_format) if found.response_format is not None else None,
        want_tokens=True,
        logprobs=Logprobs() if found.include_output_logprobs else None,
        timeout=_seconds(found.timeout_microseconds),
        dropped=dropped,
    )
    _read_lengths(op, found)
    _read_beams(op, found)
    op.extra = constrain(op, extra)
    return op


def _refuse(found: _CompleteIn) -> None:
    """Raises GatewayError(UNSUPPORTED) for members that no worker can execute, unless their value changes nothing."""
    for name in ("encoder_no_repeat_ngram", "encoder_repetition_penalty"):
        if (getattr(found, name) or 1) != 1:
            raise unsupported(name, "is only for encoder-decoder models")
    for name in ("token_index_to_replace", "embedding_to_replace", "include_output_logits"):
        if getattr(found, name):
            raise unsupported(name, "cannot be executed here")


def _read_lengths(op: Complete, found: _CompleteIn) -> None:
    """Turns limits on the total length into limits on the output if the prompt is token ids. The length of a text is
    known only to a worker."""
    for kind in ("max", "min"):
        if getattr(found, f"{kind}_tokens") is not None and getattr(found, f"{kind}_total_tokens") is not None:
            raise wrong(f"{kind}_total_tokens", f"and '{kind}_tokens' exclude each other")
    op.max_output = found.max_tokens
    op.max_total, op.min_total = found.max_total_tokens, found.min_total_tokens or None
    if found.tokens is not None or (op.max_total is None and op.min_total is None):
        totals.apply_prompt_length(op, len(found.tokens or ()))


def _read_beams(op: Complete, found: _CompleteIn) -> None:
    if found.num_beams is None:
        if found.early_stopping:
            raise wrong("early_stopping", "is only allowed with 'num_beams'")
        if found.length_penalty not in (None, 1.0):
            raise wrong("length_penalty", "is only allowed with 'num_beams'")
        if found.beam_search_type is not None:
            op.dropped = (*op.dropped, "beam_search_type")
        return
    if op.stream:
        raise wrong("stream", "is not supported with 'num_beams'")
    if op.n != 1:
        raise wrong("n", "is not supported with 'num_beams'")
    if op.stop:
        raise wrong("stop", "is not supported with 'num_beams': use 'stop_tokens'")
    if found.beam_search_type not in (None, "DETERMINISTIC"):
        raise unsupported("beam_search_type", "must be DETERMINISTIC here")
    for name, neutral in (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0)):
        if getattr(found, name) not in (None, neutral):
            raise wrong(name, "is not allowed with deterministic beam search")
    op.beams = Beams(found.num_beams, found.length_penalty, found.early_stopping)


def _seeds(found: _CompleteIn, draw: Callable[[int], int]) -> tuple[int, ...]:
    """One seed for each choice. Seeds that are drawn here are sent too, so that the reply shows the seeds used."""
    n = found.n or 1
    if isinstance(found.seed, list):
        if len(found.seed) != n:
            raise wrong("seed", f"must be one number or a list of as many as 'n', which is {n}")
        return tuple(found.seed)
    first = found.seed if found.seed is not None else draw(_SEEDS)
    return tuple(range(first, first + n))


def _sampling(found: _CompleteIn) -> Sampling:
    """The sampling parameters, with the specification's defaults filled in: engines have others."""
    return Sampling(
        temperature=1.0 if found.temperature is None else found.temperature,
        top_k=found.top_k or 0,
        top_p=1.0 if found.top_p is None else found.top_p,
        frequency_penalty=found.frequency_penalty,
        presence_penalty=found.presence_penalty,
        repetition_penalty=found.repetition_penalty,
        min_tokens=found.min_tokens or None,
        no_repeat_ngram=found.no_repeat_ngram,
        stop_tokens=tuple(token for sequence in found.stop_tokens or () for token in sequence.tokens),
        eos_tokens=tuple(found.eos_token or ()),
        bad_words=tuple(found.bad_words or ()),
        bad_tokens=tuple(tuple(sequence.tokens) for sequence in found.bad_word_tokens or ()),
    )


def _output(found: _FormatIn) -> Output:
    schema = found.schema
    if found.type == "text":
        if schema is not None:
            raise wrong("response_format.schema", "has no meaning for type text")
        return Output("text")
    if found.type == "regex":
        if not isinstance(schema, str):
            raise wrong("response_format.schema", "must be the regular expression")
        if len(schema) > LONGEST_PATTERN:
            raise wrong("response_format.schema", f"must have at most {LONGEST_PATTERN} characters")
        return Output("regex", pattern=schema)
    if schema is None:
        return Output("json")
    parsed = decoded(_object, schema) if isinstance(schema, str) else schema
    if parsed is None:
        raise wrong("response_format.schema", "must be a JSON schema, serialized")
    return Output("schema", Raw(encode(parsed)))


def _seconds(microseconds: int | None) -> float | None:
    return microseconds / 1e6 if microseconds is not None else None


def read_chat(raw: Extra, extra: Extra, policy: ExtrasPolicy) -> Chat:
    own = typed(encode(raw), _chat)
    # OpenAI's temperatures end at 2. In this dialect the worker checks the range.
    shared = {name: value for name, value in raw.items() if name in CHAT_MEMBERS and name != "temperature"}
    extra = {name: value for name, value in extra.items() if name not in shared}
    output, dropped = _chat_output(raw, policy)
    if output is not None:
        del shared["response_format"]
    op = reading.read_chat(encode(shared), {}, extra, dropped, policy, Kind.UNSUPPORTED)
    op.raw = op.wire = None
    op.output = output or op.output
    op.timeout = _seconds(own.timeout_microseconds)
    if op.max_output is not None and (own.min_tokens or 0) > op.max_output:
        raise wrong("min_tokens", "asks for more than the greatest length allows")
    op.sampling = msgspec.structs.replace(
        op.sampling,
        temperature=1.0 if own.temperature is None else own.temperature,
        top_p=1.0 if own.top_p is None else own.top_p,
        top_k=own.top_k or 0,
        repetition_penalty=own.repetition_penalty,
        min_tokens=own.min_tokens,
    )
    return op


def _chat_output(raw: Extra, policy: ExtrasPolicy) -> tuple[Output | None, tuple[str, ...]]:
    """(the output format, if it is in Friendli's form; else None, the names of dropped members)."""
    given = raw.get("response_format")
    found = decoded(_type, given) if given is not None else None
    if given is None or found is None or found.type == "json_schema":
        return None, ()
    own, dropped = read_known({"response_format": given}, _own_format, policy, Kind.UNSUPPORTED)
    return _output(own.response_format), dropped
