"""Typed views of request bodies on OpenAI's wire, and the known members of the objects inside them.

Bounds are those that OpenAI documents, or protect a worker from a single request (vLLM has crashed on huge `n`,
penalties and biases). `wire.unknown` handles members that no view has; `reading` reads the known ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct

from gateway.wire.json import NULL, encode
from gateway.wire.unknown import Form, KnownMembers, Object, known_to

_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Choices = Annotated[int, Meta(ge=1, le=128)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]


LONGEST_PATTERN = 1 << 14
"""The most characters of a regular expression or grammar. A worker takes time and memory to compile one, more for each
character."""
MOST_PARTS = 4096
"""The most content parts, images or tool calls of one message, and the most tools of a request."""


class FunctionIn(Object):
    name: str
    # JSON text. Ollama clients send an object.
    arguments: str | dict[str, Any] | None = ""


class CallIn(Object):
    function: FunctionIn
    id: str | None = None
    type: Literal["function"] | None = None


class MessageIn(Object):
    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | Annotated[list[Raw], Meta(max_length=MOST_PARTS)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[CallIn], Meta(max_length=MOST_PARTS)] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    annotations: None = None
    audio: None = None
    function_call: None = None


class ImageIn(Object):
    url: str
    detail: str | None = None


class AudioIn(Object):
    data: str
    format: str


class TypeIn(Struct):
    type: str


class PartIn(Object):
    """A content part. Only the member named by its type belongs to it."""

    type: str
    text: str | None = None
    image_url: ImageIn | str | None = None
    input_audio: AudioIn | None = None
    refusal: str | None = None


class ToolFunctionIn(Object):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: Raw = NULL
    strict: bool | None = None


class ToolIn(Object):
    type: str
    function: ToolFunctionIn | None = None


class UntypedToolIn(Object):
    """A tool of an API whose clients may leave the type out."""

    function: ToolFunctionIn
    type: str | None = None


class NamedFunctionIn(Object):
    name: str


class NamedToolIn(Object):
    type: str
    function: NamedFunctionIn | None = None


class SchemaIn(Object):
    name: str | None = None
    schema: Raw = NULL
    strict: bool | None = None
    description: str | None = None


class FormatIn(Object):
    type: str
    json_schema: SchemaIn | None = None


class StreamOptionsIn(Object):
    include_usage: bool | None = None


class Body(Struct):
    """The common members of chats and text completions."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptionsIn | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=1024)] | None = None
    stop: str | Annotated[list[str], Meta(max_length=64)] | None = None
    n: _Choices | None = None
    user: str | None = None
    response_format: FormatIn | None = None
    # vLLM's own parameters, which clients of every dialect send. They are read here so that they are not lost on the
    # way to a worker of another wire. The worker checks their ranges.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[int], Meta(max_length=1024)] | None = None


class ChatBody(Body, kw_only=True):
    messages: Annotated[list[MessageIn], Meta(min_length=1, max_length=16384)]
    max_completion_tokens: _Count | None = None
    tools: Annotated[list[ToolIn], Meta(max_length=MOST_PARTS)] | None = None
    tool_choice: str | NamedToolIn | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class TextBody(Body):
    prompt: str | list[str | int | list[int]] | None = None
    suffix: str | None = None
    echo: bool | None = None
    best_of: _Choices | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class EmbedBody(Struct):
    input: str | Annotated[list[str | int | list[int]], Meta(min_length=1, max_length=2048)]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: _Count | None = None
    user: str | None = None


CHAT_MEMBERS = frozenset(ChatBody.__struct_fields__)
"""The members of a chat that have a canonical form; others can only be passed on unchanged."""
TEXT_MEMBERS = frozenset(TextBody.__struct_fields__)
"""The same for a text completion."""


# -- objects whose known members depend on their own content ----------------------------------------------------------

# The known members of a content part by its `type`, as JSON text.
PARTS: Mapping[bytes, KnownMembers] = {
    encode(name): {"type": None, name: view} for name, view in known_to(PartIn).items() if name != "type"
}


def part_form(members: Mapping[str, Raw]) -> KnownMembers | None:
    """The known members of a content part. None: the type has no canonical form, so the part is kept whole."""
    return PARTS.get(bytes(members.get("type", NULL)))


def _message_form(members: Mapping[str, Raw]) -> KnownMembers:
    """The known members of a message. If both names for thinking are given and differ, the canonical form keeps one."""
    known = known_to(MessageIn)
    texts = {bytes(members.get(name, NULL)) for name in ("reasoning", "reasoning_content")} - {b"null", b'""'}
    return known if len(texts) < 2 else {name: view for name, view in known.items() if name != "reasoning"}


def _format_form(members: Mapping[str, Raw]) -> KnownMembers:
    """The known members of a response format. A schema is known only in its own format."""
    bare = bytes(members.get("type", NULL)) in (b'"text"', b'"json_object"')
    return {"type": None} if bare else known_to(FormatIn)


FORMS: Mapping[str, Form] = {"messages": _message_form, "content": part_form, "response_format": _format_form}
