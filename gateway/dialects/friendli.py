"""Friendli: text completions in its own events, and chats, streamed and whole.

Sources: "Text completions" of Friendli's API reference (docs/dialects/friendli.md); friendli-client 1.5.8 and friendli
0.16.3 as recorded clients; the names of the fields from the former's `V1CompletionsRequest`. What a worker cannot do is
a 422, what makes no sense a 400, and nothing is ignored in silence.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, End, Event, Failed, Finish, PartStart, UsageReport
from gateway.core.fields import Field, settle_extras
from gateway.core.http import JSON_TYPE, Request, Response, Route
from gateway.core.lifecycle import Embeddings, Reply, ReplyChoice
from gateway.core.messages import (
    Beams,
    Chat,
    Complete,
    Embed,
    Generate,
    ListModels,
    Logprobs,
    ModelCard,
    NamedTool,
    Op,
    Output,
    Sampling,
)
from gateway.core.ports import Lane, Settings, StreamWriter
from gateway.core.usage import Usage
from gateway.wire import openai_replies as replies
from gateway.wire import openai_requests as requests
from gateway.wire import sse
from gateway.wire.json import NULL, check_depth, encode, members, require_json, typed

_TEAM = Field("X-Friendli-Team", "ignored", note="header; a key belongs to one team")
_MODEL = Field("model", "consumed", note="names the pool; null is the default model", sample="m")
_TIMEOUT = Field(
    "timeout_microseconds", "emulated", note="429 before the first byte, else an error event", sample=60_000_000
)
_ENCODER = "unless 1: only for encoder-decoder models, of which none is served"
_UNKNOWN = "in no specification, only in friendli-client"

FATES: Mapping[str, Sequence[Field]] = {
    "complete": (
        _TEAM,
        Field("prompt", "mapped", note="exactly one of prompt and tokens, else 400", sample="hi"),
        Field("tokens", "renamed", to="prompt", note="token ids", sample=[1, 2, 3]),
        _MODEL,
        Field("stream", "mapped", note="400 with num_beams", sample=True),
        _TIMEOUT,
        Field("max_tokens", "mapped", note="absent: as many as the context holds, said aloud", sample=16),
        Field(
            "max_total_tokens",
            "emulated",
            to="max_tokens",
            note="less the prompt's length, known for tokens only: 422 with prompt; 400 with max_tokens",
            sample=32,
        ),
        Field("min_tokens", "mapped", sample=1),
        Field(
            "min_total_tokens",
            "emulated",
            to="min_tokens",
            note="as max_total_tokens; 400 with min_tokens",
            sample=8,
        ),
        Field("n", "mapped", note="400 with num_beams unless 1", sample=2),
        Field(
            "num_beams", "renamed", to="use_beam_search, n", note="1 to 31; the best beam is the one choice", sample=4
        ),
        Field("length_penalty", "mapped", note="with num_beams, else 400 unless 1", sample=1.5),
        Field("early_stopping", "refused", note="unless false: vLLM has none; 400 without num_beams", sample=True),
        Field(
            "no_repeat_ngram",
            "refused",
            note="unless 0 or 1: vLLM has none; mapped where its workers run our logits processor",
            sample=3,
        ),
        Field("encoder_no_repeat_ngram", "refused", note=_ENCODER, sample=3),
        Field("repetition_penalty", "mapped", note="at least 1", sample=1.1),
        Field("encoder_repetition_penalty", "refused", note=_ENCODER, sample=1.1),
        Field("frequency_penalty", "mapped", sample=0.5),
        Field("presence_penalty", "mapped", sample=0.5),
        Field("temperature", "mapped", note="1 is sent when absent", sample=0.5),
        Field("top_k", "mapped", note="0, no filter, is sent when absent", sample=5),
        Field("top_p", "mapped", note="1 is sent when absent", sample=0.9),
        Field("stop", "mapped", note="400 with num_beams", sample=["END"]),
        Field(
            "stop_tokens",
            "renamed",
            to="stop_token_ids",
            note="the ids of all entries: any one of them ends the choice",
            sample=[{"tokens": [7]}],
        ),
        Field("seed", "mapped", note="drawn when absent; a list must rise by one, else 422", sample=42),
        Field("token_index_to_replace", "refused", note="unless empty", sample=[0]),
        Field("embedding_to_replace", "refused", note="unless empty", sample=[0.5]),
        Field(
            "beam_search_type",
            "consumed",
            note="DETERMINISTIC only, else 422; ignored without num_beams, as specified",
            sample="DETERMINISTIC",
        ),
        Field("bad_words", "mapped", sample=["x"]),
        Field(
            "bad_word_tokens",
            "renamed",
            to="logit_bias",
            note="entries of one id; longer ones 422, mapped where the workers run our logits processor",
            sample=[{"tokens": [5]}],
        ),
        Field("include_output_logits", "refused", note="unless false", sample=True),
        Field("include_output_logprobs", "renamed", to="logprobs", note="answered in choices[].logprobs", sample=True),
        Field("eos_token", "renamed", to="stop_token_ids", note="beside the model's own", sample=[2]),
        Field(
            "response_format",
            "renamed",
            to="response_format or structured_outputs",
            note="text, json_object with or without schema, regex",
            sample={"type": "json_object"},
        ),
        Field("beam_compat_pre_normalization", "refused", note=_UNKNOWN, sample=True),
        Field("beam_compat_no_post_normalization", "refused", note=_UNKNOWN, sample=True),
        Field("forced_output_tokens", "refused", note=_UNKNOWN, sample=[1]),
        Field("soft_prompts", "refused", note=_UNKNOWN, sample=[0.5]),
        Field("position_ids", "refused", note=_UNKNOWN, sample=[0]),
        Field("generation_offset", "refused", note=_UNKNOWN, sample=1),
    ),
    "chat": (
        _TEAM,
        Field("messages", "mapped", sample=[{"role": "user", "content": "hi"}]),
        _MODEL,
        Field("stream", "mapped", sample=True),
        Field("stream_options", "consumed", note="the usage chunk comes only if it is asked for here"),
        Field("frequency_penalty", "mapped", sample=0.5),
        Field("presence_penalty", "mapped", sample=0.5),
        Field("repetition_penalty", "mapped", note="at least 1", sample=1.1),
        Field("max_tokens", "mapped", sample=16),
        Field("min_tokens", "mapped", sample=1),
        Field("n", "mapped", sample=2),
        Field("stop", "mapped", sample=["END"]),
        Field("seed", "mapped", sample=7),
        Field("temperature", "mapped", note="1 is sent when absent", sample=0.5),
        Field("top_p", "mapped", note="1 is sent when absent", sample=0.9),
        Field("top_k", "mapped", note="0, no filter, is sent when absent", sample=5),
        Field("logit_bias", "mapped", sample={"42": -1.0}),
        Field("logprobs", "mapped", sample=True),
        Field("top_logprobs", "mapped", note="with logprobs", sample=2),
        _TIMEOUT,
        Field(
            "tools",
            "mapped",
            note="an empty array is dropped",
            sample=[{"type": "function", "function": {"name": "f"}}],
        ),
        Field("tool_choice", "mapped", note="auto and none are dropped without tools", sample="auto"),
        Field("parallel_tool_calls", "mapped", note="dropped without tools", sample=False),
        Field(
            "response_format",
            "renamed",
            to="response_format or structured_outputs",
            note="as for text completions, and json_schema as OpenAI has it",
            sample={"type": "json_object"},
        ),
    ),
}
_KNOWN = {operation: frozenset(field.name for field in fields) for operation, fields in FATES.items()}
_NEVER = tuple(field.name for field in FATES["complete"] if field.note is _UNKNOWN)

ERRORS: Mapping[Kind, tuple[int, str, str]] = {
    **replies.ERRORS,
    Kind.UNSUPPORTED: (422, "unprocessable_request_error", Kind.UNSUPPORTED.value),
    Kind.TIMEOUT: (504, "timeout_error", Kind.TIMEOUT.value),
}
"""But a deadline of the client's own is a 429, and a worker's refusal of a field that is named a 422: see `refuse`."""

# Names that backends use in their errors, and ours.
_RENAMED = {
    "eos_tokens": "eos_token",
    "stop_token_ids": "stop_tokens",
    "bad_tokens": "bad_word_tokens",
    "logit_bias": "bad_word_tokens",
    "structured_outputs": "response_format",
    "logprobs": "include_output_logprobs",
}
# The client types every other word as an error.
_REASONS = {"content_filter": "stop"}
# Of drawn seeds. Every engine takes them as they are: llama.cpp's have 32 bits.
_SEEDS = 2**31

_Id = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Ids = Annotated[list[_Id], Meta(min_length=1)]
_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Least = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Repetition = Annotated[float, Meta(ge=1)]
_Microseconds = Annotated[int, Meta(ge=1, le=10**15)]
_Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Choices = Annotated[int, Meta(ge=1, le=128)]


class _SequenceIn(Struct):
    tokens: _Ids


class _FormatIn(Struct, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "regex"]
    schema: str | dict[str, Any] | None = None


class _CompleteIn(Struct):
    """What `_read_complete` looks at; the rest is refused before."""

    model: str | None = None
    prompt: str | None = None
    tokens: _Ids | None = None
    stream: bool | None = None
    timeout_microseconds: _Microseconds | None = None
    max_tokens: _Count | None = None
    max_total_tokens: _Count | None = None
    min_tokens: _Least | None = None
    min_total_tokens: _Least | None = None
    n: _Choices | None = None
    num_beams: Annotated[int, Meta(ge=1, le=31)] | None = None
    length_penalty: float | None = None
    early_stopping: bool | None = None
    no_repeat_ngram: _Least | None = None
    encoder_no_repeat_ngram: _Least | None = None
    repetition_penalty: _Repetition | None = None
    encoder_repetition_penalty: _Repetition | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_k: _Least | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    stop: list[str] | None = None
    stop_tokens: list[_SequenceIn] | None = None
    seed: _Seed | list[_Seed] | None = None
    token_index_to_replace: list[_Id] | None = None
    embedding_to_replace: list[float] | None = None
    beam_search_type: Literal["DETERMINISTIC", "NAIVE_SAMPLING", "STOCHASTIC"] | None = None
    bad_words: list[str] | None = None
    bad_word_tokens: list[_SequenceIn] | None = None
    include_output_logits: bool | None = None
    include_output_logprobs: bool | None = None
    eos_token: list[_Id] | None = None
    response_format: _FormatIn | None = None


class _ChatIn(Struct):
    """What of a chat OpenAI's wire does not know, or otherwise."""

    repetition_penalty: _Repetition | None = None
    min_tokens: _Least | None = None
    top_k: _Least | None = None
    timeout_microseconds: _Microseconds | None = None
    response_format: Raw = NULL


