"""Typed views of the bodies that clients of Google's API send, by the camelCase names of its JSON.

`null` counts as absent everywhere, and a single object is taken for an array of one, as protobuf's JSON has it. The
other spelling of the names is in `names`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from gateway.wire.json import NULL
from gateway.wire.openai.requests.views import MOST_PARTS

_MOST_CONTENTS = 100_000
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Whole = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Object(Struct, forbid_unknown_fields=True, rename="camel", gc=False):
    """An object inside a body. `wire.unknown` finds its unknown members if reading it fails."""


class BlobIn(Object):
    """Bytes in base64, of either alphabet."""

    mime_type: str = ""
    data: str = ""
    display_name: str | None = None


class FileIn(Object):
    file_uri: str = ""
    mime_type: str = ""
    display_name: str | None = None


class CallIn(Object):
    """A call of a function by the model. args is an object."""

    name: str = ""
    args: Raw = NULL
    id: str | None = None


class MediaIn(Object):
    """A part of a function's response."""

    inline_data: BlobIn | None = None
    file_data: FileIn | None = None


class ResponseIn(Object):
    """The result of a function. response is an object."""

    name: str = ""
    response: Raw = NULL
    id: str | None = None
    parts: Annotated[list[MediaIn], Meta(max_length=MOST_PARTS)] | MediaIn | None = None
    scheduling: Raw = NULL
    will_continue: Raw = NULL


class PartIn(Object):
    """One part of a content: one of its first nine members, and facts about it."""

    text: str | None = None
    inline_data: BlobIn | None = None
    file_data: FileIn | None = None
    function_call: CallIn | None = None
    function_response: ResponseIn | None = None
    executable_code: Raw = NULL
    code_execution_result: Raw = NULL
    tool_call: Raw = NULL
    tool_response: Raw = NULL
    thought: bool | None = None
    thought_signature: str | None = None
    video_metadata: Raw = NULL
    media_resolution: Raw = NULL
    part_metadata: Raw = NULL


class ContentIn(Object):
    parts: Annotated[list[PartIn], Meta(max_length=MOST_PARTS)] | PartIn | None = None
    role: str | None = None


class FunctionIn(Object):
    """The declaration of a function. Its schema is Google's (`parameters`) or JSON's (`parametersJsonSchema`)."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: Raw = NULL
    parameters_json_schema: Raw = NULL
    response: Raw = NULL
    response_json_schema: Raw = NULL
    behavior: Raw = NULL


class ToolIn(Object):
    """Functions, or something that Google's own servers do."""

    function_declarations: Annotated[list[FunctionIn], Meta(max_length=MOST_PARTS)] | FunctionIn | None = None
    google_search: Raw = NULL
    google_search_retrieval: Raw = NULL
    google_maps: Raw = NULL
    enterprise_web_search: Raw = NULL
    code_execution: Raw = NULL
    url_context: Raw = NULL
    file_search: Raw = NULL
    computer_use: Raw = NULL
    retrieval: Raw = NULL
    mcp_servers: Raw = NULL


class FunctionCallingIn(Object):
    mode: str | None = None
    allowed_function_names: Annotated[list[str], Meta(max_length=MOST_PARTS)] | None = None
    stream_function_call_arguments: Raw = NULL


class ToolConfigIn(Object):
    function_calling_config: FunctionCallingIn | None = None
    retrieval_config: Raw = NULL
    include_server_side_tool_invocations: Raw = NULL


class ThinkingIn(Object):
    include_thoughts: bool | None = None
    thinking_budget: int | None = None
    thinking_level: str | None = None


class ConfigIn(Object):
    """The members of `generationConfig` that workers have; the others are left out and named."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    max_output_tokens: _Whole | None = None
    stop_sequences: Annotated[list[str], Meta(max_length=64)] | None = None
    candidate_count: Annotated[int, Meta(ge=1, le=128)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    response_mime_type: str | None = None
    response_schema: Raw = NULL
    response_json_schema: Raw = NULL
    response_logprobs: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_modalities: list[str] | None = None
    thinking_config: ThinkingIn | None = None


class PromptBody(Struct, rename="camel"):
    """The members that a generation and a count of its tokens share."""

    contents: Annotated[list[ContentIn], Meta(min_length=1, max_length=_MOST_CONTENTS)] | ContentIn
    system_instruction: ContentIn | None = None
    tools: Annotated[list[ToolIn], Meta(max_length=MOST_PARTS)] | ToolIn | None = None


class ChatBody(PromptBody, kw_only=True, rename="camel"):
    tool_config: ToolConfigIn | None = None


class EmbedIn(Object):
    """One text to embed, as `embedContent` has it in its body and `batchEmbedContents` in its `requests`."""

    content: ContentIn | None = None
    model: str | None = None
    task_type: str | None = None
    title: str | None = None
    output_dimensionality: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    auto_truncate: bool | None = None


class InstanceIn(Object):
    """One text to embed, as Vertex AI's `predict` has it."""

    content: str
    title: str | None = None
    task_type: str | None = None


class ParametersIn(Object):
    auto_truncate: bool | None = None
    output_dimensionality: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class EmbedBody(Struct, rename="camel"):
    """The body of `embedContent` (content), of `batchEmbedContents` (requests) and of `predict` (instances)."""

    content: ContentIn | None = None
    requests: Annotated[list[EmbedIn], Meta(min_length=1, max_length=2048)] | None = None
    instances: Annotated[list[InstanceIn], Meta(min_length=1, max_length=2048)] | None = None
    parameters: ParametersIn | None = None
    output_dimensionality: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    auto_truncate: bool | None = None
