"""OpenAI's chat, text completion and embeddings wire: typed views of what servers send.

Sources: the OpenAI streaming specification; vLLM 0.33 (protocol.py); older vLLM (`reasoning_content` up to 0.14, flat
errors up to 0.10.0); llama.cpp server; TGI 3.3's chat endpoint. Only the fields that the gateway needs are named, and
all of them tolerate null, since vLLM writes explicit nulls.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Reason
from gateway.core.usage import Usage
from gateway.wire.json import NULL

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""Tokens of a reply. Callers are charged and billed by what workers say: a number that makes no sense is malformed."""


class FunctionIn(Struct):
    name: str | None = None
    arguments: str | None = None


class ToolCallIn(Struct):
    index: int | None = None
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


class LogprobsIn(Struct):
    content: list[Raw] | None = None


class ChatChoiceIn(Struct):
    index: int = 0
    delta: DeltaIn | None = None
    message: MessageIn | None = None
    logprobs: LogprobsIn | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class TextLogprobsIn(Struct):
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None


class TextChoiceIn(Struct):
    index: int = 0
    text: str | None = None
    logprobs: TextLogprobsIn | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
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
    index: int = 0


class EmbeddingsIn(Struct):
    data: list[VectorIn] | None = None
    model: str | None = None
    usage: UsageIn | None = None
    error: ErrorIn | str | None = None


class TallyIn(Struct):
    """What the bytes lane must know of a buffered reply."""

    usage: UsageIn | None = None
    error: ErrorIn | str | None = None
    model: str | None = None
    choices: list[TallyChoiceIn] | None = None
    data: list[TallyVectorIn] | None = None


class TallyChoiceIn(Struct):
    finish_reason: str | None = None
    message: TallyMessageIn | None = None
    text: str | None = None


class TallyMessageIn(Struct):
    reasoning: str | None = None
    reasoning_content: str | None = None


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
        return classify(status, parsed.error.message, parsed.error.param)
    if parsed.message is None and parsed.detail != NULL:
        return classify(status, bytes(parsed.detail).decode(), None)
    return classify(status, parsed.message, parsed.param)


def late_fault(error: ErrorIn | str) -> GatewayError:
    """An error object inside a 200 (vLLM's way to fail after admission); its `code` is the HTTP status."""
    if isinstance(error, str):
        return classify(500, error, None)
    status = error.code if isinstance(error.code, int) and 400 <= error.code <= 599 else 500
    return classify(status, error.message, error.param)


def classify(status: int, message: str | None, param: str | None) -> GatewayError:
    """A worker's status and words as our own error. A 4xx about the request keeps its text; a 401, 403 or 404 is about
    our configuration, and a 5xx about the worker: their texts are not the client's business."""
    if status in (400, 422):
        text = message or "the worker refused the request"
        if any(word in text for word in _CONTEXT_WORDS):
            return GatewayError(Kind.CONTEXT_LENGTH, text, param=param, upstream=status)
        if param is None:
            param = next((name for words, name in _TELLING if words in text), None)
        return GatewayError(Kind.BAD_REQUEST, text, param=param, upstream=status)
    if status == 413:
        return GatewayError(Kind.TOO_LARGE, message or "the request is too large for the worker", upstream=status)
    if status in (429, 503):
        return GatewayError(Kind.OVERLOADED, "the worker is overloaded", upstream=status, retry_after=1.0)
    if status == 501:
        return GatewayError(Kind.UNSUPPORTED, message or "the worker cannot do this", param=param, upstream=status)
    if status < 300:
        text, retryable = f"the worker accepted the request and gave no reply to it ({status})", True
    elif status < 400:
        text, retryable = "the worker answered with an unexpected redirect", False
    elif status < 500:
        text, retryable = f"the worker rejected the gateway's request ({status})", False
    else:
        text, retryable = f"the worker failed ({status})", True
    return GatewayError(Kind.UPSTREAM, text, upstream=status, retryable=retryable)