class _TypeIn(Struct):
    type: str = ""


_complete = msgspec.json.Decoder(_CompleteIn)
_chat = msgspec.json.Decoder(_ChatIn)
_format = msgspec.json.Decoder(_FormatIn)
_type = msgspec.json.Decoder(_TypeIn)


class Friendli:
    """The dialect `friendli`."""

    name = "friendli"
    prefixes: tuple[str, ...] = ("/friendli",)
    routes: tuple[Route, ...] = (
        Route("POST", "/v1/completions", "complete"),
        Route("POST", "/v1/chat/completions", "chat"),
    )
    fates = FATES
    errors = ERRORS
    # Not the bytes lane: its events are its own, and its chats have defaults and reasons of their own.
    wire: str | None = None

    def __init__(self, settings: Settings) -> None:
        self.prefixes = settings.prefixes if settings.prefixes is not None else type(self).prefixes
        self.extras = settings.extras or "error"

    # -- requests ---------------------------------------------------------------------------------------------------

    def read(self, request: Request) -> Op:
        require_json(request)
        raw = members(request)
        known = _KNOWN[request.route]
        kept, dropped = settle_extras(self.extras, (name for name in raw if name not in known), kind=Kind.UNSUPPORTED)
        extra = {name: raw[name] for name in kept}
        check_depth(extra)
        if request.header(b"x-friendli-team") is not None:
            dropped = (*dropped, _TEAM.name)
        op: Chat | Complete = (
            _read_chat(raw, extra) if request.route == "chat" else _read_complete(request.body, raw, extra)
        )
        op.dropped = (*dropped, *op.dropped)
        return op

    # -- replies ----------------------------------------------------------------------------------------------------

    def write(self, reply: Reply | Embeddings, op: Op) -> Response:
        """One body for both SDKs: beside the specification's fields, friendli 0.16.3 requires id and finish_reason."""
        assert isinstance(reply, Reply)
        start = reply.start
        body: dict[str, Any] = {
            "id": start.id,
            "object": "chat.completion" if isinstance(op, Chat) else "text_completion",
            "model": replies.shown(op, start.model),
            "created": start.created,
        }
        if isinstance(op, Complete):
            # Of a beam search, the best beam.
            found = reply.choices[:1] if op.beams is not None else reply.choices
            body["choices"] = [
                _choice(op, choice.index, choice.text() or "", choice.tokens, choice.reason, choice.logprobs)
                for choice in found
            ]
            counted = Usage(output=sum(len(choice.tokens) for choice in found)) if op.beams is not None else None
            body["usage"] = _usage(op, reply.usage, counted)
        else:
            body["choices"] = [_chat_choice(choice) for choice in reply.choices]
            body["usage"] = replies.write_usage(reply.usage or Usage())
        return Response(200, [JSON_TYPE], encode(body))

    def writer(self, op: Generate) -> StreamWriter:
        return Writer(op, self) if isinstance(op, Complete) else _ChatWriter(op, self.error_event)

    def relay(self, op: Generate) -> Lane:
        raise NotImplementedError("this dialect has no bytes lane")

    def relay_whole(self, response: Response, op: Generate | Embed) -> tuple[Response, Usage | None]:
        raise NotImplementedError("this dialect has no bytes lane")

    def models(self, cards: Sequence[ModelCard], op: ListModels) -> Response:
        raise NotImplementedError("this dialect lists no models")

    # -- errors -----------------------------------------------------------------------------------------------------

    def error_object(self, error: GatewayError) -> dict[str, Any]:
        _, type_, code = self.errors[error.kind]
        return {"message": error.message, "type": type_, "param": error.param, "code": error.code or code}

    def error_event(self, error: GatewayError, op: Op | None = None) -> bytes:
        """friendli-client raises InvalidGenerationError at it, and its text holds what is said here."""
        _in_our_words(error, op)
        said = self.error_object(error)
        return sse.frame(encode({"event": "error", "message": error.message, "error": said}))

    def refuse(self, error: GatewayError, request: Request | None, op: Op | None) -> Response:
        _in_our_words(error, op)
        status = 429 if error.param == _TIMEOUT.name and error.kind is Kind.TIMEOUT else self.errors[error.kind][0]
        body = {"error": self.error_object(error)}
        return Response(status, [JSON_TYPE, *replies.error_headers(error, status)], encode(body))


