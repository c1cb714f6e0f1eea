"""Typed views of the bodies that clients of Cohere's API send. `null` counts as absent everywhere."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from gateway.wire.json import NULL
from gateway.wire.openai.requests.views import MOST_PARTS, ImageIn, UntypedToolIn
from gateway.wire.unknown import Object

_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class DocumentIn(Object):
    """A document: an object, or its text."""

    data: Raw
    id: str | None = None


class PartIn(Object):
    """A content block: the member that its type names."""

    type: str
    text: str | None = None
    thinking: str | None = None
    image_url: ImageIn | str | None = None
    document: DocumentIn | None = None


class FunctionIn(Object):
    """The function of a call. arguments is JSON text."""

    name: str
    arguments: str | None = None


class CallIn(Object):
    function: FunctionIn
    id: str | None = None
    type: str | None = None


class MessageIn(Object):
    """One turn. LiteLLM sends the members of OpenAI's results of tools, too."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | Annotated[list[PartIn], Meta(max_length=MOST_PARTS)] | None = None
    tool_calls: Annotated[list[CallIn], Meta(max_length=MOST_PARTS)] | None = None
    tool_plan: str | None = None
    tool_call_id: str | None = None
    citations: Raw = NULL
    name: str | None = None


class FormatIn(Object):
    """The form of the answer. LangChain sends the schema as `schema`, as Cohere's first API had it."""

    type: str
    json_schema: Raw = NULL
    schema: Raw = NULL


class ThinkingIn(Object):
    type: str
    token_budget: int | None = None


class CitationsIn(Object):
    mode: str | None = None


class ChatBody(Struct, kw_only=True):
    messages: Annotated[list[MessageIn], Meta(min_length=1, max_length=16384)]
    model: str | None = None
    stream: bool | None = None
    tools: Annotated[list[UntypedToolIn], Meta(max_length=MOST_PARTS)] | None = None
    strict_tools: bool | None = None
    tool_choice: str | None = None
    documents: Annotated[list[str | DocumentIn], Meta(max_length=MOST_PARTS)] | None = None
    citation_options: CitationsIn | None = None
    response_format: FormatIn | None = None
    max_tokens: _Count | None = None
    stop_sequences: Annotated[list[str], Meta(max_length=64)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    p: Annotated[float, Meta(ge=0, le=1)] | None = None
    k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    logprobs: bool | None = None
    thinking: ThinkingIn | None = None
