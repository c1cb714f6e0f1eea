"""Messages in the order that chat templates take.

Templates of many models refuse a system message that is not the first one, the role `developer`, two messages of the
user in a row, or an image in a tool's result; each engine then answers with an error. Sources: the templates of Qwen
3.5 to 3.8, Llama, Gemma and Mistral; vLLM's issue 43203; OpenAI's own 400 for images in messages of other roles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from gateway.core.messages import Audio, Chat, Image, Message, Part, Text
from gateway.core.ports import Capabilities
from gateway.wire.openai.requests.parts import write_message

_SYSTEM = ("system", "developer")
_MEDIA = (Image, Audio)
_raws = msgspec.json.Decoder(list[Raw])


def messages_of(op: Chat, can: Capabilities) -> Sequence[Message]:
    """The messages of `op` as workers with these capabilities take them; `op.messages` itself if they take those."""
    return _in_turns(op.messages, can.system == "merge") if is_out_of_turn(op, can) else op.messages


def left_behind(op: Chat, can: Capabilities) -> tuple[str, ...]:
    """The names of members that system messages lose as they become a part of another one."""
    if can.system != "merge":
        return ()
    found: dict[str, None] = {}
    for message in op.messages[1:]:
        if message.role in _SYSTEM:
            found |= dict.fromkeys([*(("name",) if message.name else ()), *(message.extra or ())])
    return tuple([f"messages[].{name}" for name in found])


def spliced(raw: Raw, given: Sequence[Message], turns: Sequence[Message]) -> list[Any]:
    """`turns` for a worker of the client's own wire: those that are among the messages `given` stay as `raw`, a JSON
    array, has them."""
    own = {id(message): text for message, text in zip(given, _raws.decode(raw), strict=True)}
    return [own[id(turn)] if id(turn) in own else write_message(turn) for turn in turns]


def is_out_of_turn(op: Chat, can: Capabilities) -> bool:
    """Whether workers with these capabilities do not take the messages of `op` as they are."""
    merge = can.system == "merge"
    previous = ""
    for message in op.messages:
        role = message.role
        if role == "user":
            if merge and previous == "user":
                return True
        elif role == "tool":
            if not _is_text(message) and any(isinstance(part, _MEDIA) for part in message.parts):
                return True
        elif merge and (role == "developer" or (role == "system" and previous)):
            return True
        previous = role
    return False


def _is_text(message: Message) -> bool:
    return len(message.parts) == 1 and type(message.parts[0]) is Text  # nearly every message


class _Turn(Struct):
    """A message, with the messages that are joined to it."""

    message: Message
    parts: list[Part]
    joined: bool = False

    def takes(self, message: Message) -> bool:
        """True for a user message behind another one, unless members of its own keep them apart."""
        ours = self.message
        same = message.role == ours.role == "user" and message.name == ours.name
        return same and message.extra is None and ours.extra is None

    def add(self, parts: Sequence[Part]) -> None:
        self.parts += parts
        self.joined = True

    def whole(self) -> Message:
        """Texts of several messages are one text, because not every server reads part arrays."""
        if not self.joined:
            return self.message
        texts = [part.text for part in self.parts if type(part) is Text and part.extra is None]
        if len(texts) == len(self.parts):
            return replace(self.message, parts=(Text("\n\n".join(filter(None, texts))),))
        return replace(self.message, parts=tuple(self.parts))


def _in_turns(messages: Sequence[Message], merge: bool) -> list[Message]:
    """System messages at the start become one. A later one becomes a part of the user message before it, else of the
    one after it, else a user message of its own; it never moves to the front. User messages in a row become one. Images
    and sound in results of tools follow the results, in a message of the user. Without `merge` only they move."""
    turns: list[_Turn] = []
    waiting: list[Part] = []
    leading = True
    for message in messages:
        system = message.role in _SYSTEM and merge
        leading = leading and system
        last = turns[-1] if turns else None
        if system and leading:
            if last is not None:
                last.add(message.parts)
            else:
                turns.append(_Turn(_as_system(message), list(message.parts)))
        elif system:
            if last is not None and last.message.role == "user":
                last.add(message.parts)
            else:
                waiting += message.parts
        elif merge and last is not None and last.takes(message):
            last.add(message.parts)
        elif message.role == "tool":
            result, moved = _divided(message)
            turns.append(_Turn(result, list(result.parts)))
            waiting += moved
        else:
            turns += _behind(waiting, message)
            waiting = []
    if waiting:
        turns.append(_Turn(Message("user"), waiting, joined=True))
    return [turn.whole() for turn in turns]


def _behind(waiting: list[Part], message: Message) -> Iterator[_Turn]:
    """`message` behind what waits for a message of the user: a part of it, if it is one."""
    if waiting and message.role == "user":
        yield _Turn(message, [*waiting, *message.parts], joined=True)
        return
    if waiting:
        yield _Turn(Message("user"), waiting, joined=True)
    yield _Turn(message, list(message.parts))


def _as_system(message: Message) -> Message:
    return message if message.role == "system" else replace(message, role="system")


def _divided(message: Message) -> tuple[Message, list[Part]]:
    """A tool's result without its images and sound, and these."""
    if _is_text(message):
        return message, []
    moved: list[Part] = [part for part in message.parts if isinstance(part, _MEDIA)]
    if not moved:
        return message, []
    left = tuple([part for part in message.parts if not isinstance(part, _MEDIA)])
    return replace(message, parts=left or (Text(""),)), moved