# -- requests to canonical ------------------------------------------------------------------------------------------


def _senseless(param: str, why: str) -> GatewayError:
    return GatewayError(Kind.BAD_REQUEST, f"'{param}' {why}", param=param, code="invalid_value")


def _beyond(param: str, why: str) -> GatewayError:
    return GatewayError(Kind.UNSUPPORTED, f"'{param}' {why}", param=param)


def _read_complete(body: bytes, raw: dict[str, Raw], extra: dict[str, Raw]) -> Complete:
    for name in _NEVER:
        if name in raw:
            raise _beyond(name, "cannot be executed here")
    found = typed(body, _complete)
    if (found.prompt is None) == (found.tokens is None):
        raise GatewayError(
            Kind.BAD_REQUEST, "exactly one of 'prompt' and 'tokens' is required", param="prompt", code="invalid_value"
        )
    _refuse(found)
    op = Complete(
        model=found.model,
        prompts=(found.prompt if found.prompt is not None else tuple(found.tokens or ()),),
        stream=bool(found.stream),
        sampling=_sampling(found),
        stop=tuple(found.stop or ()),
        n=found.n or 1,
        seeds=_seeds(found),
        output=_output(found.response_format) if found.response_format is not None else None,
        want_tokens=True,
        logprobs=Logprobs() if found.include_output_logprobs else None,
        timeout=_seconds(found.timeout_microseconds),
        extra=extra,
    )
    _read_lengths(op, found)
    _read_beams(op, found)
    return op


