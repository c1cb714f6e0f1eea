"""Requests of TGI's `/generate` and its kin in their canonical form."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.core.fields import ExtrasPolicy
from gateway.core.http import Request
from gateway.core.messages import Complete, Extra, Logprobs, Output, Sampling
from gateway.dialects._shared.api import Api
from gateway.dialects._shared.faults import unsupported, wrong
from gateway.dialects._shared.objects import take_object
from gateway.dialects.tgi.fields import PARAMETERS
from gateway.wire.json import NULL, check_depth, decoded, encode, typed
from gateway.wire.openai.requests.constraints import CONSTRAINTS, constrain

_Open = Annotated[float, Meta(gt=0, le=1)]
_MOST_BEST = 2
# Parameters that vLLM has too, under the same name and at the top level.
_BESIDE = PARAMETERS & CONSTRAINTS["complete"]
# A seed is unsigned here, and signed for workers.
_SEED_BITS = 2**63 - 1


class GrammarIn(Struct):
    type: str
    value: Raw = NULL


class ParametersIn(Struct):
    """`parameters`, with TGI's ranges, but `top_p` may be 1: clients send it for "off"."""

    max_new_tokens: Annotated[int, Meta(gt=0, le=2**31 - 1)] | None = None
    do_sample: bool | None = None
    temperature: Annotated[float, Meta(gt=0, le=2)] | None = None
    top_k: Annotated[int, Meta(gt=0, le=2**31 - 1)] | None = None
    top_p: _Open | None = None
    typical_p: _Open | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    seed: Annotated[int, Meta(ge=0)] | None = None
    stop: Annotated[list[str], Meta(max_length=4)] | None = None
    truncate: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    return_full_text: bool | None = None
    best_of: Annotated[int, Meta(gt=0, le=_MOST_BEST)] | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    top_n_tokens: Annotated[int, Meta(ge=0, le=5)] | None = None
    grammar: GrammarIn | None = None
    watermark: bool | None = None
    adapter_id: str | None = None


class BodyIn(Struct):
    inputs: Annotated[str, Meta(min_length=1)]
    stream: bool | None = None
    model: str | None = None


class _Inside(Struct):
    parameters: ParametersIn


_body = msgspec.json.Decoder(BodyIn)
_inside = msgspec.json.Decoder(_Inside)


class ReplyFacts(Struct, frozen=True):
    """The facts of a request that its reply needs.

    listed   the whole reply is a list
    details  the client asked for them
    full     the inputs stand before the text
    """

    listed: bool
    details: bool
    full: bool


def read(request: Request, raw: Extra, api: Api) -> Complete:
    """Raises GatewayError (BAD_REQUEST, UNSUPPORTED)."""
    given = "parameters" in raw
    parameters, left = _parameters(raw, api.extras)
    extra, dropped = api.settle(raw, "complete")
    found = typed(encode(raw), _body)
    stream = request.route == "generate_stream" or (request.route == "root" and bool(found.stream))
    sampled = not given or _samples(parameters)
    _refuse(parameters, stream, sampled)
    facts = ReplyFacts(request.route == "root", bool(parameters.details), bool(parameters.return_full_text))
    best_of = parameters.best_of or 1
    seed = parameters.seed
    op = Complete(
        model=parameters.adapter_id or found.model,
        prompts=(found.inputs,),
        stream=stream,
        include_usage=True,
        max_output=parameters.max_new_tokens,
        sampling=Sampling(
            temperature=parameters.temperature or 1.0 if sampled else 0.0,
            top_p=parameters.top_p,
            top_k=parameters.top_k,
            seed=seed & _SEED_BITS if seed is not None else None,
            repetition_penalty=parameters.repetition_penalty,
            frequency_penalty=parameters.frequency_penalty,
        ),
        stop=tuple(text for text in parameters.stop or () if text),
        n=best_of,
        output=_output(parameters.grammar),
        memo=facts,
    )
    if stream or facts.details:
        op.want_tokens = True
    if stream or facts.details or best_of > 1:
        op.logprobs = Logprobs()
    if parameters.truncate is not None:
        extra = {**extra, "truncate_prompt_tokens": Raw(b"%d" % parameters.truncate)}
    op.extra = constrain(op, extra)
    op.dropped = (*dropped, *left)
    return op


def _parameters(raw: Extra, policy: ExtrasPolicy) -> tuple[ParametersIn, list[str]]:
    """(the parameters, the names of those that have no place). Parameters that stand in `raw`, the members of the body,
    count as if they stood among the parameters."""
    beside = {name: raw.pop(name) for name in _BESIDE.intersection(raw)} if policy != "error" else {}
    own: Extra = {}
    left: list[str] = []
    if "parameters" in raw:
        own, left = take_object(raw, "parameters", PARAMETERS, (), policy, "complete")
    if not own and not beside:
        return ParametersIn(), left
    twice = next((name for name in beside if name in own), None)
    if twice is not None:
        raise wrong(f"parameters.{twice}", f"and '{twice}' are the same: send one of them")
    read = typed(encode({"parameters": own | beside}), _inside).parameters
    return read, [*left, *(f"parameters.{name}" for name in ("typical_p", "watermark") if getattr(read, name))]


def _samples(parameters: ParametersIn) -> bool:
    """TGI also samples without `do_sample`, if another parameter for sampling is given."""
    given = (parameters.temperature, parameters.top_k, parameters.top_p, parameters.typical_p)
    return bool(parameters.do_sample) or any(value is not None for value in given)


def _refuse(parameters: ParametersIn, stream: bool, sampled: bool) -> None:
    if parameters.best_of is not None and parameters.best_of > 1:
        beside = "a stream" if stream else "a seed" if parameters.seed is not None else "" if sampled else "no sampling"
        if beside:
            raise wrong("parameters.best_of", f"does not go with {beside}")
    for name in ("decoder_input_details", "top_n_tokens"):
        if getattr(parameters, name):
            raise unsupported(f"parameters.{name}", "is not supported: no worker returns what it asks for")


def _output(grammar: GrammarIn | None) -> Output | None:
    """A constraint, or a refusal: it is never dropped."""
    if grammar is None:
        return None
    if grammar.type in ("json", "json_schema", "json_object"):
        value = grammar.value
        if grammar.type == "json_object" and value == NULL:
            return Output("json")
        wrapped = _schema_in(value)
        if wrapped is not None:
            check_depth({"parameters.grammar": wrapped})
            return Output("schema", wrapped, name="output", strict=True)
    if grammar.type == "regex" and bytes(memoryview(grammar.value)[:1]) == b'"':
        return Output("regex", pattern=msgspec.json.decode(grammar.value, type=str))
    raise wrong("parameters.grammar", "must be of type json with a schema, or of type regex with a pattern")


def _schema_in(value: Raw) -> Raw | None:
    """A JSON schema: the value itself, or its text; `json_schema` has it in a member `schema`."""
    found: Any = decoded(msgspec.json.decode, value)
    if isinstance(found, str):
        return _schema_in(Raw(found.encode()))
    if not isinstance(found, dict):
        return None
    return Raw(encode(found["schema"])) if isinstance(found.get("schema"), dict) and "type" not in found else value
