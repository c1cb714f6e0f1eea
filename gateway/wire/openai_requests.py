"""What clients of OpenAI's wire send: typed views of request bodies, and their canonical form.

Shared by every dialect whose bodies resemble OpenAI's. Bounds are those that OpenAI documents, or such as keep a worker
from being harmed by one request (vLLM has crashed on huge `n`, penalties and biases).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.messages import (
    Audio,
    Chat,
    Complete,
    Embed,
    Extra,
    Image,
    Logprobs,
    Message,
    NamedTool,
    Opaque,
    Output,
    Part,
    Refusal,
    Sampling,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
)
from gateway.wire.json import NULL, encode, invalid, present, typed

PartReader = Callable[[Raw, str], Part]

_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Choices = Annotated[int, Meta(ge=1, le=128)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Bias = Annotated[float, Meta(ge=-100, le=100)]


# -- what clients send ----------------------------------------------------------------------------------------------


class _FunctionIn(Struct):
    name: str
    # JSON text; an object is what clients of Ollama send.
    arguments: str | dict[str, Any] = ""


class _CallIn(Struct):
    function: _FunctionIn
    id: str | None = None


class _MessageIn(Struct):
    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[Raw] | None = None
    name: str | None = None
    tool_calls: list[_CallIn] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _ImageIn(Struct):
    url: str
    detail: str | None = None


class _AudioIn(Struct):
    data: str
    format: str


class _PartIn(Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: _ImageIn | str | None = None
    input_audio: _AudioIn | None = None


class _ToolFunctionIn(Struct):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: Raw = NULL
    strict: bool | None = None


class _ToolIn(Struct):
    type: str
    function: _ToolFunctionIn | None = None


class _NamedFunctionIn(Struct):
    name: str


class _NamedToolIn(Struct):
    type: str
    function: _NamedFunctionIn | None = None


class _SchemaIn(Struct):
    name: str | None = None
    schema: Raw = NULL
    strict: bool | None = None


class _FormatIn(Struct):
    type: str
    json_schema: _SchemaIn | None = None


class _StreamOptionsIn(Struct):
    include_usage: bool | None = None


class _BodyIn(Struct):
    """What a chat and a text completion share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptionsIn | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    logit_bias: Annotated[dict[str, _Bias], Meta(max_length=1024)] | None = None
    stop: str | Annotated[list[str], Meta(max_length=64)] | None = None
    n: _Choices | None = None
    user: str | None = None
    response_format: _FormatIn | None = None
    # vLLM's own, which clients of every dialect send: on the way to a worker of another wire they must not be lost.
    # Their ranges are the worker's business.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[int], Meta(max_length=1024)] | None = None


class _ChatBody(_BodyIn, kw_only=True):
    messages: Annotated[list[_MessageIn], Meta(min_length=1, max_length=16384)]
    max_completion_tokens: _Count | None = None
    tools: list[_ToolIn] | None = None
    tool_choice: str | _NamedToolIn | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class _TextBody(_BodyIn):
    prompt: str | list[str | int | list[int]] | None = None
    suffix: str | None = None
    echo: bool | None = None
    best_of: _Choices | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class _EmbedBody(Struct):
    input: str | Annotated[list[str | int | list[int]], Meta(min_length=1, max_length=2048)]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: _Count | None = None
    user: str | None = None


CHAT_MEMBERS = frozenset(_ChatBody.__struct_fields__)
"""The members that `read_chat` gives a canonical place; others can only travel as they are."""
TEXT_MEMBERS = frozenset(_TextBody.__struct_fields__)
"""The same of `read_text`."""

_chat = msgspec.json.Decoder(_ChatBody)
_text = msgspec.json.Decoder(_TextBody)
_embed = msgspec.json.Decoder(_EmbedBody)
_part = msgspec.json.Decoder(_PartIn)


