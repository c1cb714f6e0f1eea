"""Reads request bodies of OpenAI's wire into the canonical form.

Shared by every dialect whose bodies resemble OpenAI's. The bodies are described in `wire.openai.request_views`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import ExtrasPolicy, sort_extras
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
    Nested,
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
from gateway.wire.json import encode, invalid, present, typed
from gateway.wire.openai.request_views import (
    FORMS,
    LONGEST_PATTERN,
    PARTS,
    Body,
    ChatBody,
    EmbedBody,
    FormatIn,
    MessageIn,
    NamedToolIn,
    PartIn,
    TextBody,
    ToolIn,
    TypeIn,
)
from gateway.wire.unknown import Form, Tree, Unknown, find_unknown

PartReader = Callable[[Raw, str], Part]
T = TypeVar("T")
Read = TypeVar("Read", bound=Chat | Complete)

_chat = msgspec.json.Decoder(ChatBody)
_text = msgspec.json.Decoder(TextBody)
_embed = msgspec.json.Decoder(EmbedBody)
_part = msgspec.json.Decoder(PartIn)
_type = msgspec.json.Decoder(TypeIn)
_object = msgspec.json.Decoder(dict[str, Raw]).decode
# Digits only: `int` also reads `1_0`, ` 7` and `-1`, which are not token ids.
_TOKEN_ID = re.compile(r"[0-9]{1,10}")
_NOTHING: Tree = {}


def read_chat(
    body: bytes,
    raw: Extra,
    extra: Extra,
    dropped: tuple[str, ...],
    policy: ExtrasPolicy = "pass",
    kind: Kind = Kind.BAD_REQUEST,
    part: PartReader | None = None,
    forms: Mapping[str, Form] = FORMS,
) -> Chat:
    """Reads a chat. `policy` applies to members inside objects that have no canonical name; those that it drops are
    removed from `raw` too. `part` reads content parts, for dialects with other forms than `read_part`; `forms` lists
    the known members of such objects.

    Raises GatewayError: BAD_REQUEST, UNSUPPORTED, or `kind` for members that `policy` refuses.
    """
    part = part or read_part
    try:
        return _chat_op(typed(body, _chat), raw, extra, dropped, part)
    except GatewayError:
        unknown = find_unknown(body, ChatBody, forms)
        if unknown is None:
            raise
    found = typed(unknown.body, _chat)
    return _settled(unknown, partial(_chat_op, found, raw, part=part), raw, extra, dropped, policy, kind)


def read_text(
    body: bytes,
    raw: Extra,
    extra: Extra,
    dropped: tuple[str, ...],
    policy: ExtrasPolicy = "pass",
    kind: Kind = Kind.BAD_REQUEST,
) -> Complete:
    """Reads a text completion. `policy` and `kind` as for `read_chat`."""
    try:
        return _text_op(typed(body, _text), raw, extra, dropped)
    except GatewayError:
        unknown = find_unknown(body, TextBody, FORMS)
        if unknown is None:
            raise
    found = typed(unknown.body, _text)
    return _settled(unknown, partial(_text_op, found, raw), raw, extra, dropped, policy, kind)


def _settled(
    unknown: Unknown,
    read: Callable[..., Read],
    raw: Extra,
    extra: Extra,
    dropped: tuple[str, ...],
    policy: ExtrasPolicy,
    kind: Kind,
) -> Read:
    """The request that `read` makes of the extra and dropped members. Unknown members inside its objects are kept or
    dropped by policy. Errors in the known members are raised first."""
    if policy == "pass":
        op = read(_with_options(extra, unknown.found), dropped, kept=unknown.found)
        op.unnamed = (*unknown.places, *op.unnamed)
        return op
    op = read(extra, (*dropped, *unknown.places))
    sort_extras(policy, unknown.places.values(), kind=kind)
    raw.update({name: value for name, value in unknown.changed.items() if name in raw})
    return op


# Members of vLLM's wire that hold a pattern, and the members of `structured_outputs` that do.
_PATTERNS = ("guided_regex", "guided_grammar", "guided_whitespace_pattern")
_INNER_PATTERNS = ("regex", "grammar", "whitespace_pattern")


def _refuse_long_patterns(extra: Extra) -> None:
    """Raises GatewayError(BAD_REQUEST) for a pattern of more than `LONGEST_PATTERN` characters among the members that
    are passed on unread."""
    given = {name: extra[name] for name in _PATTERNS if name in extra}
    outputs = extra.get("structured_outputs")
    if outputs is not None and memoryview(outputs).nbytes > LONGEST_PATTERN:
        try:
            inner = _object(outputs)
        except msgspec.ValidationError:  # not an object: the worker refuses it
            inner = {}
        given |= {f"structured_outputs.{name}": inner[name] for name in _INNER_PATTERNS if name in inner}
    for name, raw in given.items():
        # A text is never longer than its JSON.
        if memoryview(raw).nbytes > LONGEST_PATTERN and len(str(msgspec.json.decode(raw))) > LONGEST_PATTERN:
            message = f"'{name}' must have at most {LONGEST_PATTERN} characters"
            raise GatewayError(Kind.BAD_REQUEST, message, param=name, code="invalid_value")


def _chat_op(
    found: ChatBody, raw: Extra, extra: Extra, dropped: tuple[str, ...], part: PartReader, kept: Tree = _NOTHING
) -> Chat:
    for name in ("functions", "function_call"):
        if name in raw:
            raise GatewayError(
                Kind.UNSUPPORTED, f"'{name}' is not supported: use 'tools' and 'tool_choice'", param=name
            )
    if found.max_tokens == 0:
        raise GatewayError(
            Kind.BAD_REQUEST, "'max_tokens' must be at least 1", param="max_tokens", code="invalid_value"
        )
    if found.top_logprobs and not found.logprobs:
        raise GatewayError(
            Kind.BAD_REQUEST,
            "'top_logprobs' is only allowed when 'logprobs' is true",
            param="top_logprobs",
            code="invalid_value",
        )
    _refuse_long_patterns(extra)
    limit = found.max_completion_tokens or found.max_tokens
    inside = _in(kept, "messages")
    choice, parallel = _read_tool_choice(found.tool_choice, _in(kept, "tool_choice")), found.parallel_tool_calls
    if not found.tools and (choice is not None or parallel is not None):
        dropped = (*dropped, *_without_tools(choice, parallel, raw))
        choice = parallel = None
    return Chat(
        model=found.model,
        messages=tuple([_read_message(message, i, part, inside) for i, message in enumerate(found.messages)]),
        stream=bool(found.stream),
        include_usage=_include_usage(found),
        max_output=limit,
        sampling=_sampling(found),
        stop=_stop(found),
        n=found.n or 1,
        tools=_read_tools(found.tools, _in(kept, "tools")) if found.tools else (),
        tool_choice=choice,
        parallel_tools=parallel,
        output=_read_output(found.response_format, _in(kept, "response_format")),
        reasoning=found.reasoning_effort,
        logprobs=Logprobs(found.top_logprobs or 0) if found.logprobs else None,
        user=found.user,
        extra=extra,
        unnamed=("max_tokens",) if found.max_tokens not in (None, limit) else (),
        dropped=dropped,
        raw=raw,
        wire="openai",
    )


def _text_op(found: TextBody, raw: Extra, extra: Extra, dropped: tuple[str, ...], kept: Tree = _NOTHING) -> Complete:
    if found.prompt is None:
        raise GatewayError(
            Kind.BAD_REQUEST, "missing required parameter: 'prompt'", param="prompt", code="missing_parameter"
        )
    if found.best_of is not None and found.best_of != (found.n or 1):
        raise GatewayError(Kind.UNSUPPORTED, "'best_of' must equal 'n' here", param="best_of")
    _refuse_long_patterns(extra)
    return Complete(
        model=found.model,
        prompts=read_prompts(found.prompt, "prompt"),
        stream=bool(found.stream),
        include_usage=_include_usage(found),
        max_output=found.max_tokens,
        sampling=_sampling(found),
        stop=_stop(found),
        n=found.n or 1,
        output=_read_output(found.response_format, _in(kept, "response_format")),
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


def _include_usage(found: Body) -> bool:
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


def _with_options(extra: Extra, kept: Tree) -> Extra:
    """`stream_options` has no canonical form, so its unknown members are kept as a top-level member."""
    options = kept.get("stream_options")
    return {**extra, "stream_options": Raw(encode(options))} if options is not None else extra


def _stop(found: Body) -> tuple[str, ...]:
    if found.stop is None:
        return ()
    return (found.stop,) if isinstance(found.stop, str) else tuple(found.stop)


def _sampling(found: Body) -> Sampling:
    bias = None
    if found.logit_bias:
        if not all(map(_TOKEN_ID.fullmatch, found.logit_bias)):
            raise GatewayError(
                Kind.BAD_REQUEST, "'logit_bias' keys must be token ids", param="logit_bias", code="invalid_value"
            )
        bias = {int(token): value for token, value in found.logit_bias.items()}
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


def _types(items: list[Any]) -> set[type]:
    return set(map(type, items))


def read_prompts(found: str | list[Any], param: str) -> tuple[str | tuple[int, ...], ...]:
    """A prompt in any of OpenAI's four forms: a string, strings, token ids, arrays of token ids."""
    if isinstance(found, str):
        return (found,)
    kinds = _types(found)
    if kinds == {str}:
        return tuple(found)
    if kinds == {int}:
        return (tuple(found),)
    if kinds == {list} and all(item and min(item) >= 0 for item in found):
        return tuple(tuple(item) for item in found)
    raise GatewayError(
        Kind.BAD_REQUEST,
        f"'{param}' must be a string, an array of strings, an array of token ids or an array of such arrays",
        param=param,
        code="invalid_value",
    )


