"""OpenAI's chat, text completion and embeddings wire: typed views of what servers send.

Sources: the OpenAI streaming specification; vLLM 0.33 (protocol.py); older vLLM (`reasoning_content` up to 0.14, flat
errors up to 0.10.0); llama.cpp server; TGI 3.3's chat endpoint. The views have only the fields that the gateway needs.
All fields accept null, because vLLM writes explicit nulls.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.events import PartKind, Reason
from gateway.core.failures import MEANINGS, Cause, cause_of
from gateway.core.usage import Usage
from gateway.wire import chat_templates, too_long
from gateway.wire.json import NULL, text_in
from gateway.wire.json import decoded as read_or_none
from gateway.wire.scan import is_plain

T = TypeVar("T")

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""A token count. Callers are charged by the worker's counts, so a number out of range makes a reply malformed."""
Index = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""The index of a choice, a tool call or a vector."""
Number = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer that is passed on. Most JSON parsers of clients accept no larger ones."""

# The last second of the year 9999.
_LAST_SECOND = 253_402_300_799
# A worker's error code. It also goes into a header and the log, so spaces and control characters are not allowed.
_ERROR_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


class FunctionIn(Struct):
    """A called function. Its arguments are JSON as text, but some servers write the object itself."""

    name: str | None = None
    arguments: Raw = NULL

    @property
    def text(self) -> str:
        """The arguments as text; "" for null. Raises GatewayError for JSON that no client could read."""
        if self.arguments == NULL:
            return ""
        if bytes(self.arguments)[:1] == b'"':
            return decoded(self.arguments, _text)
        require_strict(self.arguments)
        return bytes(self.arguments).decode()


class ToolCallIn(Struct):
    index: Index | None = None
    id: str | None = None
    function: FunctionIn | None = None


class ThoughtIn(Struct):
    text: str | None = None


class ContentIn(Struct):
    """A part of a reply's content, as Mistral's API and others have it: text, thinking or a refusal."""

    type: str
    text: str | None = None
    thinking: str | list[ThoughtIn] | None = None
    refusal: str | None = None


class DeltaIn(Struct):
    """A message, or more of one. words: its content, if it is a text; parts: a refusal, and the texts of a content in
    parts."""

    content: str | list[ContentIn] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCallIn] | None = None
    function_call: FunctionIn | None = None

    @property
    def words(self) -> str | None:
        return self.content if isinstance(self.content, str) else None

    @property
    def parts(self) -> Sequence[tuple[PartKind, str]]:
        refusals: list[tuple[PartKind, str]] = [("refusal", self.refusal)] if self.refusal else []
        return refusals + texts(self.content) if isinstance(self.content, list) else refusals


class MessageIn(DeltaIn):
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


class ChoiceIn(Struct):
    """The common members of choices."""

    index: Index = 0
    finish_reason: str | None = None
    stop_reason: str | Number | None = None
    token_ids: list[Number] | None = None


class ChatChoiceIn(ChoiceIn):
    delta: DeltaIn | None = None
    message: MessageIn | None = None
    logprobs: LogprobsIn | None = None


class TextLogprobsIn(Struct):
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None


class TextChoiceIn(ChoiceIn):
    text: str | None = None
    logprobs: TextLogprobsIn | None = None
    prompt_logprobs: Raw = NULL
    prompt_token_ids: Raw = NULL


class PromptDetailsIn(Struct):
    cached_tokens: Count | None = None
    created_cache_tokens: Count | None = None


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


class AnswerIn(Struct, kw_only=True):
    """The common members of all answers."""

    model: str | None = None
    usage: UsageIn | None = None
    error: ErrorIn | str | None = None


class ReplyIn(AnswerIn, kw_only=True):
    """The common members of chunks and whole replies."""

    id: str | None = None
    created: int | float | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    kv_transfer_params: Raw = NULL


class ChatIn(ReplyIn):
    """A chat chunk, or a whole chat completion."""

    choices: list[ChatChoiceIn] | None = None
    prompt_logprobs: Raw = NULL


class TextIn(ReplyIn):
    """A text completion chunk, or a whole text completion."""

    choices: list[TextChoiceIn] | None = None


class VectorIn(Struct):
    embedding: Raw
    index: Index = 0


class EmbeddingsIn(AnswerIn):
    data: list[VectorIn] | None = None


class TallyIn(AnswerIn):
    """The fields of a buffered reply that its pass-through needs."""

    id: str | None = None
    object: str | None = None
    created: int | float | None = None
    choices: list[TallyChoiceIn] | None = None
    data: list[TallyVectorIn] | None = None


class TallyChoiceIn(Struct):
    index: Index | None = None
    finish_reason: str | None = None
    message: TallyMessageIn | None = None
    text: str | None = None


