"""The turns of a Messages request as canonical messages.

Tool results become tool messages, in order, directly behind the calls that they answer. Images in them follow behind
the last one, then the rest of the turn. A system turn keeps its position, but never separates calls from their results.
`dropped` names what is left out.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

from gateway.core.messages import Image, Message, Part, Text, Thinking, ToolCall
from gateway.dialects._shared.faults import wrong_at
from gateway.dialects._shared.objects import members_of
from gateway.dialects._shared.parts import divide
from gateway.dialects.anthropic.server_tools import text_of
from gateway.dialects.anthropic.views import BlockIn, FetchedIn, MessageIn, SourceIn, ToolIn
from gateway.wire.json import NULL, bad_value, decoded

_content = msgspec.json.Decoder(str | list[BlockIn])
_tool = msgspec.json.Decoder(ToolIn)
_pages = msgspec.json.Decoder(list[dict[str, Any]])
_fetched = msgspec.json.Decoder(FetchedIn)
# Claude Code's system prompt has this line, in a block of its own or before other text. It changes with every version
# and request, so a prefix cache would never match.
_BILLING = "x-anthropic-billing-header:"
_BILLING_LINE = re.compile(rf"^{_BILLING}[ \t]*(?:[\w.-]+=[^;\n]*(?:;[ \t]*|$))*\n?", re.MULTILINE)
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
    found      texts that tools of the web have brought
    """

    def __init__(self, turns: list[MessageIn], system: str | list[BlockIn] | None) -> None:
        self.messages: list[Message] = []
        self.continues = False
        self.referred: set[str] = set()
        self.added: dict[str, ToolIn] = {}
        self.removed: set[str] = set()
        self.dropped: dict[str, None] = {}
        self.found: list[str] = []
        self._depth = 0
        # System turns that came between calls and their results; they go behind the results.
        self._held: list[Message] = []
        leading = self._system_text(_blocks(system), "system")
        if leading:
            self.messages.append(Message("system", (Text(leading),)))
        for turn in _turns(turns):
            if turn.role == "user":
                self._user(turn.param, turn.blocks)
            elif turn.role == "assistant":
                self._assistant(turn.param, turn.blocks)
            else:
                self._system(turn.param, turn.blocks)
        self.messages += self._held
        if not self.messages:
            raise wrong_at("messages", "at least one message is required")
        self.continues = self.messages[-1].role == "assistant"
        if self.continues and _calls(self.messages[-1]):
            raise bad_value("messages", f"messages.{len(turns) - 1}: a tool_use without a tool_result behind it")

    # -- turns ------------------------------------------------------------------------------------------------------

    def _user(self, param: str, blocks: list[BlockIn]) -> None:
        results = [block for block in blocks if block.type == "tool_result"]
        parts: list[Part] = []
        for block in results:
            texts, media = self._result(block, param)
            text = "\n".join(texts)
            text = _ERROR + text if block.is_error else text
            self.messages.append(Message("tool", (Text(text),), call_id=block.tool_use_id or ""))
            parts += media
        self.messages += self._held
        self._held = []
        for block in blocks:
            if block.type != "tool_result":
                parts += self._part(block, param)
        if parts or not results:
            self.messages.append(Message("user", tuple(parts)))

    def _assistant(self, param: str, blocks: list[BlockIn]) -> None:
        parts: list[Part] = []
        for block in blocks:
            match block.type:
                case "thinking":
                    if block.thinking:
                        parts.append(Thinking(block.thinking))
                case "tool_use":
                    parts.append(ToolCall(block.id or "", block.name or "", _arguments(block, param)))
                case "redacted_thinking":
                    self.dropped["messages[].content[].redacted_thinking"] = None
                case _:
                    parts += self._part(block, param)
        if parts:
            self.messages.append(Message("assistant", tuple(parts)))

    def _system(self, param: str, blocks: list[BlockIn]) -> None:
        left = []
        for block in blocks:
            if block.type in ("tool_addition", "tool_removal"):
                self._change_tools(block)
            else:
                left.append(block)
        text = self._system_text(left, param)
        if text:
            after_calls = bool(self.messages) and _calls(self.messages[-1])
            (self._held if after_calls else self.messages).append(Message("system", (Text(text),)))

    def _system_text(self, blocks: list[BlockIn], param: str) -> str:
        texts = []
        for block in blocks:
            if block.type != "text":
                texts += self._texts([block], param)
            elif block.text:
                texts.append(_BILLING_LINE.sub("", block.text) if _BILLING in block.text else block.text)
        return "\n\n".join(filter(None, texts))

    def _change_tools(self, block: BlockIn) -> None:
        """Adds or removes one tool. The block holds a whole tool, or names one in a `tool_reference`."""
        try:
            members = members_of(block.tool) or {}
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

    def _part(self, block: BlockIn, param: str) -> list[Part]:
        """The parts of a block that may stand anywhere: any block but a call or its result."""
        if block.type in ("document", "search_result") and b"true" in bytes(block.citations):
            self.dropped["messages[].content[].citations"] = None  # asks for some; those of a reply are a list
        match block.type:
            case "text":
                return [Text(block.text)] if block.text else []
            case "image":
                return [self._image(block, param)]
            case "document":
                return self._document(block, param)
            case "search_result":
                address = block.source if isinstance(block.source, str) else None
                return [Text("\n".join(filter(None, (block.title, address, self._flat(block, param)))))]
            case "tool_reference":
                if block.tool_name:
                    self.referred.add(block.tool_name)
                return [Text(f"Tool: {block.tool_name}")]
            case "web_search_tool_result":
                found = "\n\n".join(filter(None, map(text_of, decoded(_pages.decode, block.content) or [])))
                self.found.append(found)
                return [Text(found)] if found else []
            case "web_fetch_tool_result":
                fetched = decoded(_fetched.decode, block.content)
                if fetched is None:
                    return []
                parts = self._part(fetched.content, param)
                self.found += [fetched.url, *[part.text for part in parts if isinstance(part, Text)]]
                return parts
            case "server_tool_use" if block.name in ("web_search", "web_fetch"):
                return []  # its result shows what it was
            case _:
                flat = self._flat(block, param) or block.text
                self.dropped[f"messages[].content[].{block.type[:64]}"] = None
                return [Text(flat)] if flat else []

    def _divided(self, blocks: list[BlockIn], param: str) -> tuple[list[str], list[Part]]:
        return divide([part for block in blocks for part in self._part(block, param)])

    def _texts(self, blocks: list[BlockIn], param: str) -> list[str]:
        """The texts in `blocks`, where there is no place for images: they are left out and named."""
        texts, media = self._divided(blocks, param)
        if media:
            self.dropped["system[].image" if param == "system" else "messages[].content[].image"] = None
        return texts

    def _flat(self, block: BlockIn, param: str) -> str:
        """The texts in a block's content, joined; "" if there are none."""
        found = decoded(_content.decode, block.content) if block.content != NULL else None
        if found is None or isinstance(found, str):
            return found or ""
        if self._depth == _DEEPEST:
            self.dropped["messages[].content[].content"] = None
            return ""
        self._depth += 1
        texts = self._texts(found, param)
        self._depth -= 1
        return "\n".join(texts)

    def _result(self, block: BlockIn, param: str) -> tuple[list[str], list[Part]]:
        """(the texts of a tool result, the images in it)."""
        try:
            found = _content.decode(block.content) if block.content != NULL else []
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise wrong_at(f"{param}.content", f"of a tool_result: {error}") from None
        return self._divided([BlockIn("text", found)] if isinstance(found, str) else found, param)

    def _image(self, block: BlockIn, param: str) -> Image:
        source = block.source
        if isinstance(source, SourceIn):
            if source.type == "base64" and source.data is not None:
                return Image(f"data:{source.media_type or 'image/png'};base64,{source.data}")
            if source.type == "url" and source.url is not None:
                return Image(source.url)
            if source.type == "file":
                raise wrong_at(f"{param}.content", "files are not kept here: send the image as base64 or by its URL")
        raise wrong_at(f"{param}.content", "the source of an image must be base64 with data, or url with url")

    def _document(self, block: BlockIn, param: str) -> list[Part]:
        """The text of a document, and the images in it. A document without text (a PDF) becomes a note, not an error:
        agents send the whole history with every request, so an error would end their session."""
        source = block.source if isinstance(block.source, SourceIn) else None
        words = [block.title, block.context]
        media: list[Part] = []
        if source is not None and source.type == "text":
            words.append(source.data)
        elif source is not None and source.type == "content":
            texts, media = self._divided(_blocks(source.content), param)
            words.append("\n".join(texts))
        else:
            self.dropped["messages[].content[].document"] = None
            kind = "PDF" if source is not None and source.media_type == "application/pdf" else "document"
            words.append(f"[{kind} omitted]")
        return [Text("\n".join(filter(None, words))), *media]