def _refuse(found: _CompleteIn) -> None:
    """What no worker behind us can do, unless the value says that it need not."""
    for name in ("encoder_no_repeat_ngram", "encoder_repetition_penalty"):
        if (getattr(found, name) or 1) != 1:
            raise _beyond(name, "is only for encoder-decoder models")
    for name in ("token_index_to_replace", "embedding_to_replace", "include_output_logits"):
        if getattr(found, name):
            raise _beyond(name, "cannot be executed here")


def _read_lengths(op: Complete, found: _CompleteIn) -> None:
    """Totals are what is left of them behind a prompt of token ids; of a text only a worker knows the length."""
    for kind in ("max", "min"):
        if getattr(found, f"{kind}_tokens") is not None and getattr(found, f"{kind}_total_tokens") is not None:
            raise _senseless(f"{kind}_total_tokens", f"and '{kind}_tokens' exclude each other")
    op.max_output, least = found.max_tokens, found.min_tokens
    for name in ("max_total_tokens", "min_total_tokens"):
        if found.tokens is None and getattr(found, name):
            raise _beyond(name, "needs the prompt as 'tokens': the length of a text is not known here")
    length = len(found.tokens or ())
    if found.max_total_tokens is not None:
        op.max_output = found.max_total_tokens - length
        if op.max_output < 1:
            raise _senseless("max_total_tokens", f"leaves nothing to generate after {length} tokens")
    if found.min_total_tokens:
        least = max(0, found.min_total_tokens - length)
    if least:
        if op.max_output is not None and least > op.max_output:
            name = "min_tokens" if found.min_tokens is not None else "min_total_tokens"
            raise _senseless(name, "asks for more than the greatest length allows")
        op.sampling = msgspec.structs.replace(op.sampling, min_tokens=least)


