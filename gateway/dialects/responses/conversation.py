"""The items of a Responses request as canonical messages.

Consecutive reasoning, text and calls of the assistant become one message. Every tool output becomes a tool message;
images in outputs follow behind the last one. The instructions and all system and developer messages at the start become
one system message; a later one keeps its place. `dropped` names what is left out.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections import deque
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Raw

from gateway.core.errors import GatewayError, Kind
from gateway.core.messages import Audio, Image, Message, Part, Text, Thinking, ToolCall
from gateway.dialects._shared.faults import wrong_at
from gateway.dialects.responses import compaction
from gateway.dialects.responses.tools import Toolbox, as_arguments
from gateway.dialects.responses.views import ITEMS, ItemIn, PartIn, TypeIn
from gateway.wire.json import NULL, invalid
from gateway.wire.sealed import Seal

_type = msgspec.json.Decoder(TypeIn)
_item = msgspec.json.Decoder(ItemIn)
_output = msgspec.json.Decoder(str | list[PartIn])
_TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_SYSTEM = frozenset({"system", "developer"})
# Tools that clients execute by themselves, without a function. Their calls and outputs stay in the history as text.
_FLAT = frozenset({"local_shell_call", "shell_call", "apply_patch_call", "mcp_call"})
_FLAT_OUTPUTS = frozenset({"local_shell_call_output", "shell_call_output", "apply_patch_call_output"})
_UNTOLD = ("type", "id", "status")
_object = msgspec.json.Decoder(dict[str, Raw])


class Conversation:
    """The items of one request, read. `seal` opens the reasoning that was sealed here for its caller. Raises
    GatewayError(BAD_REQUEST).

    messages  in canonical form
    box       the tools, including those that items add
    compacts  the last item asks for a summary of all that is before it
    dropped   the names of what is left out, each once
    """

    def __init__(self, found: str | list[Raw], instructions: str | None, box: Toolbox, seal: Seal) -> None:
        self.messages: list[Message] = []
        self.box = box
        self.compacts = False
        self._seal = seal
        self.dropped: dict[str, None] = {}
        self._leading: list[str] | None = [instructions] if instructions else []
        # The parts of the assistant's message that is being read.
        self._parts: list[Part] = []
        # Calls without an output so far; images in outputs; system messages between calls and their outputs.
        self._unanswered: set[str] = set()
        self._images: list[Part] = []
        self._held: list[Message] = []
        if isinstance(found, str):
            self._user([Text(found)])
        else:
            items = deque(self._decoded(raw, f"input.{index}") for index, raw in enumerate(found))
            for index, item in enumerate(items):
                if isinstance(item, ItemIn) and item.type == "additional_tools":
                    box.add(item.tools or [], f"input.{index}.tools")
            last = items[-1] if items else None
            self.compacts = isinstance(last, ItemIn) and last.type == compaction.TRIGGER
            if self.compacts:
                items.pop()
            for index in range(len(items)):
                item = items.popleft()  # so that it is in memory in one form only
                if isinstance(item, ItemIn):
                    self._read(item, f"input.{index}")
                elif item is not None:
                    self._flat(*item)
            if self.compacts:
                self._user([Text(compaction.ASK)])
        self._end_leading()
        self._end_assistant()
        self._end_outputs()
        if not self.messages:
            raise wrong_at("input", "at least one message is required")

    # -- items ------------------------------------------------------------------------------------------------------

    def _decoded(self, raw: Raw, place: str) -> ItemIn | tuple[str, Raw] | None:
        """The item; (its type, itself) if it is kept as text only; None if it is left out."""
        try:
            kind = _type.decode(raw).type or "message"
            if kind in ITEMS:
                return _item.decode(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise invalid(error, place) from None
        self.dropped[f"input[].{kind[:64]}"] = None
        return (kind, raw) if kind in _FLAT or kind in _FLAT_OUTPUTS else None

    def _read(self, item: ItemIn, place: str) -> None:
        kind = item.type or "message"
        if kind == "message":
            self._message(item, place)
        elif kind == "reasoning":
            self._reasoning(item)
        elif kind == "function_call":
            self._call(item, item.arguments or "{}", place)
        elif kind == "custom_tool_call":
            self._call(item, as_arguments(item.input or ""), place)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._said(item, place)
        elif kind == "item_reference":
            self._reference(item, place)
        elif kind == compaction.TYPE:
            self._summary(item, place)
        elif kind == compaction.TRIGGER:  # of a former request
            self.dropped[f"input[].{kind}"] = None

    def _message(self, item: ItemIn, place: str) -> None:
        role = item.role
        content = [PartIn("input_text", item.content)] if isinstance(item.content, str) else item.content or []
        parts = [part for one in content for part in self._part(one, f"{place}.content")]
        if role in _SYSTEM:
            self._system(parts)
        elif role == "assistant":
            self._assistant(parts)
        elif role == "user":
            self._user(parts)
        else:
            raise wrong_at(f"{place}.role", "must be user, assistant, system or developer")

    def _system(self, parts: list[Part]) -> None:
        text = "\n\n".join(part.text for part in parts if isinstance(part, Text) and part.text)
        if any(not isinstance(part, Text) for part in parts):
            self.dropped["input[].content[].input_image"] = None
        if not text:
            return
        if self._leading is not None:
            self._leading.append(text)
            return
        self._end_assistant()
        message = Message("system", (Text(text),))
        if self._unanswered:
            self._held.append(message)
        else:
            self._end_outputs()
            self.messages.append(message)

    def _user(self, parts: list[Part]) -> None:
        self._end_leading()
        self._end_assistant()
        images, self._images = self._images, []
        self._end_outputs()
        self.messages.append(Message("user", (*images, *parts)))

    def _assistant(self, parts: list[Part]) -> None:
        if parts:
            self._end_leading()
            if not self._parts:
                self._end_outputs()
            self._parts += parts

    def _reasoning(self, item: ItemIn) -> None:
        """Reasoning of any origin. The model gets back plain text, and text sealed here for this caller."""
        sealed = self._seal.open(item.encrypted_content) if item.encrypted_content else None
        if sealed is not None:
            self._assistant([Thinking(sealed)])
            return
        content = item.content if isinstance(item.content, list) else []
        found = [part.text for part in content if part.text] or [part.text for part in item.summary or [] if part.text]
        if found:
            self._assistant([Thinking("\n\n".join(found))])
        elif item.encrypted_content:
            self.dropped["input[].reasoning.encrypted_content"] = None

    def _call(self, item: ItemIn, arguments: str, place: str) -> None:
        if not item.call_id or not item.name:
            raise wrong_at(place, f"a {item.type} needs a call_id and a name")
        self._assistant([ToolCall(item.call_id, self.box.name_of(item.name, item.namespace), arguments)])
        self._unanswered.add(item.call_id)

    def _said(self, item: ItemIn, place: str) -> None:
        try:
            found = _output.decode(item.output) if item.output != NULL else ""
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise invalid(error, f"{place}.output") from None
        content = [PartIn("input_text", found)] if isinstance(found, str) else found
        parts = [part for one in content for part in self._part(one, f"{place}.output")]
        text = "\n".join(part.text for part in parts if isinstance(part, Text))
        self._end_leading()
        self._end_assistant()
        self.messages.append(Message("tool", (Text(text),), call_id=item.call_id or ""))
        self._unanswered.discard(item.call_id or "")
        self._images += [part for part in parts if not isinstance(part, Text)]

    def _reference(self, item: ItemIn, place: str) -> None:
        if (item.id or "").startswith("rs_"):
            self.dropped["input[].item_reference"] = None
            return
        message = (
            f"{place}: an item_reference to '{(item.id or '')[:64]}', but nothing is stored here: send the item "
            "itself, as clients do with `store: false`"
        )
        raise GatewayError(Kind.BAD_REQUEST, message, param=place, code="item_not_found")

    def _summary(self, item: ItemIn, place: str) -> None:
        """A summary goes to the model as the user's words. Without it the model would not know the history."""
        where = f"{place}.encrypted_content"
        try:
            told = compaction.as_told(item.encrypted_content or "")
        except compaction.Damaged:
            raise wrong_at(where, "this summary is damaged") from None
        if told is None:
            raise wrong_at(where, "no summary that was made here, so the history cannot be read: send the conversation")
        self._user([Text(told)])

    def _flat(self, kind: str, raw: Raw) -> None:
        try:
            members = {name: value for name, value in _object.decode(raw).items() if name not in _UNTOLD}
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise invalid(error, "input") from None
        text = Text(f"[{kind}: {msgspec.json.encode(members).decode()}]")
        if kind in _FLAT:
            self._assistant([text])
        else:
            self._user([text])

    # -- ends -------------------------------------------------------------------------------------------------------

    def _end_leading(self) -> None:
        """The first turn begins: all system text before it becomes one message."""
        if self._leading:
            self.messages.append(Message("system", (Text("\n\n".join(self._leading)),)))
        self._leading = None

    def _end_assistant(self) -> None:
        if self._parts:
            self.messages.append(Message("assistant", tuple(self._parts)))
            self._parts = []

    def _end_outputs(self) -> None:
        """The outputs of the last calls are complete."""
        self._unanswered.clear()
        if self._images:
            self.messages.append(Message("user", tuple(self._images)))
            self._images = []
        self.messages += self._held
        self._held = []

    # -- parts ------------------------------------------------------------------------------------------------------

    def _part(self, part: PartIn, place: str) -> list[Part]:
        if part.type in _TEXTS:
            return [Text(part.text)] if part.text else []
        if part.type == "refusal":
            return [Text(part.refusal)] if part.refusal else []
        if part.type == "input_image":
            if part.image_url is None:
                raise wrong_at(place, "files are not kept here: send an image as a URL or a data URL in image_url")
            return [Image(part.image_url, "high" if part.detail == "original" else part.detail)]
        if part.type == "input_file":
            return [Text(_file(part, place))]
        if part.type == "input_audio" and part.input_audio is not None:
            return [Audio(part.input_audio.data, part.input_audio.format)]
        self.dropped[f"input[].content[].{part.type[:64]}"] = None
        return [Text(part.text)] if part.text else []


def _file(part: PartIn, place: str) -> str:
    """The text of a file. Only files of text that come with the request can be read here."""
    head, comma, data = (part.file_data or "").partition(",")
    kind, *options = head.removeprefix("data:").split(";")
    readable = kind.startswith("text/") or kind in ("application/json", "application/xml")
    if not (comma and head.startswith("data:") and readable):
        raise wrong_at(place, "only files of text can be read, and only as a data URL in file_data")
    try:
        text = (b64decode(data, validate=True) if "base64" in options else unquote_to_bytes(data)).decode()
    except (Base64Error, ValueError):
        raise wrong_at(place, "file_data is not text in UTF-8") from None
    return f"{part.filename}:\n{text}" if part.filename else text
