"""What clients of the Messages API send: typed views of request bodies.

A block has one view for all of its types: which of its members mean something, its type says. Members without a meaning
for us that clients send all the time (`cache_control`) are known here, so that a request with them is read at once;
others are found by `wire.unknown` and named.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from gateway.wire.json import NULL


class Object(Struct, forbid_unknown_fields=True):
    """An object inside a body."""


class SourceIn(Object):
    """Of an image or a document: type is base64 | url | text | content | file."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    content: str | list[BlockIn] | None = None
    file_id: str | None = None


class BlockIn(Object):
    """One content block, of any type.

    source   of image and document; of search_result the address
    content  of tool_result and search_result, and of the results of tools that a server executes
    input    of tool_use, any JSON object
    """

    type: str
    text: str | None = None
    source: SourceIn | str | None = None
    title: str | None = None
    context: str | None = None
    content: Raw = NULL
    id: str | None = None
    name: str | None = None
    input: Raw = NULL
    tool_use_id: str | None = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    tool_name: str | None = None
    tool: Raw = NULL
    cache_control: Raw = NULL
    citations: Raw = NULL
    caller: Raw = NULL


class MessageIn(Object):
    role: str
    content: str | list[BlockIn]


class ToolIn(Object):
    """type: "custom" or absent, or that of a tool that a server executes, which has no schema."""

    name: Annotated[str, Meta(max_length=256)] = ""
    type: str | None = None
    description: str | None = None
    input_schema: Raw = NULL
    strict: bool | None = None
    defer_loading: bool | None = None
    cache_control: Raw = NULL
    input_examples: Raw = NULL
    eager_input_streaming: Raw = NULL
    allowed_callers: Raw = NULL


class ChoiceIn(Object):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingIn(Object):
    type: str
    budget_tokens: int | None = None
    display: str | None = None


class FormatIn(Object):
    type: str
    schema: Raw = NULL


class OutputConfigIn(Object):
    effort: str | None = None
    format: FormatIn | None = None


class MetadataIn(Object):
    user_id: str | None = None


class PromptBody(Struct):
    """What a message and the question for its length share."""

    messages: Annotated[list[MessageIn], Meta(min_length=1, max_length=100_000)]
    model: str | None = None
    system: str | list[BlockIn] | None = None
    tools: list[ToolIn] | None = None


class ChatBody(PromptBody, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    stream: bool | None = None
    stop_sequences: Annotated[list[str], Meta(max_length=64)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    tool_choice: ChoiceIn | None = None
    thinking: ThinkingIn | None = None
    output_config: OutputConfigIn | None = None
    metadata: MetadataIn | None = None