class TallyMessageIn(Struct):
    role: str | None = None
    content: str | list[ContentIn] | None = None
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
    """An error body: nested (current servers), flat (vLLM up to 0.10.0), FastAPI's `detail`, or a bare string."""

    error: ErrorIn | str | None = None
    message: str | None = None
    param: str | None = None
    detail: Raw = NULL


chat_decoder = msgspec.json.Decoder(ChatIn)
text_decoder = msgspec.json.Decoder(TextIn)
embeddings_decoder = msgspec.json.Decoder(EmbeddingsIn)
tally_decoder = msgspec.json.Decoder(TallyIn)
_fault = msgspec.json.Decoder(FaultIn).decode
_faults = msgspec.json.Decoder(list[FaultIn]).decode
_anything = msgspec.json.Decoder()
_text = msgspec.json.Decoder(str)
_as_msgpack = msgspec.msgpack.Encoder().encode

# OpenAI has no finish reason for vLLM's `repetition` (its loop detector stopped the sequence). `tool_calls` also covers
# the deprecated function_call. `abort` and `error` are failures: see `failing`.
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
    """The error for a choice that the engine ended with `abort` or `error`."""
    return GatewayError(Kind.UPSTREAM, f"the worker ended the generation ({word})", code="upstream_aborted")


def malformed() -> GatewayError:
    return GatewayError(Kind.UPSTREAM, "the worker's answer is not what its API promises", code="upstream_malformed")


def decoded(data: bytes | Raw, decoder: msgspec.json.Decoder[T]) -> T:
    """Reads a worker's answer, or a part of it. Raises GatewayError(UPSTREAM, upstream_malformed) for another form."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise malformed() from None


def require_strict(data: bytes | Raw) -> None:
    """Checks JSON that is passed on as the worker wrote it: valid UTF-8, within the decoder's depth limit, and all
    integers within 64 bits.

    Typed decoders check the grammar of values that they skip or keep as `Raw`, but not their text or numbers.
    Raises GatewayError(UPSTREAM, upstream_malformed).
    """
    if is_plain(data):
        return
    try:
        # MessagePack has no integers above 64 bits, so its encoder raises for them.
        _as_msgpack(_anything.decode(data))
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        raise malformed() from None


def texts(content: Sequence[ContentIn]) -> list[tuple[PartKind, str]]:
    """The texts of a reply's content that came in parts, in their order. References to sources have none. Raises
    GatewayError for any other part: it would be lost."""
    found: list[tuple[PartKind, str]] = []
    for part in content:
        match part.type:
            case "text" | "output_text":
                found.append(("text", part.text or ""))
            case "thinking" | "reasoning":
                thought = part.thinking if part.thinking is not None else part.text
                pieces = thought if isinstance(thought, list) else [ThoughtIn(thought)]
                found.append(("thinking", "".join([piece.text or "" for piece in pieces])))
            case "refusal":
                found.append(("refusal", part.refusal or ""))
            case "reference":
                pass
            case _:
                raise malformed()
    return [(kind, text) for kind, text in found if text]


def created_at(found: int | float | None, now: float) -> int:
    """A reply's creation time in Unix seconds: the worker's, or `now` if that is missing or out of range."""
    return int(found) if found is not None and 0 < found <= _LAST_SECOND else int(now)


def truncated() -> GatewayError:
    """The error for a body that ended, by any framing, without the wire's terminal mark."""
    return GatewayError(Kind.TRUNCATED, "the worker's reply ended before it was complete", code="upstream_truncated")


def usage(found: UsageIn) -> Usage:
    prompt, completion = found.prompt_tokens_details, found.completion_tokens_details
    return Usage(
        found.prompt_tokens,
        found.completion_tokens,
        prompt.cached_tokens if prompt else None,
        completion.reasoning_tokens if completion else None,
        stored=prompt.created_cache_tokens if prompt else None,
    )


# vLLM's messages about a model's limits that do not name the parameter in a field.
_PARAM_BY_WORDS = (
    ("tool choice requires --enable-auto-tool-choice", "tools"),
    ("is not a multimodal model", "messages"),
    ("may be provided in one prompt", "messages"),
)


