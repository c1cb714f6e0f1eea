"""OpenAI's chat, text completion and embeddings wire: typed views of what servers send.

Sources: the OpenAI streaming specification; vLLM 0.33 (protocol.py); older vLLM (`reasoning_content` up to 0.14, flat
errors up to 0.10.0); llama.cpp server; TGI 3.3's chat endpoint. Only the fields that the gateway needs are named, and
all of them tolerate null, since vLLM writes explicit nulls.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Reason
from gateway.core.usage import Usage
from gateway.wire.json import NULL

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""Tokens of a reply. Callers are charged by what workers say, so a number that makes no sense is malformed."""
Index = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""The place of a choice, of a tool call or of a vector."""
Number = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer that is passed on. Most JSON parsers of clients read no larger one."""

# The last second of the year 9999.
_LAST_SECOND = 253_402_300_799
# A worker's own word for an error. It also becomes a header and a member of the log: no spaces, no control characters.
_ERROR_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


class FunctionIn(Struct):
    name: str | None = None
    arguments: str | None = None


class ToolCallIn(Struct):
    index: Index | None = None
    id: str | None = None
    function: FunctionIn | None = None


class DeltaIn(Struct):
    """A chat delta."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCallIn] | None = None
    function_call: FunctionIn | None = None


class MessageIn(DeltaIn):
    """The message of a buffered choice."""

    annotations: Raw = NULL
    audio: Raw = NULL


class TopLogprobIn(Struct):
    token: str
    logprob: float | None = None
    bytes: list[Index] | None = None


class LogprobIn(TopLogprobIn):
    top_logprobs: list[TopLogprobIn] | None = None


class LogprobsIn(Struct):
    content: list[LogprobIn] | None = None


class ChatChoiceIn(Struct):
    index: Index = 0
    delta: DeltaIn | None = None
    message: MessageIn | None = None
    logprobs: LogprobsIn | None = None
    finish_reason: str | None = None
    stop_reason: str | Number | None = None
    token_ids: list[Number] | None = None


class TextLogprobsIn(Struct):
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None


class TextChoiceIn(Struct):
    index: Index = 0
    text: str | None = None
    logprobs: TextLogprobsIn | None = None
    finish_reason: str | None = None
    stop_reason: str | Number | None = None
    token_ids: list[Number] | None = None
    prompt_logprobs: Raw = NULL
    prompt_token_ids: Raw = NULL


class PromptDetailsIn(Struct):
    cached_tokens: Count | None = None


class CompletionDetailsIn(Struct):
    reasoning_tokens: Count | None = None


class UsageIn(Struct):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: PromptDetailsIn | None = None
    completion_tokens_details: CompletionDetailsIn | None = None


class ErrorIn(Struct):
    message: str | None = None
    type: str | None = None
    param: str | None = None
    code: int | str | None = None


class ChatIn(Struct):
    """A chat chunk, or a whole chat completion."""

    id: str | None = None
    model: str | None = None
    created: int | float | None = None
    choices: list[ChatChoiceIn] | None = None
    usage: UsageIn | None = None
    error: ErrorIn | str | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    prompt_logprobs: Raw = NULL
    kv_transfer_params: Raw = NULL


class TextIn(Struct):
    """A text completion chunk, or a whole text completion."""

    id: str | None = None
    model: str | None = None
    created: int | float | None = None
    choices: list[TextChoiceIn] | None = None
    usage: UsageIn | None = None
    error: ErrorIn | str | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    kv_transfer_params: Raw = NULL


class VectorIn(Struct):
    embedding: Raw
    index: Index = 0


class EmbeddingsIn(Struct):
    data: list[VectorIn] | None = None
    model: str | None = None
    usage: UsageIn | None = None
    error: ErrorIn | str | None = None


class TallyIn(Struct):
    """What the bytes lane must know of a buffered reply."""

    id: str | None = None
    object: str | None = None
    created: int | float | None = None
    usage: UsageIn | None = None
    error: ErrorIn | str | None = None
    model: str | None = None
    choices: list[TallyChoiceIn] | None = None
    data: list[TallyVectorIn] | None = None


class TallyChoiceIn(Struct):
    index: Index | None = None
    finish_reason: str | None = None
    message: TallyMessageIn | None = None
    text: str | None = None


class TallyMessageIn(Struct):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[TallyCallIn] | None = None


class TallyCallIn(Struct):
    id: str | None = None
    type: str | None = None
    function: FunctionIn | None = None


class TallyVectorIn(Struct):
    embedding: Raw = NULL


class FaultIn(Struct):
    """An error body: nested (today), flat (vLLM up to 0.10.0), FastAPI's `detail`, or a bare string."""

    error: ErrorIn | str | None = None
    message: str | None = None
    param: str | None = None
    detail: Raw = NULL


chat_decoder = msgspec.json.Decoder(ChatIn)
text_decoder = msgspec.json.Decoder(TextIn)
embeddings_decoder = msgspec.json.Decoder(EmbeddingsIn)
tally_decoder = msgspec.json.Decoder(TallyIn)
_fault_decoder = msgspec.json.Decoder(FaultIn)
_vector = msgspec.json.Decoder(list[float] | str)
_anything = msgspec.json.Decoder()
_detail = msgspec.json.Decoder(str)
_as_msgpack = msgspec.msgpack.Encoder().encode

# vLLM's `repetition` (its loop detector stopped the sequence) has no OpenAI word; `tool_calls` also stands for the
# deprecated function_call. `abort` and `error` are failures: see `failing`.
_REASONS: dict[str, Reason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "repetition": "stop",
}
FAILING = frozenset({"abort", "error"})


