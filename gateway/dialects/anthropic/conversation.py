"""The turns of a Messages request as canonical messages.

Tool results become tool messages, in order, directly behind the calls that they answer. Images in them follow behind
the last one, then the rest of the turn. A system turn keeps its place, but never separates calls from their results.
`dropped` names what is left out.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Raw

from gateway.core.messages import Image, Message, Part, Text, Thinking, ToolCall
from gateway.dialects._shared.faults import decoded, wrong_at
from gateway.dialects.anthropic.views import BlockIn, MessageIn, SourceIn, ToolIn
from gateway.wire.json import NULL, bad_value

_content = msgspec.json.Decoder(str | list[BlockIn])
_tool = msgspec.json.Decoder(ToolIn)
_object = msgspec.json.Decoder(dict[str, Raw])
# Claude Code's system prompt begins with this block. Its content changes with every request, so a prefix cache would
# never match.
_BILLING = "x-anthropic-billing-header"
_ERROR = "Error: "
# A block's content is decoded once for every block around it. Clients nest two.
_DEEPEST = 8


class Conversation:
    """The turns of one request, read. Raises GatewayError(BAD_REQUEST).

    messages   the turns in canonical form
    continues  the last message is the assistant's, and the reply continues it
    referred   the names of deferred tools that a `tool_reference` has shown to the model
    added      tools that a system turn added, by name; of several with one name the last
    removed    the names of tools that a system turn removed
    dropped    the names of what is left out, each once
    """

    def __init__(self, turns: list[MessageIn], system: str | list[BlockIn] | None) -> None:
        self.messages: list[Message] = []
        self.continues = False
        self.referred: set[str] = set()
        self.added: dict[str, ToolIn] = {}
        self.removed: set[str] = set()
        self.dropped: dict[str, None] = {}
        self._depth = 0
        # System turns that came between calls and their results; they go behind the results.
        self._held: list[Message] = []
        leading = self._system_text(system, "system")
        if leading:
            self.messages.append(Message("system", (Text(leading),)))
        for role, first, blocks in _turns(turns):
            if role == "user":
                self._user(first, blocks)
            elif role == "assistant":
                self._assistant(first, blocks)
            else:
                self._system(first, blocks)
        self.messages += self._held
        last = self.messages[-1] if self.messages else None
        if last is None:
            raise wrong_at("messages", "at least one message is required")
        if last.role == "assistant":
            if _calls(last):
                raise bad_value("messages", f"messages.{len(turns) - 1}: a tool_use without a tool_result behind it")
            self.continues = True

    # -- turns ------------------------------------------------------------------------------------------------------

    def _user(self, place: str, blocks: list[BlockIn]) -> None:
        results = [block for block in blocks if block.type in _RESULTS]
        parts: list[Part] = []
        for block in results:
            text, images = self._result(block, place)
            self.messages.append(Message("tool", (Text(text),), call_id=block.tool_use_id or ""))
            parts += images
        self.messages += self._held
        self._held = []
        for block in blocks:
            if block.type not in _RESULTS:
                parts += self._part(block, place)
        if parts or not results:
            self.messages.append(Message("user", tuple(parts)))

    def _assistant(self, place: str, blocks: list[BlockIn]) -> None:
        parts: list[Part] = []
        for block in blocks:
            if block.type == "thinking":
                if block.thinking:
                    parts.append(Thinking(block.thinking))
            elif block.type == "tool_use":
                parts.append(ToolCall(block.id or "", block.name or "", _arguments(block, place)))
            elif block.type == "redacted_thinking":
                self.dropped["messages[].content[].redacted_thinking"] = None
            else:
                parts += self._part(block, place)
        if parts:
            self.messages.append(Message("assistant", tuple(parts)))

    def _system(self, place: str, blocks: list[BlockIn]) -> None:
        for block in blocks:
            if block.type in ("tool_addition", "tool_removal"):
                self._change_tools(block, place)
        text = self._system_text([block for block in blocks if block.type not in _CHANGES], place)
        if not text:
            return
        message = Message("system", (Text(text),))
        if self.messages and _calls(self.messages[-1]):
            self._held.append(message)
        else:
            self.messages.append(message)

    def _system_text(self, found: str | list[BlockIn] | None, place: str) -> str:
        texts = []
        for block in [BlockIn("text", found)] if isinstance(found, str) else found or ():
            if block.type == "text" and not (block.text or "").startswith(_BILLING):
                texts.append(block.text or "")
            elif block.type != "text":
                texts += self._texts(self._part(block, place), place)
        return "\n\n".join(text for text in texts if text)

    def _texts(self, parts: list[Part], place: str) -> list[str]:
        """The texts of `parts`, where there is no place for images: they are left out and named."""
        if any(not isinstance(part, Text) for part in parts):
            self.dropped["system[].image" if place == "system" else "messages[].content[].image"] = None
        return [part.text for part in parts if isinstance(part, Text)]

    def _change_tools(self, block: BlockIn, place: str) -> None:
        """Adds or removes one tool. The block holds a whole tool, or names one in a `tool_reference`."""
        try:
            members = _object.decode(block.tool)
            name = msgspec.json.decode(members.get("tool_name", members.get("name", NULL)), type=str)
            whole = "tool_name" not in members
            tool = _tool.decode(msgspec.json.encode(members)) if whole and block.type == "tool_addition" else None
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.dropped[f"messages[].content[].{block.type}"] = None
            return
        if block.type == "tool_removal":
            self.removed.add(name)
            self.added.pop(name, None)
            return
        self.removed.discard(name)
        self.referred.add(name)
        if tool is not None:
            self.added[name] = tool

    # -- blocks -----------------------------------------------------------------------------------------------------

    def _part(self, block: BlockIn, place: str) -> list[Part]:
        """The parts of a block that may stand anywhere: any block but a call or its result."""
        if block.type == "text":
            return [Text(block.text)] if block.text else []
        if block.type == "image":
            return [self._image(block, place)]
        if block.type == "document":
            return self._document(block, place)
        if block.type == "search_result":
            head = "\n".join(text for text in (block.title, _address(block.source)) if text)
            return [Text("\n".join(text for text in (head, self._flat(block, place)) if text))]
        if block.type == "tool_reference":
            if block.tool_name:
                self.referred.add(block.tool_name)
            return [Text(f"Tool: {block.tool_name}")]
        flat = self._flat(block, place) or block.text or ""
        self.dropped[f"messages[].content[].{block.type[:64]}"] = None
        return [Text(flat)] if flat else []

    def _flat(self, block: BlockIn, place: str) -> str:
        """The texts in a block's content, joined; "" if there are none."""
        if block.content == NULL:
            return ""
        found = decoded(_content.decode, block.content)
        if found is None or isinstance(found, str):
            return found or ""
        if self._depth == _DEEPEST:
            self.dropped["messages[].content[].content"] = None
            return ""
        self._depth += 1
        parts = [part for inner in found for part in self._part(inner, place)]
        self._depth -= 1
        return "\n".join(self._texts(parts, place))

    def _result(self, block: BlockIn, place: str) -> tuple[str, list[Part]]:
        """(the text of a tool result, the images in it)."""
        try:
            found = _content.decode(block.content) if block.content != NULL else ""
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise wrong_at(f"{place}.content", f"of a tool_result: {error}") from None
        blocks = [BlockIn("text", found)] if isinstance(found, str) else found
        parts = [part for inner in blocks for part in self._part(inner, place)]
        text = "\n".join(part.text for part in parts if isinstance(part, Text))
        if block.is_error:
            text = _ERROR + text
        return text, [part for part in parts if not isinstance(part, Text)]

    def _image(self, block: BlockIn, place: str) -> Image:
        source = block.source
        if isinstance(source, SourceIn):
            if source.type == "base64" and source.data is not None:
                return Image(f"data:{source.media_type or 'image/png'};base64,{source.data}")
            if source.type == "url" and source.url is not None:
                return Image(source.url)
            if source.type == "file":
                raise wrong_at(f"{place}.content", "files are not kept here: send the image as base64 or by its URL")
        raise wrong_at(f"{place}.content", "the source of an image must be base64 with data, or url with url")

    def _document(self, block: BlockIn, place: str) -> list[Part]:
        """The text of a document, and the images in it. A document without text (a PDF) becomes a note, not an error:
        agents send the whole history with every request, so an error would end their session."""
        source = block.source
        head = "\n".join(text for text in (block.title, block.context) if text)
        parts: list[Part] = []
        text: str | None = None
        if isinstance(source, SourceIn) and source.type == "text":
            text = source.data or ""
        elif isinstance(source, SourceIn) and source.type == "content":
            inner = [BlockIn("text", source.content)] if isinstance(source.content, str) else source.content or []
            found = [part for one in inner for part in self._part(one, place)]
            text = "\n".join(part.text for part in found if isinstance(part, Text))
            parts = [part for part in found if not isinstance(part, Text)]
        if text is None:
            self.dropped["messages[].content[].document"] = None
            kind = "PDF" if isinstance(source, SourceIn) and source.media_type == "application/pdf" else "document"
            text = f"[{kind} omitted]"
        return [Text("\n".join(one for one in (head, text) if one)), *parts]


