"""The items of a Responses request as canonical messages.

Consecutive reasoning, text and calls of the assistant become one message. Every tool output becomes a tool message;
images in outputs follow behind the last one. The instructions and all system and developer messages at the start become
one system message; a later one keeps its position. `dropped` names what is left out.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Raw, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.messages import Audio, Image, KindOfServerTool, Message, Part, Text, Thinking, ToolCall
from gateway.dialects._shared.faults import wrong_at
from gateway.dialects._shared.parts import divide
from gateway.dialects.responses import compaction
from gateway.dialects.responses.stored import with_past
from gateway.dialects.responses.tools import Toolbox, as_arguments
from gateway.dialects.responses.views import ITEMS, ItemIn, PartIn, PromptBody, SearchCallIn, TypeIn, UrlIn
from gateway.wire.json import NULL, decoded
from gateway.wire.openai.requests.messages import read_at
from gateway.wire.sealed import Seal

_type = msgspec.json.Decoder(TypeIn)
_item = msgspec.json.Decoder(ItemIn)
_output = msgspec.json.Decoder(str | list[PartIn])
_object = msgspec.json.Decoder(dict[str, Raw])
_search_call = msgspec.json.Decoder(SearchCallIn)
_annotations = msgspec.json.Decoder(list[UrlIn])
# Tools that clients execute by themselves, without a function. Their calls and outputs stay in the history as text.
_FLAT = frozenset({"local_shell_call", "shell_call", "apply_patch_call", "mcp_call"})
_FLAT_OUTPUTS = frozenset({"local_shell_call_output", "shell_call_output", "apply_patch_call_output"})
_OMITTED = ("type", "id", "status")


class Given(Struct, frozen=True):
    """The facts of a request that its body does not hold: the caller's seal for reasoning; `Request.stored`; the server
    tools that the gateway runs; whether what is stored outlasts the connection; whether the connection caches the
    response in any case."""

    seal: Seal
    stored: Mapping[str, bytes | None] | None = None
    runs: frozenset[KindOfServerTool] = frozenset()
    lasts: bool = True
    cached: bool = False


class Conversation:
    """The items of one request, read, with those that are stored. Raises GatewayError(BAD_REQUEST), NeedsStored.

    input     a text, or the items with those that are stored
    messages  in canonical form
    box       the tools, including those that items add
    compacts  the request, or its last item, asks for a summary of all that is before it
    dropped   the names of what is left out, each once
    found     URLs that tools of the web have brought, if pages can be fetched
    """

    def __init__(self, found: PromptBody, given: Given, compacts: bool = False) -> None:
        self.box = Toolbox(given.runs)
        self.box.add(found.tools or [], "tools")
        self.input = with_past(found.input, found.previous_response_id, given.stored)
        self.messages: list[Message] = []
        self.compacts = compacts
        self.dropped: dict[str, None] = {}
        self.found: list[str] = []
        self._fetches = "fetch" in given.runs
        self._seal = given.seal
        self._leading: list[str] | None = [found.instructions] if found.instructions else []
        # The parts of the assistant's message that is being read.
        self._parts: list[Part] = []
        # Calls without an output so far; images in outputs; system messages between calls and their outputs.
        self._unanswered: set[str] = set()
        # All calls, where the history is ours: no client can have left one out.
        self._called: set[str] | None = set() if found.previous_response_id else None
        self._images: list[Part] = []
        self._held: list[Message] = []
        if isinstance(self.input, str):
            self._user([Text(self.input)])
        else:
            self._read_all(self.input)
        if self.compacts and (self.messages or self._parts or self._leading):
            self._user([Text(compaction.ASK)])
        self._end_leading()
        self._end_assistant()
        self._end_outputs()
        if not self.messages:
            raise wrong_at("input", "at least one message is required")

    # -- items ------------------------------------------------------------------------------------------------------

    def _read_all(self, found: list[Raw]) -> None:
        items = [self._decoded(raw, f"input.{index}") for index, raw in enumerate(found)]
        for index, item in enumerate(items):
            if item is not None and item.type == "additional_tools":
                self.box.add(item.tools or [], f"input.{index}.tools")
        last = items[-1] if items else None
        if last is not None and last.type == compaction.TRIGGER:
            self.compacts = True
            items.pop()
        for index, item in enumerate(items):
            items[index] = None  # so that it is in memory in one form only
            if item is not None:
                self._read(item, f"input.{index}")

    def _decoded(self, raw: Raw, param: str) -> ItemIn | None:
        """The item, or None if it is left out. An item that stays text is its own `output`."""
        kind = read_at(param, raw, _type).type or "message"
        if kind in ITEMS:
            return read_at(param, raw, _item)
        self.dropped[f"input[].{kind[:64]}"] = None
        if kind == "web_search_call" and self._fetches and (call := decoded(_search_call.decode, raw)) is not None:
            self.found += call.found
        return ItemIn(kind, output=raw) if kind in _FLAT or kind in _FLAT_OUTPUTS else None

    def _read(self, item: ItemIn, param: str) -> None:
        match item.type or "message":
            case "message":
                self._message(item, param)
            case "reasoning":
                self._reasoning(item)
            case "function_call":
                self._call(item, item.arguments or "{}", param)
            case "custom_tool_call":
                self._call(item, as_arguments(item.input or ""), param)
            case "function_call_output" | "custom_tool_call_output":
                self._tool_output(item, param)
            case "item_reference":
                self._reference(item, param)
            case compaction.TYPE:
                summary = compaction.read_summary(item.encrypted_content or "", f"{param}.encrypted_content")
                self._user([Text(summary)])
            case compaction.TRIGGER:  # of a former request
                self.dropped[f"input[].{compaction.TRIGGER}"] = None
            case kind if kind in _FLAT:
                self._assistant([_flat(kind, item.output)])
            case kind if kind in _FLAT_OUTPUTS:
                self._user([_flat(kind, item.output)])
            case _:
                pass  # tools, which were read before

    def _message(self, item: ItemIn, param: str) -> None:
        parts = self._content(item.content, f"{param}.content")
        match item.role:
            case "assistant":
                if self._fetches and isinstance(item.content, list):
                    self._find_cited(item.content)
                self._assistant(parts)
            case "user":
                self._user(parts)
            case "system" | "developer":
                self._system(parts)
            case _:
                raise wrong_at(f"{param}.role", "must be user, assistant, system or developer")

    def _find_cited(self, parts: list[PartIn]) -> None:
        for part in parts:
            if part.annotations != NULL:
                self.found += [one.url for one in decoded(_annotations.decode, part.annotations) or () if one.url]

    def _system(self, parts: list[Part]) -> None:
        texts, media = divide(parts)
        if media:
            self.dropped["input[].content[].input_image"] = None
        text = "\n\n".join(filter(None, texts))
        if not text:
            return
        if self._leading is not None:
            self._leading.append(text)
            return
        self._end_assistant()
        if not self._unanswered:
            self._end_outputs()
        (self._held if self._unanswered else self.messages).append(Message("system", (Text(text),)))

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

    def _call(self, item: ItemIn, arguments: str, param: str) -> None:
        if not item.call_id or not item.name:
            raise wrong_at(param, f"a {item.type} needs a call_id and a name")
        self._assistant([ToolCall(item.call_id, self.box.name_of(item.name, item.namespace), arguments)])
        self._unanswered.add(item.call_id)
        if self._called is not None:
            self._called.add(item.call_id)

    def _tool_output(self, item: ItemIn, param: str) -> None:
        if self._called is not None and item.call_id not in self._called:
            name = (item.call_id or "")[:64]
            raise wrong_at(f"{param}.call_id", f"No tool call found for function call output with call_id {name}.")
        found = read_at(f"{param}.output", item.output, _output) if item.output != NULL else ""
        texts, media = divide(self._content(found, f"{param}.output"))
        self._end_leading()
        self._end_assistant()
        self.messages.append(Message("tool", (Text("\n".join(texts)),), call_id=item.call_id or ""))
        self._unanswered.discard(item.call_id or "")
        self._images += media

    def _reference(self, item: ItemIn, param: str) -> None:
        if (item.id or "").startswith("rs_"):
            self.dropped["input[].item_reference"] = None
            return
        message = (
            f"{param}: an item_reference to '{(item.id or '')[:64]}', but nothing is stored here: send the item "
            "itself, as clients do with `store: false`"
        )
        raise GatewayError(Kind.BAD_REQUEST, message, param=param, code="item_not_found")

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

    def _content(self, found: str | list[PartIn] | None, param: str) -> list[Part]:
        if isinstance(found, str):
            return [Text(found)] if found else []
        return [part for one in found or () for part in self._part(one, param)]

    def _part(self, part: PartIn, param: str) -> list[Part]:
        text = part.text
        match part.type:
            case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
                pass
            case "refusal":
                text = part.refusal
            case "input_image":
                if part.image_url is None:
                    raise wrong_at(param, "files are not kept here: send an image as a URL or a data URL in image_url")
                return [Image(part.image_url, "high" if part.detail == "original" else part.detail)]
            case "input_file":
                return [Text(_file(part, param))]
            case "input_audio" if part.input_audio is not None:
                return [Audio(part.input_audio.data, part.input_audio.format)]
            case _:
                self.dropped[f"input[].content[].{part.type[:64]}"] = None
        return [Text(text)] if text else []


def _flat(kind: str, raw: Raw) -> Text:
    """An item of another type as text."""
    members = {name: value for name, value in read_at("input", raw, _object).items() if name not in _OMITTED}
    return Text(f"[{kind}: {msgspec.json.encode(members).decode()}]")


def _file(part: PartIn, param: str) -> str:
    """The text of a file. Only files of text that come with the request can be read here."""
    head, comma, data = (part.file_data or "").partition(",")
    kind, *options = head.removeprefix("data:").split(";")
    readable = kind.startswith("text/") or kind in ("application/json", "application/xml")
    if not (comma and head.startswith("data:") and readable):
        raise wrong_at(param, "only files of text can be read, and only as a data URL in file_data")
    try:
        text = (b64decode(data, validate=True) if "base64" in options else unquote_to_bytes(data)).decode()
    except ValueError:
        raise wrong_at(param, "file_data is not text in UTF-8") from None
    return f"{part.filename}:\n{text}" if part.filename else text
