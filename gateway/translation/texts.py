"""The texts of requests and replies, for guards: to show them, and to put others in their place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from gateway.core.estimate import unknown_members
from gateway.core.lifecycle import Reply, ReplyPart
from gateway.core.messages import (
    Audio,
    Chat,
    Complete,
    Embed,
    Image,
    Media,
    Message,
    Opaque,
    Part,
    Refusal,
    Score,
    Text,
    Thinking,
    Tool,
    ToolCall,
)

Guarded = Chat | Complete | Embed | Score | Media
"""Operations with texts that a model reads."""
_OF_MEDIA = ("prompt", "input", "instructions", "hotwords", "keywords", "known_speaker_names")
"""Members of a request for sound, images, or text of sound that a model reads as text."""
_FORMATS = ("structured_outputs", "guided_regex", "guided_grammar", "guided_choice", "guided_json", "grammar")
"""Members beside `Output` that have a pattern, a grammar, choices or a schema: a model writes what they hold."""
_IN_FORMATS = ("regex", "grammar", "choice", "json", "value")
_SCHEMAS = ("guided_json", "json", "value")
# Left to right, so that each backslash is met once: a pair of surrogates, any other escape.
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
Replacements = Sequence[str | None]
"""A text for each one that was shown, in their order; None keeps it."""


class Shown(Struct, omit_defaults=True):
    """One text. role: of its message, "tools" for the description of a tool, "prompt", "suffix", "input", "query",
    "document", "format" (a pattern, a grammar, a choice or a schema that the reply must match), or a name in
    `_OF_MEDIA`. kind: text, thinking, refusal, tool (the arguments of a call), or schema (JSON). name: of the tool, or
    of who speaks. choice: of a reply.
    """

    role: str
    text: str
    kind: str = "text"
    name: str | None = None
    choice: int = 0


Swap = Callable[[Shown], str]


def called(name: str | None, arguments: str, role: str = "assistant", choice: int = 0) -> Shown:
    """The arguments of a call as all who read them have them: without escapes of letters (`\\u0046` for F)."""
    return Shown(role, _plain(arguments), "tool", name, choice)


def _plain(json_text: str) -> str:
    return _ESCAPE.sub(_letter, json_text) if "\\" in json_text else json_text


def _letter(escape: re.Match[str]) -> str:
    text = escape[0]
    if text[1] not in "u/":
        return text
    letter: str = json.loads(f'"{text}"')
    escaped = letter in '"\\' or letter < " " or "\ud800" <= letter[0] <= "\udfff"
    return text if escaped else letter


def texts_of(op: Guarded) -> list[Shown]:
    """The texts of a request that a model reads."""
    found: list[Shown] = []

    def show(text: Shown) -> str:
        found.append(text)
        return text.text

    _swapped(op, show)
    return found


def put_texts(op: Guarded, texts: Replacements) -> None:
    """Puts `texts` in the place of those that `texts_of` has shown."""
    left = iter(texts)

    def swap(text: Shown) -> str:
        new = next(left)
        return text.text if new is None else new

    for name, value in _swapped(op, swap).items():
        setattr(op, name, value)
    op.rewritten = True


def fit(shown: Sequence[Shown], texts: Replacements) -> bool:
    """Whether `texts` may stand in the place of those that were shown: a schema is a JSON object."""
    return len(shown) == len(texts) and all(
        new is None or new == one.text or _is_object(new)
        for one, new in zip(shown, texts, strict=True)
        if one.kind == "schema"
    )


def _is_object(text: str) -> bool:
    try:
        return type(msgspec.json.decode(text)) is dict
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False


def unshown(op: Guarded) -> list[str]:
    """The rest of a request that a model may read: "image", "audio", "tokens" (of a prompt), types of parts without a
    canonical form, and names of members without one."""
    if isinstance(op, Media):
        files = [] if op.form is None else ["audio" if op.work in ("transcribe", "translate") else "image"]
        hidden = [name for name, value in _text_members(op).items() if not isinstance(value, str | None)]
        return sorted({*files, *hidden, *(name for name in op.unnamed if name not in _OF_MEDIA)})
    found = {*unknown_members(op), *getattr(op, "unnamed", ())}
    if isinstance(op, Chat):
        for part in (part for message in op.messages for part in message.parts):
            if isinstance(part, (Image, Audio)):
                found.add(type(part).__name__.lower())
            elif isinstance(part, Opaque):
                found.add(part.type)
    elif not isinstance(op, Score):
        given = op.prompts if isinstance(op, Complete) else op.inputs
        if any(not isinstance(one, str) for one in given):
            found.add("tokens")
    return sorted(found)


def texts_of_reply(reply: Reply) -> list[Shown]:
    return [_of_reply(part, choice.index) for choice in reply.choices for part in choice.parts]


def _of_reply(part: ReplyPart, choice: int) -> Shown:
    if part.kind == "tool":
        return called(part.name, part.text, choice=choice)
    return Shown("assistant", part.text, part.kind, part.name, choice)


def put_reply_texts(reply: Reply, texts: Replacements) -> None:
    """As `put_texts`. A part with another text has no tokens of the old one."""
    parts = (part for choice in reply.choices for part in choice.parts)
    for part, new in zip(parts, texts, strict=True):
        if new is not None and new != _of_reply(part, 0).text:
            part.text, part.tokens, part.logprobs, part.citations = new, (), (), ()


def _swapped(op: Guarded, swap: Swap) -> dict[str, Any]:
    """The members of `op` that have texts, with those that `swap` returns."""

    def alone(role: str, given: Sequence[Any]) -> tuple[Any, ...]:
        return tuple([swap(Shown(role, one)) if isinstance(one, str) else one for one in given])

    match op:
        case Chat():
            messages = tuple([_message(message, swap) for message in op.messages])
            tools = tuple([_tool(tool, swap) for tool in op.tools])
            return {"messages": messages, "tools": tools, **_formats(op, swap)}
        case Complete():
            prompts = alone("prompt", op.prompts)
            suffix = next(iter(alone("suffix", [op.suffix])))
            return {"prompts": prompts, "suffix": suffix, **_formats(op, swap)}
        case Embed():
            return {"inputs": alone("input", op.inputs)}
        case Score():
            return {"queries": alone("query", op.queries), "documents": alone("document", op.documents)}
        case Media():
            return _media(op, swap)


def _formats(op: Chat | Complete, swap: Swap) -> dict[str, Any]:
    """The constraints on the output."""

    def swapped(value: object) -> Any:
        if isinstance(value, str):
            return swap(Shown("format", value))
        return [swapped(one) for one in value] if isinstance(value, list) else value

    def inside(name: str, value: object) -> Any:
        if name in _SCHEMAS and type(value) is dict:
            return _schema("format", Raw(msgspec.json.encode(value)), swap)
        return swapped(value)

    found: dict[str, Any] = {}
    output = op.output
    if output is not None:
        found["output"] = replace(
            output,
            pattern=swapped(output.pattern),
            choices=tuple(swapped(list(output.choices))),
            schema=_schema("format", output.schema, swap),
            description=swapped(output.description),
        )
    members = {**op.extra, **(op.raw or {})}
    for name in _FORMATS:
        if name in members:
            value = msgspec.json.decode(members[name])
            if type(value) is dict and name not in _SCHEMAS:
                value |= {key: inside(key, value[key]) for key in _IN_FORMATS if key in value}
            else:
                value = inside(name, value)
            for where, given in (("raw", op.raw), ("extra", op.extra)):  # backends read one or the other
                if given is not None and name in given:
                    found[where] = {**found.get(where, given), name: Raw(msgspec.json.encode(value))}
    return found


def _media(op: Media, swap: Swap) -> dict[str, Any]:
    words = "input" if op.work == "speak" else "prompt"
    if op.form is not None:
        fields = [
            (name, swap(Shown(bare, text)) if (bare := name.partition("[")[0]) in _OF_MEDIA else text)
            for name, text in op.fields
        ]
        return {"fields": tuple(fields), "words": dict(fields).get(words, "")}
    extra = dict(op.extra)
    texts = _text_members(op)
    for name, text in texts.items():
        if isinstance(text, str) and (new := swap(Shown(name, text))) != text:
            texts[name], extra[name] = new, Raw(msgspec.json.encode(new))
    return {"extra": extra, "words": texts.get(words, "")}


def _text_members(op: Media) -> dict[str, Any]:
    """The members of a JSON body that a model reads as text."""
    return {name: msgspec.json.decode(op.extra[name]) for name in _OF_MEDIA if name in op.extra}


def _message(message: Message, swap: Swap) -> Message:
    return replace(message, parts=tuple(_parts(message, swap)))


def _parts(message: Message, swap: Swap) -> Iterator[Part]:
    role, name = message.role, message.name
    for part in message.parts:
        match part:
            case Text():
                yield replace(part, text=swap(Shown(role, part.text, name=name)))
            case Thinking():
                yield replace(part, text=swap(Shown(role, part.text, "thinking")))
            case Refusal():
                yield replace(part, text=swap(Shown(role, part.text, "refusal")))
            case ToolCall():
                shown = called(part.name, part.arguments, role)
                new = swap(shown)
                yield part if new == shown.text else replace(part, arguments=new)
            case Image() | Audio() | Opaque():
                yield part


def _tool(tool: Tool, swap: Swap) -> Tool:
    description = swap(Shown("tools", tool.description or "", name=tool.name)) or None
    return replace(tool, description=description, parameters=_schema("tools", tool.parameters, swap, tool.name))


def _schema(role: str, schema: Raw | None, swap: Swap, name: str | None = None) -> Raw | None:
    """A schema as JSON, without escapes of letters."""
    if schema is None:
        return None
    plain = _plain(bytes(schema).decode())
    new = swap(Shown(role, plain, "schema", name))
    return schema if new == plain else Raw(new.encode())
