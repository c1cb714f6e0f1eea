"""The turns of a chat as canonical messages.

Ollama's own calls and results carry no ids. Each call gets one, and each result takes the call that it names, else the
first open one of its tool, else the first open one. A result without any call left is a message of the user: no chat
template has a place for it.
"""

from __future__ import annotations

import re

from msgspec import Raw
from msgspec.structs import replace

from gateway.core.messages import Image, Message, Part, Text, Thinking, ToolCall
from gateway.dialects._shared.faults import wrong
from gateway.dialects._shared.objects import members_of
from gateway.dialects.ollama.views import CallIn, MessageIn
from gateway.wire import images
from gateway.wire.json import NULL, text_in
from gateway.wire.openai.requests.messages import answer_calls

_LINK = re.compile(r"https?://", re.IGNORECASE)


def read_messages(found: list[MessageIn]) -> tuple[Message, ...]:
    """The canonical messages; every call and every result has an id. Raises GatewayError(BAD_REQUEST)."""
    ids = _Ids()
    messages = [_message(message, index, ids) for index, message in enumerate(found)]
    return tuple(
        replace(message, role="user", name=None) if message.role == "tool" and message.call_id is None else message
        for message in answer_calls(tuple(messages))
    )


def pictures(found: list[str] | None, param: str) -> list[Part]:
    """Images as base64, of known formats. Raises GatewayError(BAD_REQUEST), which names the image."""
    parts: list[Part] = []
    for position, image in enumerate(found or ()):
        url = None if _LINK.match(image) else images.as_url(image)
        if url is None:
            raise wrong(f"{param}.{position}", "is not the base64 of an image of a known format")
        parts.append(Image(url))
    return parts


class _Ids:
    """The ids of calls. own_ids: the client's id -> ours; a client may use an id again in a later turn."""

    def __init__(self) -> None:
        self.own_ids: dict[str, str] = {}
        self._used: set[str] = set()

    def of(self, call: CallIn, index: int, position: int) -> str:
        """The client's id, or nine letters and digits if it has none or one that is taken: Mistral's chat templates
        accept nothing else. They are derived from the position, so that a prefix cache recognises the conversation."""
        own = call.id if call.id and call.id not in self._used else f"c{index:04x}{position:04x}"
        if call.id:
            self.own_ids[call.id] = own
        self._used.add(own)
        return own


def _message(found: MessageIn, index: int, ids: _Ids) -> Message:
    role = found.role.lower()
    parts: list[Part] = []
    if found.thinking:
        parts.append(Thinking(found.thinking))
    parts += pictures(found.images, f"messages.{index}.images")
    if found.content or not (found.tool_calls or parts):
        parts.append(Text(found.content or ""))
    for position, call in enumerate(found.tool_calls or ()):
        param = f"messages.{index}.tool_calls.{position}.function.arguments"
        text = arguments_text(call.function.arguments, param)
        parts.append(ToolCall(ids.of(call, index, position), call.function.name, text))
    if role != "tool":
        return Message(role, tuple(parts), found.name)
    call_id = ids.own_ids.get(found.tool_call_id or "")
    return Message(role, tuple(parts), found.tool_name or found.name, call_id)


def arguments_text(found: Raw, param: str) -> str:
    """The arguments of a call as JSON text, with members and numbers unchanged."""
    if found == NULL:
        return "{}"
    if members_of(found) is not None:
        return bytes(found).decode()
    text = text_in(found)
    if text is None:
        raise wrong(param, "must be an object")
    return text