def _in(kept: Tree, key: str | int) -> Tree:
    """The unknown members found inside the member or item `key`."""
    inner = kept.get(key) if kept else None
    return inner if isinstance(inner, dict) else _NOTHING


def _extra(kept: Tree) -> Nested | None:
    """The unknown members found in an object, as extra members."""
    return cast(Nested, kept) or None


def _read_message(found: MessageIn, index: int, part: PartReader, kept: Tree) -> Message:
    """Reads message `index`. `kept` holds the unknown members of all messages."""
    thinking = found.reasoning or found.reasoning_content
    if not (kept or thinking or found.refusal or found.tool_calls) and isinstance(found.content, str):
        return Message(found.role, (Text(found.content),), found.name, found.tool_call_id)  # nearly every message
    parts: list[Part] = []
    if thinking:
        if found.reasoning_content not in (None, "", thinking):
            place = f"messages.{index}.reasoning"
            raise GatewayError(Kind.BAD_REQUEST, f"'{place}' and '{place}_content' differ", param=place)
        parts.append(Thinking(thinking))
    content = len(parts)
    if isinstance(found.content, str):
        parts.append(Text(found.content))
    else:
        for position, raw in enumerate(found.content or ()):
            parts.append(part(raw, f"messages.{index}.content.{position}"))
    if found.refusal:
        parts.append(Refusal(found.refusal))
    calls = len(parts)
    for position, call in enumerate(found.tool_calls or ()):
        arguments = call.function.arguments
        if not isinstance(arguments, str):
            arguments = encode(arguments).decode()
        # OpenAI's type requires an id. It is derived from the position, so that a prefix cache recognises the
        # conversation. It has nine letters and digits, because Mistral's chat templates accept nothing else.
        parts.append(ToolCall(call.id or f"c{index:04x}{position:04x}", call.function.name, arguments))
    if index not in kept:
        return Message(found.role, tuple(parts), found.name, found.tool_call_id)
    own = _in(kept, index)
    for first, name in ((content, "content"), (calls, "tool_calls")):
        inside = _in(own, name)
        for position in range(len(parts) - first):
            if position in inside:
                parts[first + position] = replace(parts[first + position], extra=_extra(_in(inside, position)))
    extra = _extra({name: value for name, value in own.items() if name not in ("content", "tool_calls")})
    return Message(found.role, tuple(parts), found.name, found.tool_call_id, extra)