def read_chat(body: bytes, raw: Extra, extra: Extra, dropped: tuple[str, ...], part: PartReader | None = None) -> Chat:
    """`part` reads content parts, for dialects that know other forms of them than `read_part`."""
    found = typed(body, _chat)
    part = part or read_part
    for name in ("functions", "function_call"):
        if name in raw:
            raise GatewayError(
                Kind.UNSUPPORTED, f"'{name}' is not supported: use 'tools' and 'tool_choice'", param=name
            )
    if found.max_tokens == 0:
        raise GatewayError(
            Kind.BAD_REQUEST, "'max_tokens' must be at least 1", param="max_tokens", code="invalid_value"
        )
    return Chat(
        model=found.model,
        messages=tuple([_read_message(message, i, part) for i, message in enumerate(found.messages)]),
        stream=bool(found.stream),
        include_usage=_include_usage(found),
        max_output=found.max_completion_tokens or found.max_tokens,
        sampling=_sampling(found),
        stop=_stop(found),
        n=found.n or 1,
        tools=tuple([_read_tool(tool, i) for i, tool in enumerate(found.tools)]) if found.tools else (),
        tool_choice=_read_tool_choice(found.tool_choice),
        parallel_tools=found.parallel_tool_calls,
        output=_read_output(found.response_format),
        reasoning=found.reasoning_effort,
        logprobs=Logprobs(found.top_logprobs or 0) if found.logprobs else None,
        user=found.user,
        extra=extra,
        dropped=dropped,
        raw=raw,
        wire="openai",
    )


def read_text(body: bytes, raw: Extra, extra: Extra, dropped: tuple[str, ...]) -> Complete:
    found = typed(body, _text)
    if found.prompt is None:
        raise GatewayError(
            Kind.BAD_REQUEST, "missing required parameter: 'prompt'", param="prompt", code="missing_parameter"
        )
    if found.best_of is not None and found.best_of != (found.n or 1):
        raise GatewayError(Kind.UNSUPPORTED, "'best_of' must equal 'n' here", param="best_of")
    return Complete(
        model=found.model,
        prompts=read_prompts(found.prompt, "prompt"),
        stream=bool(found.stream),
        include_usage=_include_usage(found),
        max_output=found.max_tokens,
        sampling=_sampling(found),
        stop=_stop(found),
        n=found.n or 1,
        output=_read_output(found.response_format),
        logprobs=Logprobs(found.logprobs) if found.logprobs is not None else None,
        echo=bool(found.echo),
        suffix=found.suffix,
        user=found.user,
        extra=extra,
        dropped=dropped,
        raw=raw,
        wire="openai",
    )


def read_embed(body: bytes, raw: Extra, extra: Extra, dropped: tuple[str, ...]) -> Embed:
    found = typed(body, _embed)
    if found.encoding_format not in (None, "float", "base64"):
        raise GatewayError(
            Kind.BAD_REQUEST,
            "'encoding_format' must be 'float' or 'base64'",
            param="encoding_format",
            code="invalid_value",
        )
    return Embed(
        model=found.model,
        inputs=read_prompts(found.input, "input"),
        encoding=found.encoding_format,  # type: ignore[arg-type]  # checked above
        dimensions=found.dimensions,
        user=found.user,
        extra=extra,
        dropped=dropped,
        raw=raw,
        wire="openai",
    )


# -- requests to canonical ------------------------------------------------------------------------------------------


def _include_usage(found: _BodyIn) -> bool:
    if found.stream_options is None:
        return False
    if not found.stream:
        raise GatewayError(
            Kind.BAD_REQUEST,
            "'stream_options' is only allowed when 'stream' is true",
            param="stream_options",
            code="invalid_value",
        )
    return bool(found.stream_options.include_usage)


def _stop(found: _BodyIn) -> tuple[str, ...]:
    if found.stop is None:
        return ()
    return (found.stop,) if isinstance(found.stop, str) else tuple(found.stop)


def _sampling(found: _BodyIn) -> Sampling:
    bias = None
    if found.logit_bias:
        try:
            bias = {int(token): value for token, value in found.logit_bias.items()}
        except ValueError:
            raise GatewayError(
                Kind.BAD_REQUEST, "'logit_bias' keys must be token ids", param="logit_bias", code="invalid_value"
            ) from None
    return Sampling(
        temperature=found.temperature,
        top_p=found.top_p,
        seed=found.seed,
        frequency_penalty=found.frequency_penalty,
        presence_penalty=found.presence_penalty,
        logit_bias=bias,
        top_k=found.top_k,
        min_p=found.min_p,
        repetition_penalty=found.repetition_penalty,
        min_tokens=found.min_tokens,
        ignore_eos=found.ignore_eos,
        stop_tokens=tuple(found.stop_token_ids or ()),
    )


def read_prompts(found: str | list[Any], param: str) -> tuple[str | tuple[int, ...], ...]:
    """A prompt in any of OpenAI's four forms: a string, strings, token ids, arrays of token ids."""
    if isinstance(found, str):
        return (found,)
    kinds = {type(item) for item in found}
    if kinds == {str}:
        return tuple(found)
    if kinds == {int}:
        return (tuple(found),)
    if kinds == {list} and all(item and all(token >= 0 for token in item) for item in found):
        return tuple(tuple(item) for item in found)
    raise GatewayError(
        Kind.BAD_REQUEST,
        f"'{param}' must be a string, an array of strings, an array of token ids or an array of such arrays",
        param=param,
        code="invalid_value",
    )