class _Turn(Struct):
    """Consecutive messages of one role; each system message is a turn of its own. param: that of the first message."""

    role: str
    param: str
    blocks: list[BlockIn]


def _turns(found: list[MessageIn]) -> list[_Turn]:
    turns: list[_Turn] = []
    for index, message in enumerate(found):
        if message.role not in ("user", "assistant", "system"):
            raise wrong_at(f"messages.{index}.role", "must be 'user', 'assistant' or 'system'")
        blocks = [BlockIn("text", message.content)] if isinstance(message.content, str) else message.content
        if turns and turns[-1].role == message.role and message.role != "system":
            turns[-1].blocks += blocks
        else:
            turns.append(_Turn(message.role, f"messages.{index}", blocks.copy()))
    return turns


def _blocks(found: str | list[BlockIn] | None) -> list[BlockIn]:
    return [BlockIn("text", found)] if isinstance(found, str) else found or []


def _calls(message: Message) -> bool:
    return message.role == "assistant" and any(isinstance(part, ToolCall) for part in message.parts)


def _arguments(block: BlockIn, param: str) -> str:
    """The JSON text of a call's input."""
    if block.input == NULL:
        return "{}"
    if members_of(block.input) is None:
        raise wrong_at(f"{param}.content", "the input of a tool_use must be an object")
    return bytes(block.input).decode()