def answer_calls(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages with a `call_id` on every tool message. A tool message without one answers the first open call of
    its name before it, or else the first open call. For dialects whose tool messages have no tool_call_id, which chat
    templates need."""
    if all(message.role != "tool" or message.call_id is not None for message in messages):
        return messages
    found = []
    waiting = _OpenCalls(())
    for message in messages:
        calls = [part for part in message.parts if isinstance(part, ToolCall)]
        if calls:
            waiting = _OpenCalls(calls)
        if message.role == "tool":
            if message.call_id is None:
                message = replace(message, call_id=waiting.first(message.name))
            waiting.close(message.call_id)
        found.append(message)
    return tuple(found)


class _OpenCalls:
    """The calls of one message that are not answered yet. All steps together take linear time: answered calls are
    skipped once in each order instead of being searched."""

    def __init__(self, calls: Sequence[ToolCall]) -> None:
        self._open = dict(enumerate(calls))
        self._in_order = deque(self._open)
        self._by_name: dict[str, deque[int]] = {}
        self._by_id: dict[str | None, list[int]] = {}
        for position, call in self._open.items():
            self._by_name.setdefault(call.name, deque()).append(position)
            self._by_id.setdefault(call.id, []).append(position)

    def first(self, name: str | None) -> str | None:
        """The id of the first open call with that name, else of the first open call; None if none is left."""
        for order in (self._by_name.get(name or "", deque()), self._in_order):
            while order:
                if order[0] in self._open:
                    return self._open[order[0]].id
                order.popleft()
        return None

    def close(self, call_id: str | None) -> None:
        for position in self._by_id.pop(call_id, ()):
            self._open.pop(position, None)


def read_part(raw: Raw, place: str) -> Part:
    """One content part. Raises GatewayError(BAD_REQUEST) naming `place`."""
    try:
        found = _part.decode(raw)
    except msgspec.ValidationError:
        kind = read_at(place, raw, _type).type
        if encode(kind) not in PARTS:
            return Opaque(kind, raw)
        found = read_at(place, raw, _part)
    kind = found.type
    part: Part
    if kind == "text" and found.text is not None:
        part = Text(found.text)
    elif kind == "image_url" and found.image_url is not None:
        image = found.image_url
        part = Image(image) if isinstance(image, str) else Image(image.url, image.detail)
    elif kind == "input_audio" and found.input_audio is not None:
        part = Audio(found.input_audio.data, found.input_audio.format)
    elif kind == "refusal" and found.refusal is not None:
        part = Refusal(found.refusal)
    elif encode(kind) not in PARTS:
        return Opaque(kind, raw)
    else:
        name = f"{place}.{kind}"
        raise GatewayError(
            Kind.BAD_REQUEST, f"missing required parameter: '{name}'", param=name, code="missing_parameter"
        )
    if (found.text, found.image_url, found.input_audio, found.refusal).count(None) != 3:
        raise GatewayError(Kind.BAD_REQUEST, f"'{place}' has more than its type '{kind}' allows", param=place)
    return part


def read_at(place: str, raw: Raw, decoder: msgspec.json.Decoder[T]) -> T:
    """Reads the value at `place` (`messages.0.content.1`). Raises GatewayError(BAD_REQUEST), which names the place."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise invalid(error, place) from None


def _read_tools(found: list[ToolIn], kept: Tree) -> tuple[Tool, ...]:
    return tuple([_read_tool(tool, index, _in(kept, index)) for index, tool in enumerate(found)])


def _read_tool(found: ToolIn, index: int, kept: Tree) -> Tool:
    if found.type != "function" or found.function is None:
        raise GatewayError(
            Kind.BAD_REQUEST,
            f"'tools.{index}' must be of type 'function' with a 'function' object",
            param=f"tools.{index}",
            code="invalid_value",
        )
    function = found.function
    return Tool(function.name, function.description, present(function.parameters), function.strict, _extra(kept))


def _without_tools(choice: ToolChoice | None, parallel: bool | None, raw: Extra) -> list[str]:
    """Removes tool parameters of a request without tools from `raw` and returns their names: engines refuse them.
    Raises GatewayError(BAD_REQUEST) if the request requires a tool call."""
    if choice == "required" or isinstance(choice, NamedTool):
        raise GatewayError(
            Kind.BAD_REQUEST,
            "'tool_choice' asks for a tool, but there are no 'tools'",
            param="tool_choice",
            code="invalid_value",
        )
    said = {"tool_choice": choice, "parallel_tool_calls": parallel}
    names = [name for name, value in said.items() if value is not None]
    for name in names:
        raw.pop(name, None)
    return names


def _read_tool_choice(found: str | NamedToolIn | None, kept: Tree) -> ToolChoice | None:
    if found is None or found in ("none", "auto", "required"):
        return found  # type: ignore[return-value]  # narrowed by the comparison
    if not isinstance(found, str) and found.type == "function" and found.function is not None:
        return NamedTool(found.function.name, _extra(kept))
    raise GatewayError(
        Kind.BAD_REQUEST,
        "'tool_choice' must be 'none', 'auto', 'required' or a named function",
        param="tool_choice",
        code="invalid_value",
    )


def _read_output(found: FormatIn | None, kept: Tree) -> Output | None:
    if found is None:
        return None
    if found.type in ("text", "json_object"):
        if found.json_schema is not None:
            place = "response_format.json_schema"
            raise GatewayError(Kind.BAD_REQUEST, f"'{place}' has no meaning for type {found.type}", param=place)
        return Output("text" if found.type == "text" else "json", extra=_extra(kept))
    if found.type == "json_schema" and found.json_schema is not None:
        schema = found.json_schema
        return Output(
            "schema",
            present(schema.schema),
            name=schema.name,
            strict=schema.strict,
            description=schema.description,
            extra=_extra(kept),
        )
    raise GatewayError(
        Kind.BAD_REQUEST,
        "'response_format.type' must be 'text', 'json_object' or 'json_schema' (with a 'json_schema' object)",
        param="response_format",
        code="invalid_value",
    )
