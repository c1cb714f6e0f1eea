"""Typed views of the bodies that clients of the Messages API send.

All types of content blocks share one view; a block's type decides which members count. Members that clients often send
and that have no effect here (`cache_control`) are listed too, so that they do not slow down reading. `wire.unknown`
finds all other members.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from gateway.dialects._shared.server_tools import Domains
from gateway.wire.json import NULL
from gateway.wire.unknown import Object


class SourceIn(Object):
    """The source of an image or a document. type is base64 | url | text | content | file."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    content: str | list[BlockIn] | None = None
    file_id: str | None = None


class BlockIn(Object):
    """One content block, of any type.

    source   of image and document; the address of search_result
    content  of tool_result, search_result, and results of tools that a server executes
    input    the arguments of tool_use, a JSON object
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


class FetchedIn(Struct):
    """The content of a web_fetch_tool_result that brought a page; content is its document."""

    content: BlockIn
    url: str = ""


class MessageIn(Object):
    role: str
    content: str | list[BlockIn]


class ToolIn(Object):
    """One tool. type is "custom" or absent; any other type is a tool that a server executes, without a schema.

    max_uses, allowed_domains, blocked_domains  of tools of the web
    """

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
    max_uses: int | None = None
    allowed_domains: Domains | None = None
    blocked_domains: Domains | None = None


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
    """The members that a message request and a token count share."""

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