def _read_beams(op: Complete, found: _CompleteIn) -> None:
    if found.num_beams is None:
        if found.early_stopping:
            raise _senseless("early_stopping", "is only allowed with 'num_beams'")
        if found.length_penalty not in (None, 1.0):
            raise _senseless("length_penalty", "is only allowed with 'num_beams'")
        if found.beam_search_type is not None:
            op.dropped = ("beam_search_type",)
        return
    if op.stream:
        raise _senseless("stream", "is not supported with 'num_beams'")
    if op.n != 1:
        raise _senseless("n", "is not supported with 'num_beams'")
    if op.stop:
        raise _senseless("stop", "is not supported with 'num_beams': use 'stop_tokens'")
    if found.beam_search_type not in (None, "DETERMINISTIC"):
        raise _beyond("beam_search_type", "must be DETERMINISTIC here")
    for name, neutral in (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0)):
        if getattr(found, name) not in (None, neutral):
            raise _senseless(name, "is not allowed with deterministic beam search")
    op.beams = Beams(found.num_beams, found.length_penalty, found.early_stopping)


def _seeds(found: _CompleteIn) -> tuple[int, ...]:
    """One seed for each choice. Drawn ones are sent too, so that what is returned is what was used."""
    n = found.n or 1
    if isinstance(found.seed, list):
        if len(found.seed) != n:
            raise _senseless("seed", f"must be one number or a list of as many as 'n', which is {n}")
        return tuple(found.seed)
    first = found.seed if found.seed is not None else secrets.randbelow(_SEEDS)
    return tuple(range(first, first + n))