def reason(word: str) -> Reason:
    return _REASONS.get(word, "stop")


def aborted(word: str) -> GatewayError:
    """The error for a choice that the engine itself gave up (`abort`, `error`)."""
    return GatewayError(Kind.UPSTREAM, f"the worker ended the generation ({word})", code="upstream_aborted")


def malformed() -> GatewayError:
    return GatewayError(Kind.UPSTREAM, "the worker's answer is not what its API promises", code="upstream_malformed")


def require_strict(data: bytes | Raw) -> None:
    """Checks JSON that is passed on as the worker wrote it: UTF-8 all through, no deeper than JSON is read, every
    number within 64 bits.

    Typed decoders check the grammar of what they pass over or keep as `Raw`, but neither its text nor its numbers.
    Raises GatewayError(UPSTREAM, upstream_malformed).
    """
    try:
        # MessagePack has no integer of more than 64 bits: its encoder finds them.
        _as_msgpack(_anything.decode(data))
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        raise malformed() from None


def vector(found: VectorIn) -> Raw:
    """The embedding as the worker wrote it: an array of numbers, or base64. Raises GatewayError when it is neither."""
    try:
        _vector.decode(found.embedding)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise malformed() from None
    return found.embedding


def created_at(found: int | float | None, now: float) -> int:
    """A reply's time of creation in Unix seconds: the worker's, or `now` where that is missing or is no time."""
    return int(found) if found is not None and 0 < found <= _LAST_SECOND else int(now)


def truncated() -> GatewayError:
    """The body ended, by whatever framing, without the wire's own terminal mark."""
    return GatewayError(Kind.TRUNCATED, "the worker's reply ended before it was complete", code="upstream_truncated")


def usage(found: UsageIn) -> Usage:
    prompt, completion = found.prompt_tokens_details, found.completion_tokens_details
    return Usage(
        found.prompt_tokens,
        found.completion_tokens,
        prompt.cached_tokens if prompt else None,
        completion.reasoning_tokens if completion else None,
    )


# What vLLM says of a model's limits without naming the parameter.
_TELLING = (
    ("tool choice requires --enable-auto-tool-choice", "tools"),
    ("is not a multimodal model", "messages"),
    ("may be provided in one prompt", "messages"),
)
_CONTEXT_WORDS = ("maximum context length", "context length", "max_model_len", "exceed_context_size", "context size")


def fault(status: int, body: bytes) -> GatewayError:
    """What an error answer of an OpenAI-like server means. Never quotes a body that is not JSON."""
    try:
        parsed = _fault_decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return classify(status, None, None)
    if isinstance(parsed.error, str):
        return classify(status, parsed.error, None)
    if parsed.error is not None:
        return classify(status, parsed.error.message, parsed.error.param, parsed.error.code)
    if parsed.message is None and parsed.detail != NULL:
        return classify(status, _detail_text(parsed.detail), None)
    return classify(status, parsed.message, parsed.param)


def _detail_text(detail: Raw) -> str | None:
    """FastAPI's `detail`: a sentence, or a list of objects, which is quoted as JSON."""
    try:
        return _detail.decode(detail)
    except (msgspec.MsgspecError, ValueError):
        pass
    try:
        require_strict(detail)
    except GatewayError:
        return None
    return bytes(detail).decode()


def late_fault(error: ErrorIn | str) -> GatewayError:
    """An error object inside a 200. vLLM fails so after admission: its `code` is the HTTP status. Others name the cause
    there, and say by `type` that it is the request's."""
    if isinstance(error, str):
        return classify(500, error, None)
    if isinstance(error.code, int):
        status = error.code if 400 <= error.code <= 599 else 500
    else:
        status = 400 if error.type == "invalid_request_error" else 500
    return classify(status, error.message, error.param, error.code)


def classify(status: int, message: str | None, param: str | None, code: int | str | None = None) -> GatewayError:
    """A worker's status and words as our own error. A 4xx about the request keeps its text and its own code; a 401, 403
    or 404 is about our configuration, and a 5xx about the worker: their texts are not the client's business."""
    own = code if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else None
    if status in (400, 422):
        text = message or "the worker refused the request"
        if own == Kind.CONTEXT_LENGTH.value or any(word in text for word in _CONTEXT_WORDS):
            return GatewayError(Kind.CONTEXT_LENGTH, text, param=param, upstream=status)
        if param is None:
            param = next((name for words, name in _TELLING if words in text), None)
        return GatewayError(Kind.BAD_REQUEST, text, param=param, code=own, upstream=status)
    if status == 413:
        text = message or "the request is too large for the worker"
        return GatewayError(Kind.TOO_LARGE, text, code=own, upstream=status)
    if status in (429, 503):
        return GatewayError(Kind.OVERLOADED, "the worker is overloaded", upstream=status, retry_after=1.0)
    if status == 501:
        text = message or "the worker cannot do this"
        return GatewayError(Kind.UNSUPPORTED, text, param=param, code=own, upstream=status)
    if status < 300:
        text, retryable = f"the worker accepted the request and gave no reply to it ({status})", True
    elif status < 400:
        text, retryable = "the worker answered with an unexpected redirect", False
    elif status < 500:
        text, retryable = f"the worker rejected the gateway's request ({status})", False
    else:
        text, retryable = f"the worker failed ({status})", True
    return GatewayError(Kind.UPSTREAM, text, upstream=status, retryable=retryable)
