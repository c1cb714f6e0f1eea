"""Writes parts of canonical requests for OpenAI's wire: messages, their parts, and tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import asdict

from gateway.core.messages import (
    Audio,
    Image,
    Message,
    NamedTool,
    Nested,
    Opaque,
    Part,
    Refusal,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
)
from gateway.wire.json import decoded, encode, members_of

_RAW = "_raw"
"""The one member of arguments that stand for a text that is not a JSON object."""


def put(body: dict[str, Any], **members: Any) -> None:
    """Adds to `body` the members that are not None."""
    for name, value in members.items():
        if value is not None:
            body[name] = value


def with_extra(out: dict[str, Any], extra: Nested | None) -> dict[str, Any]:
    """`out` with members that have no canonical name, put back where they were."""
    for name, value in (extra or {}).items():
        out[name] = value if isinstance(value, Raw) else with_extra(out.get(name, {}), value)
    return out


def write_message(message: Message) -> dict[str, Any]:
    """One chat message. A message of text alone has a plain string: not every server reads part arrays."""
    out: dict[str, Any] = {"role": message.role}
    only = message.parts[0] if len(message.parts) == 1 else None
    if type(only) is Text and only.extra is None:  # nearly every message
        out["content"] = only.text
    else:
        _write_parts(message.parts, out)
    put(out, name=message.name, tool_call_id=message.call_id)
    return out if message.extra is None else with_extra(out, message.extra)


def _write_parts(parts: Sequence[Part], out: dict[str, Any]) -> None:
    """Adds to the message `out` the members for its parts."""
    calls = [part for part in parts if isinstance(part, ToolCall)]
    thinking = [part.text for part in parts if isinstance(part, Thinking)]
    # A refusal that came as a content part with other members stays a content part.
    refusals = [part.text for part in parts if isinstance(part, Refusal) and part.extra is None]
    content = [
        part
        for part in parts
        if not isinstance(part, (ToolCall, Thinking)) and (not isinstance(part, Refusal) or part.extra is not None)
    ]
    if len(content) == 1 and isinstance(content[0], Text) and content[0].extra is None:
        out["content"] = content[0].text
    elif content:
        out["content"] = [_write_part(part) for part in content]
    elif calls or refusals:
        out["content"] = None
    else:
        out["content"] = ""
    if thinking:
        out["reasoning_content"] = "".join(thinking)
    if refusals:
        out["refusal"] = "".join(refusals)
    if calls:
        out["tool_calls"] = [_write_call(call) for call in calls]


class _CalledFunction(Struct, gc=False):
    name: str
    arguments: str


class _Call(Struct, gc=False):
    """A former call. As dicts they would take four times the memory, and histories hold thousands."""

    id: str | None
    type: str
    function: _CalledFunction


def _write_call(call: ToolCall) -> dict[str, Any] | _Call:
    written = _Call(call.id, "function", _CalledFunction(call.name, arguments_object(call.arguments)))
    return written if call.extra is None else with_extra(msgspec.to_builtins(written), call.extra)


def arguments_object(text: str) -> str:
    """The arguments of a former call as the text of a JSON object. Models also write what is none (a call that was cut
    by length), and clients send it back in every later request: vLLM would answer each one with a 400, llama.cpp with a
    500 (its issue 25510)."""
    if decoded(members_of, text) is not None:
        return text
    return encode({_RAW: text}).decode() if text.strip() not in ("", "null") else "{}"


def _write_part(part: Part) -> dict[str, Any] | Raw:
    match part:
        case Text():
            return with_extra({"type": "text", "text": part.text}, part.extra)
        case Image():
            image = {"url": part.url}
            put(image, detail=part.detail)
            return with_extra({"type": "image_url", "image_url": image}, part.extra)
        case Audio():
            audio = {"data": part.data, "format": part.format}
            return with_extra({"type": "input_audio", "input_audio": audio}, part.extra)
        case Refusal():
            return with_extra({"type": "refusal", "refusal": part.text}, part.extra)
        case Opaque():
            return part.raw
        case ToolCall() | Thinking():
            raise TypeError("calls and thinking are members of a message, not parts of its content")


class _Function(Struct, omit_defaults=True, gc=False):
    name: str
    description: str | None = None
    parameters: Raw | None = None
    strict: bool | None = None


class _Tool(Struct, gc=False):
    """A tool. As dicts it would take four times the memory, and requests hold thousands."""

    type: str
    function: _Function


def write_tool(tool: Tool) -> dict[str, Any] | _Tool:
    """One item of `tools`."""
    function = _Function(tool.name, tool.description, tool.parameters, tool.strict)
    if tool.extra is None:
        return _Tool("function", function)
    members = {name: value for name, value in asdict(function).items() if value is not None}
    return with_extra({"type": "function", "function": members}, tool.extra)


def write_tool_choice(choice: ToolChoice) -> Any:
    """A string, or the object that names a function."""
    if isinstance(choice, NamedTool):
        return with_extra({"type": "function", "function": {"name": choice.name}}, choice.extra)
    return choice
