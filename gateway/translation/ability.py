"""Refuses what a model's workers cannot do, before any worker is called.

This module compares operations with capabilities. It knows no dialect: each gives the refusal its own status and form.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import assert_never

from msgspec.structs import replace

from gateway.core.errors import GatewayError, Kind, prompt_too_long
from gateway.core.http import Request
from gateway.core.messages import (
    MEDIA_FEATURES,
    NOT_DONE,
    Audio,
    Chat,
    Complete,
    Embed,
    Image,
    Media,
    Message,
    Op,
    Opaque,
    Question,
    Refusal,
    Score,
    Text,
    Thinking,
    ToolCall,
)
from gateway.core.ports import Backend, Capabilities

# Content parts without a canonical form, by type -> the feature that they need.
_OPAQUE = {"audio_url": "audio", "image_embeds": "vision", "input_image": "vision", "video_url": "vision"}
_EMBEDDINGS = frozenset({"embeddings"})
_CHATS = frozenset({"chat"})
_WORDLESS = frozenset({"embeddings", "scores", "transcription", "speech", "images"})
"""Features of models that chat with nobody."""
_NOUNS = {"vision": "images", "audio": "audio"}
# Kind of output constraint -> the features that allow it; one is enough. An engine with schemas also does plain JSON.
_OUTPUT = {
    "json": ("json", "json_schema"),
    "schema": ("json_schema",),
    **dict.fromkeys(("regex", "grammar", "choice"), ("regex",)),
}
_NEEDS = _CHATS | frozenset(
    {"tools", "vision", "audio", "reasoning", "embeddings", "completions", "beams", "prompt_tokens"}
)
_NEEDS |= {"logprobs", "token_ids", "json", "json_schema", "regex", "scores", "transcription", "speech", "images"}
# Kind of output constraint -> its name on OpenAI's wire, as clients send it.
_OUTPUT_WORDS = {"json": "json_object", "schema": "json_schema"}


def refuse_beyond(op: Op, can: Capabilities) -> tuple[str, ...]:
    """Refuses `op` if it needs a feature that `can` lacks. Unknown capabilities refuse nothing.

    Removes parameters that are optional in `op` instead of refusing them, and returns the client's names for those.

    Raises GatewayError: UNSUPPORTED for the first missing feature, CONTEXT_LENGTH for a prompt of token ids that
    exceeds the context. `param` is the field's name on OpenAI's wire, dotted for content parts; dialects with other
    names rename it. `value` is the value that the client sent, if it is a word.
    """
    left: tuple[str, ...] = ()
    while True:
        try:
            _refuse_beyond(op, can)
            return left
        except GatewayError as refusal:
            left = (*left, _without_optional(op, refusal))


def write_possible(backend: Backend, op: Op, can: Capabilities) -> Request:
    """Returns the worker's request. Removes parameters from `op` that are optional and that `backend` refuses; the
    request's `dropped` names them. Raises GatewayError(UNSUPPORTED) for any other refusal."""
    left: tuple[str, ...] = ()
    while True:
        try:
            request = backend.write(op, can)
        except GatewayError as refusal:
            left = (*left, _without_optional(op, refusal))
        else:
            request.dropped = (*left, *request.dropped)
            return request


def _without_optional(op: Op, refusal: GatewayError) -> str:
    """Removes the refused parameter from `op` and returns the client's name for it. Raises `refusal` if the parameter
    is not optional."""
    param = refusal.param
    if refusal.kind is not Kind.UNSUPPORTED or not isinstance(op, Chat) or param is None or param not in op.optional:
        raise refusal
    if param == "reasoning_effort":
        op.reasoning = None
    elif param == "parallel_tool_calls":
        op.parallel_tools = None
    elif param == "tokens":
        op.want_tokens = False
    else:
        op.sampling = replace(op.sampling, **{param: None})
    name = op.optional[param]
    op.optional = {one: named for one, named in op.optional.items() if one != param}
    return name