_RESULTS = frozenset({"tool_result"})
_CHANGES = frozenset({"tool_addition", "tool_removal"})


def _turns(found: list[MessageIn]) -> Iterable[tuple[str, str, list[BlockIn]]]:
    """(role, place of its first message, blocks) of each turn. Consecutive messages of one role are one turn; each
    system message is its own."""
    turns: list[tuple[str, str, list[BlockIn]]] = []
    for index, message in enumerate(found):
        if message.role not in ("user", "assistant", "system"):
            raise wrong_at(f"messages.{index}.role", "must be 'user', 'assistant' or 'system'")
        blocks = [BlockIn("text", message.content)] if isinstance(message.content, str) else message.content
        if turns and turns[-1][0] == message.role and message.role != "system":
            turns[-1][2].extend(blocks)
        else:
            turns.append((message.role, f"messages.{index}", list(blocks)))
    return turns


def _calls(message: Message) -> bool:
    return message.role == "assistant" and any(isinstance(part, ToolCall) for part in message.parts)


def _arguments(block: BlockIn, place: str) -> str:
    """The JSON text of a call's input."""
    if block.input == NULL:
        return "{}"
    if decoded(_object.decode, block.input) is None:
        raise wrong_at(f"{place}.content", "the input of a tool_use must be an object")
    return bytes(block.input).decode()


def _address(source: SourceIn | str | None) -> str | None:
    return source if isinstance(source, str) else None