def _sampling(found: _CompleteIn) -> Sampling:
    """The specification's defaults are said aloud: engines have others, from the model's files or their own."""
    return Sampling(
        temperature=1.0 if found.temperature is None else found.temperature,
        top_k=found.top_k or 0,
        top_p=1.0 if found.top_p is None else found.top_p,
        frequency_penalty=found.frequency_penalty,
        presence_penalty=found.presence_penalty,
        repetition_penalty=found.repetition_penalty,
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
            raise _senseless("response_format.schema", "has no meaning for type text")
        return Output("text")
    if found.type == "regex":
        if not isinstance(schema, str):
            raise _senseless("response_format.schema", "must be the regular expression")
        return Output("regex", pattern=schema)
    if schema is None:
        return Output("json")
    try:
        parsed = msgspec.json.decode(schema, type=dict[str, Any]) if isinstance(schema, str) else schema
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise _senseless("response_format.schema", "must be a JSON schema, serialized") from None
    return Output("schema", Raw(encode(parsed)))


def _seconds(microseconds: int | None) -> float | None:
    return microseconds / 1e6 if microseconds is not None else None


def _read_chat(raw: dict[str, Raw], extra: dict[str, Raw]) -> Chat:
    own = typed(encode(raw), _chat)
    shared = {name: value for name, value in raw.items() if name in requests.CHAT_MEMBERS}
    output = _chat_output(own.response_format)
    if output is not None:
        del shared["response_format"]
    op = requests.read_chat(encode(shared), {}, extra, ())
    op.raw = op.wire = None
    op.output = output or op.output
    op.timeout = _seconds(own.timeout_microseconds)
    sampling = op.sampling
    op.sampling = msgspec.structs.replace(
        sampling,
        temperature=1.0 if sampling.temperature is None else sampling.temperature,
        top_p=1.0 if sampling.top_p is None else sampling.top_p,
        top_k=own.top_k or 0,
        repetition_penalty=own.repetition_penalty,
        min_tokens=own.min_tokens,
    )
    # The client says `auto` whether there are tools or not.
    if not op.tools:
        if op.tool_choice == "required" or isinstance(op.tool_choice, NamedTool):
            raise _senseless("tool_choice", "asks for a tool, but there are no 'tools'")
        op.tool_choice = op.parallel_tools = None
    return op


def _chat_output(raw: Raw) -> Output | None:
    """The output format in Friendli's form; None where there is none or it is in OpenAI's."""
    if raw == NULL or typed(bytes(raw), _type).type == "json_schema":
        return None
    try:
        return _output(typed(bytes(raw), _format))
    except GatewayError as error:
        if error.param is None or not error.param.startswith("response_format"):
            error.param = f"response_format.{error.param}" if error.param else "response_format"
        raise


# -- canonical to replies -------------------------------------------------------------------------------------------


def _choice(
    op: Complete, index: int, text: str, tokens: Sequence[int], reason: str, logprobs: Sequence[Raw]
) -> dict[str, Any]:
    """A finished choice; of logprobs, those of the tokens that are shown."""
    body: dict[str, Any] = {
        "index": index,
        "seed": op.seeds[index % len(op.seeds)],
        "text": text,
        "tokens": list(tokens),
        "finish_reason": _REASONS.get(reason, reason),
    }
    if op.logprobs is not None:
        body["logprobs"] = {name: values[: len(tokens)] for name, values in replies.text_logprobs(logprobs, 0).items()}
    return body


def _usage(op: Complete, told: Usage | None, counted: Usage | None) -> dict[str, int]:
    """Exactly the specification's three. What no engine told is counted."""
    prompt = told.input if told is not None and told.input is not None else _length(op)
    count = counted if counted is not None else told
    completion = (count.output if count is not None else None) or 0
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _length(op: Complete) -> int:
    return sum(len(prompt) for prompt in op.prompts if not isinstance(prompt, str))


def _chat_choice(choice: ReplyChoice) -> dict[str, Any]:
    body = replies.write_choice(choice)
    body["finish_reason"] = _REASONS.get(choice.reason, choice.reason)
    return body


# -- streams --------------------------------------------------------------------------------------------------------


class _Told:
    """What a choice has said so far. `waiting` is text whose ids have not come."""

    __slots__ = ("head", "logprobs", "reason", "texts", "tokens", "waiting")

    def __init__(self, index: int) -> None:
        self.head = b'data: {"event": "token_sampled", "index": %d, "text": ' % index
        self.texts: list[str] = []
        self.tokens: list[int] = []
        self.logprobs: list[Raw] = []
        self.waiting = ""
        self.reason = "stop"


class Writer:
    """Canonical events to `token_sampled` events, one for each token id, and `complete`; spaced as specified.

    The text of several ids that came together stands on the last of them, text without ids on the next id, or at the
    choice's end on an event whose token is null. Implements core.ports.StreamWriter.
    """

    headers = sse.HEADERS
    clean_end = False

    def __init__(self, op: Complete, dialect: Friendli) -> None:
        self._op = op
        self._dialect = dialect
        self._told: dict[int, _Told] = {}
        self._usage: Usage | None = None

    def write(self, event: Event) -> bytes:
        if type(event) is Delta:
            told = self._told[event.choice]
            text, tokens = event.text, event.tokens
            if event.logprobs is not None:
                told.logprobs.append(event.logprobs)
            told.texts.append(text)
            if len(tokens) == 1 and not told.waiting:
                told.tokens.append(tokens[0])
                return b'%b%b, "token": %d}\n\n' % (told.head, encode(text), tokens[0])
            return self._several(told, text, tokens)
        if isinstance(event, PartStart):
            self._told.setdefault(event.choice, _Told(event.choice))
        elif isinstance(event, Finish):
            told = self._told.setdefault(event.choice, _Told(event.choice))
            told.reason = event.reason
            if told.waiting:
                return b'%b%b, "token": null}\n\n' % (told.head, encode(told.waiting))
        elif isinstance(event, UsageReport):
            self._usage = event.usage
        elif isinstance(event, Failed):
            return self._dialect.error_event(event.error, self._op)
        elif isinstance(event, End):
            return self._complete()
        return b""

    def keepalive(self) -> bytes:
        return sse.KEEPALIVE

    def _several(self, told: _Told, text: str, tokens: tuple[int, ...]) -> bytes:
        told.waiting += text
        if not tokens:
            return b""
        told.tokens += tokens
        silent = b"".join(b'%b"", "token": %d}\n\n' % (told.head, token) for token in tokens[:-1])
        text, told.waiting = told.waiting, ""
        return b'%b%b%b, "token": %d}\n\n' % (silent, told.head, encode(text), tokens[-1])

    def _complete(self) -> bytes:
        """One line, and no `token` beside `event`: friendli-client would take it for one more token."""
        choices = [
            _choice(self._op, index, "".join(told.texts), told.tokens, told.reason, told.logprobs)
            for index, told in sorted(self._told.items())
        ]
        counted = None
        if self._usage is None or self._usage.output is None:
            counted = Usage(output=sum(len(told.tokens) for told in self._told.values()))
        usage = _usage(self._op, self._usage, counted)
        said = {"event": "complete", "choices": choices, "usage": usage}
        return sse.frame(json.dumps(said, ensure_ascii=False).encode())


class _ChatWriter(replies.StreamWriter):
    """OpenAI's chunks, with no finish reason that the client does not know."""

    def write(self, event: Event) -> bytes:
        if isinstance(event, Finish) and event.reason in _REASONS:
            event = msgspec.structs.replace(event, reason=_REASONS[event.reason])
        return super().write(event)


# -- errors ---------------------------------------------------------------------------------------------------------


def _in_our_words(error: GatewayError, op: Op | None) -> None:
    """Gives the error the caller's own name for the field, the one of its deadline included. A field that a worker
    refuses by name is a 422: what is let pass here makes sense."""
    if error.code == "deadline_exceeded" and isinstance(op, (Chat, Complete)) and op.timeout is not None:
        error.param = _TIMEOUT.name
    param = error.param
    if param is None:
        return
    if error.kind is Kind.BAD_REQUEST and error.upstream is not None:
        error.kind = Kind.UNSUPPORTED
    if isinstance(op, Complete):
        if param == "logprobs" and op.beams is not None and op.logprobs is None:
            # vLLM searches with w beams by asking itself for 2 w logprobs, of which it gives so many at most.
            error.param = "num_beams"
        elif param == "prompt" and not isinstance(op.prompts[0], str):
            error.param = "tokens"
        else:
            error.param = _RENAMED.get(param, param)
        error.message = error.message.replace(f"'{param}'", f"'{error.param}'")
