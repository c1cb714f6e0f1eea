"""Typed views of the bodies that clients of Ollama's API send. `null` counts as absent everywhere."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from gateway.wire.json import NULL
from gateway.wire.openai.requests.views import MOST_PARTS, UntypedToolIn
from gateway.wire.unknown import Object

_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class FunctionIn(Object):
    """The function of a call. arguments is an object, or text from clients that keep the form of OpenAI's wire."""

    name: str
    arguments: Raw = NULL
    index: int | None = None
    description: str | None = None


class CallIn(Object):
    function: FunctionIn
    id: str | None = None
    type: str | None = None


class MessageIn(Object):
    """One turn. tool_name, tool_call_id and name belong to a tool's result."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | None = None
    thinking: str | None = None
    images: Annotated[list[str], Meta(max_length=MOST_PARTS)] | None = None
    tool_calls: Annotated[list[CallIn], Meta(max_length=MOST_PARTS)] | None = None
    tool_name: str | None = None
    name: str | None = None
    tool_call_id: str | None = None


class OptionsIn(Struct):
    """The options that workers have; the others are left out and named."""

    num_predict: _Whole | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: _Whole | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    stop: str | Annotated[list[str], Meta(max_length=64)] | None = None


class Body(Struct):
    """The members that chats and generations share. stream is true if it is absent."""

    model: str | None = None
    stream: bool | None = None
    format: Raw = NULL
    think: bool | str | None = None
    options: OptionsIn | None = None
    keep_alive: Raw = NULL
    logprobs: bool | None = None
    top_logprobs: int | None = None


class ChatBody(Body):
    messages: Annotated[list[MessageIn], Meta(max_length=16384)] | None = None
    tools: Annotated[list[UntypedToolIn], Meta(max_length=MOST_PARTS)] | None = None


class GenerateBody(Body):
    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    images: Annotated[list[str], Meta(max_length=MOST_PARTS)] | None = None
    raw: bool | None = None
    template: str | None = None
    context: Annotated[list[int], Meta(max_length=2**20)] | None = None


class EmbedBody(Struct):
    """The body of `/api/embed` (input) and of `/api/embeddings` (prompt)."""

    model: str | None = None
    input: Raw = NULL
    prompt: str | None = None
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class NameIn(Struct):
    """The model that a request is about: `name` is the old name of `model`."""

    model: str | None = None
    name: str | None = None
