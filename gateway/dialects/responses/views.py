"""Typed views of the bodies that clients of the Responses API send.

All known types of items share one view, and so do tools and content parts; the type decides which members count. Items
and tools of other types are not parsed. Members that clients often send and that have no effect here (`annotations`)
are listed too, so that they do not slow down reading. `wire.unknown` finds all other members.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Annotated

from msgspec import Meta, Raw, Struct

from gateway.dialects._shared.server_tools import Domains
from gateway.wire.json import NULL, encode
from gateway.wire.openai.requests.views import AudioIn, SchemaIn
from gateway.wire.unknown import Form, Object, known_to


class TypeIn(Struct):
    """The type of an item or a tool. An item without a type is a message."""

    type: str | None = None


class PartIn(Object):
    """One content part, of any type. image_url is a URL, http(s): or data:."""

    type: str
    text: str | None = None
    image_url: str | None = None
    detail: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    file_data: str | None = None
    filename: str | None = None
    input_audio: AudioIn | None = None
    refusal: str | None = None
    annotations: Raw = NULL
    logprobs: Raw = NULL


class ItemIn(Object):
    """One item of the input, of a type in `ITEMS`.

    content    of message and reasoning
    summary    of reasoning
    arguments  of function_call, JSON text; input: of custom_tool_call, any text
    output     of a tool's output: text, or content parts
    tools      of additional_tools
    """

    type: str | None = None
    role: str | None = None
    content: str | list[PartIn] | None = None
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    summary: list[PartIn] | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: Raw = NULL
    tools: list[Raw] | None = None


class UrlIn(Struct):
    """A source of a search, or an annotation."""

    url: str | None = None


class ActionIn(Struct):
    url: str | None = None
    sources: list[UrlIn] | None = None


class SearchCallIn(Struct):
    """A web_search_call of an earlier turn."""

    action: ActionIn
    status: str | None = None

    @property
    def found(self) -> list[str]:
        """The URLs that the tool was given for it. That of a failed call may be one that the model made up."""
        opened = [self.action.url] if self.status == "completed" else []
        return [url for url in (*opened, *[one.url for one in self.action.sources or ()]) if url]


_CALLS = ("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output")
_REFERENCES = ("additional_tools", "item_reference", "compaction", "compaction_trigger")
ITEMS = frozenset({"message", "reasoning", *_CALLS, *_REFERENCES})
"""The types of items that are parsed."""


class GrammarIn(Object):
    """The format of a custom tool: type is text | grammar, syntax is lark | regex."""

    type: str = "text"
    syntax: str | None = None
    definition: str | None = None


class ToolIn(Object):
    """One tool of a type in `TOOLS`. tools: of a namespace; format: of a custom tool."""

    type: str
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: Raw = NULL
    strict: bool | None = None
    tools: list[Raw] | None = None
    format: GrammarIn | None = None
    defer_loading: Raw = NULL
    output_schema: Raw = NULL
    allowed_callers: Raw = NULL


TOOLS = frozenset({"function", "custom", "namespace"})
"""The types of tools that a model can see."""


class FiltersIn(Struct):
    allowed_domains: Domains | None = None


class SearchIn(Struct):
    """A search of the web by the API's server. external_web_access: False for what that server has cached alone."""

    filters: FiltersIn | None = None
    external_web_access: bool | None = None


class NameIn(Object):
    """One tool in the list of allowed_tools."""

    type: str
    name: str | None = None
    namespace: str | None = None
    server_label: Raw = NULL


class ChoiceIn(Object):
    """A tool choice. mode, tools: of allowed_tools."""

    type: str
    name: str | None = None
    namespace: str | None = None
    mode: str | None = None
    tools: list[NameIn] | None = None
    server_label: Raw = NULL


class FormatIn(SchemaIn, kw_only=True):
    type: str


class TextIn(Object):
    format: FormatIn | None = None
    verbosity: str | None = None


class ReasoningIn(Object):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: Raw = NULL
    mode: Raw = NULL


class PromptBody(Struct):
    """The members that a request for a response and a token count share."""

    input: str | Annotated[list[Raw], Meta(max_length=100_000)]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Annotated[list[Raw], Meta(max_length=4096)] | None = None


class ChatBody(PromptBody, kw_only=True):
    stream: bool | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    tool_choice: str | ChoiceIn | None = None
    parallel_tool_calls: bool | None = None
    text: TextIn | None = None
    reasoning: ReasoningIn | None = None
    include: Annotated[list[str], Meta(max_length=64)] | None = None
    store: bool | None = None
    background: bool | None = None
    prompt_cache_key: str | None = None


# -- objects whose known members depend on their type -----------------------------------------------------------------


def _form(view: type[Struct], types: Container[bytes]) -> Form:
    return lambda members: known_to(view) if bytes(members.get("type", NULL)) in types else None


_PARTS = ("input_text", "output_text", "input_image", "input_file", "text")
FORMS: Mapping[str, Form] = {
    "input": _form(ItemIn, {encode(name) for name in ITEMS} | {bytes(NULL)}),
    "tools": _form(ToolIn, {encode(name) for name in TOOLS}),
    "output": _form(PartIn, {encode(name) for name in _PARTS}),
}
"""The objects whose known members depend on their type, for `wire.unknown.find_unknown`."""
