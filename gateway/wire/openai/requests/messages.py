"""Reads messages of OpenAI's wire, their content parts, and tools into the canonical form."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from gateway.core.errors import GatewayError, Kind
from gateway.core.messages import (
    Audio,
    Extra,
    Image,
    Message,
    NamedTool,
    Opaque,
    Part,
    Refusal,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
)
from gateway.wire.json import bad_value, encode, invalid, members_of, missing, objects_of, present
from gateway.wire.openai.requests.parts import arguments_object
from gateway.wire.openai.requests.views import PARTS, MessageIn, NamedToolIn, PartIn, ToolFunctionIn, ToolIn, TypeIn
from gateway.wire.unknown import NOTHING, Tree, as_extra, inside

PartReader = Callable[[Raw, str], Part]
"""Reads the content part of a param (`messages.0.content.1`). Raises GatewayError(BAD_REQUEST), which names that."""
T = TypeVar("T")

_part = msgspec.json.Decoder(PartIn)
_type = msgspec.json.Decoder(TypeIn)


def read_messages(found: Sequence[MessageIn], raw: Extra, part: PartReader, unknown: Tree) -> tuple[Message, ...]:
    """Reads the messages of a chat. unknown: the unknown members of its body. Former calls in `raw`, the members of
    its body, are made good: see `_repair_calls`."""
    unknown = inside(unknown, "messages")
    messages: list[Message] = []
    called = False
    for message in found:
        text = message.content
        seldom = message.tool_calls or message.reasoning or message.reasoning_content or message.refusal
        if seldom or unknown or type(text) is not str:
            called = called or bool(message.tool_calls)
            messages.append(_read_message(message, len(messages), part, unknown))
        else:
            messages.append(Message(message.role, (Text(text),), message.name, message.tool_call_id))
    if called:
        _repair_calls(found, raw)
    return tuple(messages)


def _repair_calls(found: Sequence[MessageIn], raw: Extra) -> None:
    """Rewrites former calls in `raw`, the members of a body, if the arguments of one are not a JSON object: it goes to
    the worker as the client sent it, and the worker would refuse the whole conversation. found: its messages. A `raw`
    without messages is not what the worker gets."""
    for message in found:
        if message.tool_calls:
            given = [call.function.arguments for call in message.tool_calls]
            if "messages" in raw and any(not isinstance(text, dict) and _repaired_text(text) != text for text in given):
                raw["messages"] = _repaired(found, raw["messages"])
                return


def _repaired_text(text: str | None) -> str:
    return arguments_object(text or "")


def _repaired(found: Sequence[MessageIn], raw: Raw) -> Raw:
    messages = objects_of(raw)
    for message, members in zip(found, messages, strict=True):
        if not message.tool_calls:
            continue
        calls = objects_of(members["tool_calls"])
        for call, written in zip(message.tool_calls, calls, strict=True):
            if not isinstance(call.function.arguments, dict):
                arguments = Raw(encode(_repaired_text(call.function.arguments)))
                written["function"] = Raw(encode({**members_of(written["function"]), "arguments": arguments}))
        members["tool_calls"] = Raw(encode(calls))
    return Raw(encode(messages))


def _read_message(found: MessageIn, index: int, part: PartReader, unknown: Tree) -> Message:
    """Reads message `index` of any form. `unknown` holds the unknown members of all messages."""
    thinking = found.reasoning or found.reasoning_content
    parts: list[Part] = []
    if thinking:
        if found.reasoning_content not in (None, "", thinking):
            param = f"messages.{index}.reasoning"
            raise GatewayError(Kind.BAD_REQUEST, f"'{param}' and '{param}_content' differ", param=param)
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
        arguments = call.function.arguments or ""
        if not isinstance(arguments, str):
            arguments = encode(arguments).decode()
        # OpenAI's type requires an id. It is derived from the position, so that a prefix cache recognises the
        # conversation. It has nine letters and digits, because Mistral's chat templates accept nothing else.
        parts.append(ToolCall(call.id or f"c{index:04x}{position:04x}", call.function.name, arguments))
    if index not in unknown:
        return Message(found.role, tuple(parts), found.name, found.tool_call_id)
    own = inside(unknown, index)
    for first, name in ((content, "content"), (calls, "tool_calls")):
        found_inside = inside(own, name)
        for position in range(len(parts) - first):
            if position in found_inside:
                nested = as_extra(inside(found_inside, position))
                parts[first + position] = replace(parts[first + position], extra=nested)
    extra = as_extra({name: value for name, value in own.items() if name not in ("content", "tool_calls")})
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


def read_part(raw: Raw, param: str) -> Part:
    """One content part. Raises GatewayError(BAD_REQUEST) naming `param`."""
    try:
        found = _part.decode(raw)
    except msgspec.ValidationError:
        kind = read_at(param, raw, _type).type
        if encode(kind) not in PARTS:
            return Opaque(kind, raw)
        found = read_at(param, raw, _part)
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
        raise missing(f"{param}.{kind}")
    if (found.text, found.image_url, found.input_audio, found.refusal).count(None) != 3:
        raise GatewayError(Kind.BAD_REQUEST, f"'{param}' has more than its type '{kind}' allows", param=param)
    return part


def read_at(param: str, raw: Raw, decoder: msgspec.json.Decoder[T]) -> T:
    """Reads the value of `param` (`messages.0.content.1`). Raises GatewayError(BAD_REQUEST), which names that."""
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise invalid(error, param) from None


def read_tools(found: list[ToolIn], unknown: Tree) -> tuple[Tool, ...]:
    return tuple([_read_tool(tool, index, inside(unknown, index)) for index, tool in enumerate(found)])


def _read_tool(found: ToolIn, index: int, unknown: Tree) -> Tool:
    if found.type != "function" or found.function is None:
        raise bad_value(f"tools.{index}", f"'tools.{index}' must be of type 'function' with a 'function' object")
    return function_tool(found.function, unknown)


def function_tool(found: ToolFunctionIn, unknown: Tree = NOTHING) -> Tool:
    """The tool whose `function` this is."""
    return Tool(found.name, found.description, present(found.parameters), found.strict, as_extra(unknown))


def without_tools(choice: ToolChoice | None, parallel: bool | None, raw: Extra) -> list[str]:
    """Removes tool parameters of a request without tools from `raw` and returns their names: engines refuse them.
    Raises GatewayError(BAD_REQUEST) if the request requires a tool call."""
    if choice == "required" or isinstance(choice, NamedTool):
        raise bad_value("tool_choice", "'tool_choice' asks for a tool, but there are no 'tools'")
    given = {"tool_choice": choice, "parallel_tool_calls": parallel}
    names = [name for name, value in given.items() if value is not None]
    for name in names:
        raw.pop(name, None)
    return names


def read_tool_choice(found: str | NamedToolIn | None, unknown: Tree) -> ToolChoice | None:
    if found is None or found in ("none", "auto", "required"):
        return found  # type: ignore[return-value]  # narrowed by the comparison
    if not isinstance(found, str) and found.type == "function" and found.function is not None:
        return NamedTool(found.function.name, as_extra(unknown))
    raise bad_value("tool_choice", "'tool_choice' must be 'none', 'auto', 'required' or a named function")