def _read_message(found: _MessageIn, index: int, part: PartReader) -> Message:
    thinking = found.reasoning or found.reasoning_content
    if not (thinking or found.refusal or found.tool_calls) and isinstance(found.content, str):
        return Message(found.role, (Text(found.content),), found.name, found.tool_call_id)  # nearly all there are
    parts: list[Part] = []
    if thinking:
        parts.append(Thinking(thinking))
    if isinstance(found.content, str):
        parts.append(Text(found.content))
    else:
        for position, raw in enumerate(found.content or ()):
            parts.append(part(raw, f"messages.{index}.content.{position}"))
    if found.refusal:
        parts.append(Refusal(found.refusal))
    for call in found.tool_calls or ():
        arguments = call.function.arguments
        if not isinstance(arguments, str):
            arguments = encode(arguments).decode()
        parts.append(ToolCall(call.id, call.function.name, arguments))
    return Message(found.role, tuple(parts), found.name, found.tool_call_id)


def answer_calls(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages with a `call_id` on every tool message: one that has none answers the first open call before it.
    For dialects whose tool messages have no tool_call_id, which chat templates want."""
    if all(message.role != "tool" or message.call_id is not None for message in messages):
        return messages
    found = []
    waiting: list[str] = []
    for message in messages:
        calls = [part.id for part in message.parts if isinstance(part, ToolCall) and part.id is not None]
        waiting = calls or waiting
        if message.role == "tool":
            if message.call_id is None and waiting:
                message = msgspec.structs.replace(message, call_id=waiting[0])
            waiting = [call for call in waiting if call != message.call_id]
        found.append(message)
    return tuple(found)


def read_part(raw: Raw, place: str) -> Part:
    """One content part. Raises GatewayError(BAD_REQUEST) naming `place`."""
    try:
        found = _part.decode(raw)
    except msgspec.ValidationError as error:
        fault = invalid(error)
        fault.param = f"{place}.{fault.param}" if fault.param else place
        raise fault from None
    if found.type == "text" and found.text is not None:
        return Text(found.text)
    if found.type == "image_url" and found.image_url is not None:
        if isinstance(found.image_url, str):
            return Image(found.image_url)
        return Image(found.image_url.url, found.image_url.detail)
    if found.type == "input_audio" and found.input_audio is not None:
        return Audio(found.input_audio.data, found.input_audio.format)
    if found.type == "refusal" and found.refusal is not None:
        return Refusal(found.refusal)
    if found.type in ("text", "image_url", "input_audio", "refusal"):
        raise GatewayError(
            Kind.BAD_REQUEST,
            f"missing required parameter: '{place}.{found.type}'",
            param=f"{place}.{found.type}",
            code="missing_parameter",
        )
    return Opaque(found.type, raw)


def _read_tool(found: _ToolIn, index: int) -> Tool:
    if found.type != "function" or found.function is None:
        raise GatewayError(
            Kind.BAD_REQUEST,
            f"'tools.{index}' must be of type 'function' with a 'function' object",
            param=f"tools.{index}",
            code="invalid_value",
        )
    function = found.function
    return Tool(function.name, function.description, present(function.parameters), function.strict)


def _read_tool_choice(found: str | _NamedToolIn | None) -> ToolChoice | None:
    if found is None or found in ("none", "auto", "required"):
        return found  # type: ignore[return-value]  # narrowed by the comparison
    if not isinstance(found, str) and found.type == "function" and found.function is not None:
        return NamedTool(found.function.name)
    raise GatewayError(
        Kind.BAD_REQUEST,
        "'tool_choice' must be 'none', 'auto', 'required' or a named function",
        param="tool_choice",
        code="invalid_value",
    )


def _read_output(found: _FormatIn | None) -> Output | None:
    if found is None:
        return None
    if found.type == "text":
        return Output("text")
    if found.type == "json_object":
        return Output("json")
    if found.type == "json_schema" and found.json_schema is not None:
        schema = found.json_schema
        return Output("schema", present(schema.schema), name=schema.name, strict=schema.strict)
    raise GatewayError(
        Kind.BAD_REQUEST,
        "'response_format.type' must be 'text', 'json_object' or 'json_schema' (with a 'json_schema' object)",
        param="response_format",
        code="invalid_value",
    )