def _refuse_beyond(op: Op, can: Capabilities) -> None:
    if can.max_context is not None and type(op) is Complete:
        # The length of a text is known only to the worker's tokenizer.
        longest = max((len(prompt) for prompt in op.prompts if not isinstance(prompt, str)), default=0)
        if longest > can.max_context:
            raise prompt_too_long("prompt", longest, can.max_context)
    if can.features is None and not can.lacks:
        return
    features = _left(can.features, can.lacks)
    if type(op) is Chat:
        _chat(op, features)
    elif type(op) is Complete:
        _complete(op, features)
    elif type(op) is Embed:
        if "embeddings" not in features:
            raise _beyond("makes no embeddings", None)
    elif type(op) is Score:
        if "scores" not in features:
            raise _beyond("does not rank documents", None)
    elif type(op) is Media:
        _media(op, features)
    elif not isinstance(op, Question):
        assert_never(op)


@lru_cache(maxsize=256)
def _left(declared: frozenset[str] | None, lacks: frozenset[str]) -> frozenset[str]:
    """The features of a model. Each chats unless its worker reports otherwise: no configuration declares that."""
    return (_NEEDS if declared is None else declared | _CHATS) - lacks


def _media(op: Media, features: frozenset[str]) -> None:
    if MEDIA_FEATURES[op.work] not in features:
        raise _beyond(NOT_DONE[op.work], None)


def _chat(op: Chat, features: frozenset[str]) -> None:
    others = features - _CHATS
    if others == _EMBEDDINGS:
        raise _beyond("makes embeddings only", None)
    if "chat" not in features or (others and others <= _WORDLESS):
        raise _beyond("generates no text", None)
    if op.tools and "tools" not in features:
        raise _beyond("cannot call tools", "tools")
    if not features >= _NOUNS.keys():
        for index, message in enumerate(op.messages):
            for position, need in _content(message):
                if need not in features:
                    raise _beyond(f"does not understand {_NOUNS[need]}", f"messages.{index}.content.{position}")
    if op.reasoning is not None and "reasoning" not in features:
        raise _beyond("does not reason", "reasoning_effort", op.reasoning)
    _generate(op, features)


def _complete(op: Complete, features: frozenset[str]) -> None:
    if "completions" not in features:
        raise _beyond("takes chats only, no plain prompts", "prompt")
    if op.beams is not None and "beams" not in features:
        raise _beyond("cannot search with beams", "num_beams", op.beams.width)
    if "prompt_tokens" not in features and any(not isinstance(prompt, str) for prompt in op.prompts):
        raise _beyond("takes no token ids as a prompt", "prompt")
    _generate(op, features)


def _generate(op: Chat | Complete, features: frozenset[str]) -> None:
    needs = _OUTPUT.get(op.output.kind) if op.output is not None else None
    if op.output is not None and needs is not None and features.isdisjoint(needs):
        word = _OUTPUT_WORDS.get(op.output.kind, op.output.kind)
        raise _beyond(f"cannot be held to the output format {word}", "response_format", word)
    if op.logprobs is not None and "logprobs" not in features:
        raise _beyond("gives no logprobs", "logprobs")
    if op.want_tokens and "token_ids" not in features:
        raise _beyond("gives no token ids", "tokens")


def _content(message: Message) -> Iterator[tuple[int, str]]:
    """(position in the message's content, feature) of every part that needs a feature."""
    if len(message.parts) == 1 and type(message.parts[0]) is Text:
        return  # nearly every message
    content = [part for part in message.parts if not isinstance(part, (Thinking, ToolCall))]
    for position, part in enumerate(content):
        match part:
            case Image():
                yield position, "vision"
            case Audio():
                yield position, "audio"
            case Opaque():
                if part.type in _OPAQUE:
                    yield position, _OPAQUE[part.type]
            case Text() | Refusal():
                pass


def _beyond(what: str, param: str | None, value: object = None) -> GatewayError:
    return GatewayError(Kind.UNSUPPORTED, f"this model {what}", param=param, code="beyond_model", value=value)