def fault(status: int, body: bytes) -> GatewayError:
    """The error for an error answer of an OpenAI-like server. It never quotes a body that is not JSON."""
    parsed = read_or_none(_fault, body)
    if parsed is None and body.lstrip()[:1] == b"[":  # as Gemini's OpenAI-like API has it
        parsed = next(iter(read_or_none(_faults, body) or ()), None)
    if parsed is None:
        text = body.decode(errors="replace")
        if too_long.matches(status, text):
            return GatewayError(Kind.CONTEXT_LENGTH, "the prompt is too long for this model", upstream=status)
        return with_words(classify(status, None, None), text)
    if isinstance(parsed.error, str):
        return classify(status, parsed.error, None)
    if parsed.error is not None:
        # vLLM puts `body.` before a field when it does not read the body at all.
        param = (parsed.error.param or "").removeprefix("body.") or None
        return classify(status, parsed.error.message, param, parsed.error.code, parsed.error.type)
    if parsed.message is None and parsed.detail != NULL:
        return classify(status, _detail_text(parsed.detail), None)
    return classify(status, parsed.message, parsed.param)


_MOST_WORDS = 500
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\xa0-\U0010ffff]+")


def with_words(error: GatewayError, text: str | None) -> GatewayError:
    """`error` with what the worker itself wrote, for the log: one line of at most 500 characters."""
    error.detail = _UNPRINTABLE.sub(" ", (text or "")[:_MOST_WORDS]).strip() or None
    return error


def _detail_text(detail: Raw) -> str | None:
    """The text of FastAPI's `detail`: a string, or a list of objects quoted as JSON."""
    text = text_in(detail)
    if text is not None:
        return text
    try:
        require_strict(detail)
    except GatewayError:
        return None
    return bytes(detail).decode()


def late_fault(error: ErrorIn | str) -> GatewayError:
    """The error for an error object inside a 200. vLLM sends one if it fails after admission, with the HTTP status as
    `code`. Other servers put the cause there, and use `type` to say that the request is at fault."""
    if isinstance(error, str):
        return classify(500, error, None)
    if isinstance(error.code, int):
        status = error.code if 400 <= error.code <= 599 else 500
    else:
        status = 400 if error.type == "invalid_request_error" else 500
    return classify(status, error.message, error.param, error.code, error.type)


# A flag of an engine's command line, in a message that explains to an operator how to start it.
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]{1,62}[a-z0-9]\b")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


def classify(
    status: int, message: str | None, param: str | None, code: int | str | None = None, type_: str | None = None
) -> GatewayError:
    """The gateway's error for a worker's status and error object. An answer about the request keeps its text and code,
    less the sentences that name flags of the engine: no client can set them. Any other is about the worker, or about
    the gateway's account there: the text goes to the log, and the client sees neither that nor the code."""
    flags = tuple(dict.fromkeys(_FLAG.findall(message))) if message else ()
    own = code if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else None
    if too_long.matches(status, message, (None if code is None else str(code), type_)):
        text = message or "the prompt is too long for this model"
        error = GatewayError(Kind.CONTEXT_LENGTH, text, param=param, upstream=status)
    elif message and status in chat_templates.STATUSES and (why := chat_templates.complaint(message)) is not None:
        error = GatewayError(Kind.BAD_REQUEST, why, param="messages", upstream=status)
    elif (cause := cause_of(status, message, own or type_)) is None:
        error = _refusal(status, message, param, own)
    else:
        error = with_words(_failure(status, cause), message)
    if flags:
        error.flags = flags
        remaining = " ".join(part for part in _SENTENCE.split(error.message) if not _FLAG.search(part))
        error.message = remaining or "the worker of this model was not started for this"
    return error


def _refusal(status: int, message: str | None, param: str | None, own: str | None) -> GatewayError:
    """The error for an answer about the request: 400, 413, 422 or 501."""
    if status in (400, 422):
        text = message or "the worker refused the request"
        if param is None:
            param = next((name for words, name in _PARAM_BY_WORDS if words in text), None)
        return GatewayError(Kind.BAD_REQUEST, text, param=param, code=own, upstream=status)
    if status == 413:
        text = message or "the request is too large for the worker"
        return GatewayError(Kind.TOO_LARGE, text, code=own, upstream=status)
    text = message or "the worker cannot do this"
    return GatewayError(Kind.UNSUPPORTED, text, param=param, code=own, upstream=status)


def _failure(status: int, cause: Cause) -> GatewayError:
    """The error for any other answer. The status of one about the gateway's account or configuration is not the
    client's business."""
    word = MEANINGS[cause].word
    if word == "overloaded":
        return GatewayError(Kind.OVERLOADED, "the worker is overloaded", upstream=status, retry_after=1.0, cause=cause)
    if word == "account":
        return GatewayError(Kind.UPSTREAM, "the worker rejected the gateway's request", upstream=status, cause=cause)
    if status < 300:
        text = f"the worker accepted the request and gave no reply to it ({status})"
    else:
        text = f"the worker failed ({status})"
    return GatewayError(Kind.UPSTREAM, text, upstream=status, cause=cause)
