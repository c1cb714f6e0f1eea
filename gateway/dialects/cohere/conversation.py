"""The messages of a chat, and its documents, as canonical messages."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from gateway.core.messages import Image, Message, Part, Text, Thinking, ToolCall
from gateway.dialects._shared.faults import wrong, wrong_at
from gateway.dialects._shared.objects import members_of
from gateway.dialects.cohere.views import DocumentIn, MessageIn, PartIn
from gateway.wire.json import NULL, check_depth, missing, text_in

_ROLES = ("system", "user", "assistant", "tool")
# Role -> the blocks that its content may have.
_BLOCKS = {
    "system": ("text",),
    "user": ("text", "image_url"),
    "assistant": ("text", "thinking"),
    "tool": ("text", "document"),
}
_DOCUMENTS = "Documents for the answer:"


def read_messages(found: list[MessageIn]) -> tuple[list[Message], tuple[str, ...]]:
    """(the canonical messages, the names of what is left out). Raises GatewayError(BAD_REQUEST)."""
    messages = [_message(message, f"messages.{index}") for index, message in enumerate(found)]
    last = messages[-1]
    if last.role == "assistant" and any(isinstance(part, ToolCall) for part in last.parts):
        raise wrong_at(f"messages.{len(found) - 1}", "a call without its result behind it")
    left = {
        "messages[].citations": any(message.citations != NULL for message in found),
        "messages[].name": any(message.name and message.role != "tool" for message in found),
        "messages[].tool_call_id": any(message.tool_call_id and message.role != "tool" for message in found),
        "messages[].tool_plan": any(message.tool_plan and message.role != "assistant" for message in found),
        "messages[].content[].document.id": any(map(_has_names, found)),
    }
    return messages, tuple(name for name, given in left.items() if given)


def _has_names(found: MessageIn) -> bool:
    """Whether documents in a tool's result have ids, which only an answer that cites would name."""
    return isinstance(found.content, list) and any(part.document and part.document.id for part in found.content)


def _message(found: MessageIn, param: str) -> Message:
    if found.role not in _ROLES:
        raise wrong_at(f"{param}.role", f"must be one of {', '.join(_ROLES)}")
    given = [PartIn("text", found.content)] if isinstance(found.content, str) else found.content or []
    if found.role == "tool":
        if not found.tool_call_id:
            raise missing(f"{param}.tool_call_id")
        words = [_result(part, f"{param}.content.{position}") for position, part in enumerate(given)]
        return Message("tool", (Text("\n".join(words)),), found.name, found.tool_call_id)
    if found.role == "assistant":
        # The plan is what the model said before its calls.
        given = [*given, PartIn("text", found.tool_plan)] if found.tool_plan else given
    elif found.tool_calls:
        raise wrong_at(f"{param}.tool_calls", "belong to the messages of the assistant")
    parts = [_part(part, found.role, f"{param}.content.{position}") for position, part in enumerate(given)]
    for position, call in enumerate(found.tool_calls or ()):
        # The position makes the id, so that a prefix cache recognises the conversation.
        made = f"c{param.rpartition('.')[2]:0>4}{position:04x}"
        parts.append(ToolCall(call.id or made, call.function.name, call.function.arguments or "{}"))
    return Message(found.role, tuple(parts) or (Text(""),))


def _part(found: PartIn, role: str, param: str) -> Part:
    if found.type not in _BLOCKS[role]:
        raise wrong_at(f"{param}.type", f"must be {' or '.join(_BLOCKS[role])} in a message of the {role}")
    if found.type == "text" and found.text is not None:
        return Text(found.text)
    if found.type == "thinking" and found.thinking is not None:
        return Thinking(found.thinking)
    if found.type == "image_url" and found.image_url is not None:
        image = found.image_url
        return Image(image) if isinstance(image, str) else Image(image.url, image.detail)
    raise missing(f"{param}.{found.type}")


def _result(found: PartIn, param: str) -> str:
    """The text of a block of a tool's result."""
    if found.type == "document" and found.document is not None:
        return _words(found.document, f"{param}.document.data")
    part = _part(found, "tool", param)
    assert isinstance(part, Text)
    return part.text


# -- documents --------------------------------------------------------------------------------------------------------


def with_documents(messages: list[Message], found: Sequence[str | DocumentIn]) -> list[Message]:
    """The messages with the documents in the first system message. Raises GatewayError(BAD_REQUEST)."""
    pieces = [_DOCUMENTS]
    for index, one in enumerate(found):
        named = one.id if isinstance(one, DocumentIn) and one.id else f"doc:{index}"
        words = one if isinstance(one, str) else _words(one, f"documents.{index}.data")
        pieces.append(f"[{named}]\n{words}")
    text = "\n\n".join(pieces)
    first = messages[0]
    if first.role != "system":
        return [Message("system", (Text(text),)), *messages]
    texts = [part.text for part in first.parts if isinstance(part, Text)]
    return [Message("system", (Text("\n\n".join(filter(None, [*texts, text]))),)), *messages[1:]]


def _words(found: DocumentIn, param: str) -> str:
    """The text that the model gets: a text as it is, also one that is the only member of the object; else the object
    as JSON."""
    text = text_in(found.data)
    if text is not None:
        return text
    members = members_of(found.data)
    if members is None:
        raise wrong(param, "must be an object or a text")
    check_depth({param: found.data})
    only: Raw | None = next(iter(members.values())) if len(members) == 1 else None
    text = text_in(only) if only is not None else None
    return bytes(found.data).decode() if text is None else text
