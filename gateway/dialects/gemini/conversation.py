"""The contents of a request as canonical messages.

Responses of functions become tool messages, in order, directly behind the calls that they answer. Media in them follow
behind the last one, then the rest of the turn. `dropped` names what is left out.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator
from typing import TypeVar

from msgspec import Raw, Struct
from msgspec.structs import replace

from gateway.core.messages import Audio, Image, Message, Part, Text, Thinking, ToolCall
from gateway.dialects._shared.faults import wrong_at
from gateway.dialects._shared.objects import members_of
from gateway.dialects._shared.parts import divide
from gateway.dialects.gemini.names import unread_in
from gateway.dialects.gemini.signatures import Thoughts
from gateway.dialects.gemini.views import BlobIn, CallIn, ContentIn, FileIn, PartIn, ResponseIn
from gateway.wire.json import NULL, bad_value, text_in
from gateway.wire.openai.requests.messages import answer_calls

T = TypeVar("T")

_URL_ALPHABET = str.maketrans("-_", "+/")
_SOUNDS = {"wav": "wav", "x-wav": "wav", "wave": "wav", "mp3": "mp3", "mpeg": "mp3", "mpga": "mp3"}
_ERROR = "Error: "


def listed(found: list[T] | T | None) -> list[T]:
    """An array, for which a single object may stand."""
    return found if isinstance(found, list) else [] if found is None else [found]


class Conversation:
    """The turns of one request, read. Raises GatewayError(BAD_REQUEST).

    messages   the turns in canonical form
    continues  the last message is the model's, and the reply continues it
    dropped    the names of what is left out, each once
    """

    def __init__(self, contents: list[ContentIn], system: ContentIn | None, thoughts: Thoughts) -> None:
        self.dropped: dict[str, None] = {}
        self._thoughts = thoughts
        self._messages: list[Message] = []
        self._calls = 0
        if system is not None:
            texts, media = divide(self._parts(listed(system.parts), "systemInstruction"))
            if media:
                self.dropped["systemInstruction.parts[].inlineData"] = None
            if any(texts):
                self._messages.append(Message("system", (Text("\n\n".join(filter(None, texts))),)))
        for turn in _turns(contents):
            (self._model if turn.role == "model" else self._user)(turn.parts, turn.param)
        if not any(message.role != "system" for message in self._messages):
            raise wrong_at("contents", "at least one content with parts is required")
        self.messages = tuple(
            replace(message, role="user", name=None) if message.role == "tool" and message.call_id is None else message
            for message in answer_calls(tuple(self._messages))
        )
        last = self.messages[-1]
        self.continues = last.role == "assistant"
        if self.continues and any(isinstance(part, ToolCall) for part in last.parts):
            raise bad_value(
                "contents", f"contents.{len(contents) - 1}: a functionCall without a functionResponse behind it"
            )

    # -- turns ------------------------------------------------------------------------------------------------------

    def _user(self, found: list[PartIn], param: str) -> None:
        parts: list[Part] = []
        answers = False
        for position, part in enumerate(found):
            if part.function_response is not None:
                answers = True
                self._check(part, param)
                parts += self._response(part.function_response, f"{param}.parts.{position}.functionResponse")
        parts += self._parts([part for part in found if part.function_response is None], param)
        if parts or (found and not answers):
            self._messages.append(Message("user", tuple(parts)))

    def _response(self, found: ResponseIn, param: str) -> list[Part]:
        """Adds the tool message; returns the media in the response."""
        for name in unread_in(found, "response"):
            self.dropped[f"contents[].parts[].functionResponse.{name}"] = None
        media: list[Part] = []
        for inner in listed(found.parts):
            if inner.inline_data is not None:
                media += self._blob(inner.inline_data, param)
            elif inner.file_data is not None:
                media.append(_file(inner.file_data, param))
        texts, media = divide(media)
        text = "\n".join([_returned(found.response, param), *texts])
        # An empty id is none.
        self._messages.append(Message("tool", (Text(text),), found.name or None, found.id or None))
        return media

    def _model(self, found: list[PartIn], param: str) -> None:
        parts: list[Part] = []
        sealed: list[str] = []
        for position, part in enumerate(found):
            if part.function_call is not None:
                self._check(part, param)
                parts.append(self._call(part.function_call, f"{param}.parts.{position}.functionCall"))
            elif part.thought and part.text is not None:
                self._check(part, param)
                if part.text:
                    parts.append(Thinking(part.text))
            else:
                parts += self._parts([part], param)
            if part.thought_signature:
                sealed.append(part.thought_signature)
        if sealed and not any(isinstance(part, Thinking) for part in parts):
            parts[:0] = [Thinking(text) for text in map(self._thoughts.open, sealed) if text]
        if parts:
            self._messages.append(Message("assistant", tuple(parts)))

    def _call(self, found: CallIn, param: str) -> ToolCall:
        if not found.name:
            raise wrong_at(f"{param}.name", "every functionCall needs a name")
        arguments = "{}" if found.args == NULL else bytes(found.args).decode()
        if members_of(arguments) is None:
            raise wrong_at(f"{param}.args", "must be an object")
        # Mistral's chat templates accept nine letters and digits only. The same conversation gets the same ids.
        made = f"c{self._calls:08x}"
        self._calls += 1
        return ToolCall(found.id or made, found.name, arguments)

    # -- parts ------------------------------------------------------------------------------------------------------

    def _parts(self, found: list[PartIn], param: str) -> list[Part]:
        """The parts that may stand anywhere: words, media, and what only Google's own servers make."""
        return [part for one in found for part in self._part(one, param)]

    def _check(self, found: PartIn, param: str) -> None:
        """Names what is left out of a part. Raises GatewayError(BAD_REQUEST) if it holds several things."""
        for name in unread_in(found):
            self.dropped[f"contents[].parts[].{name}"] = None
        given = (found.text, found.inline_data, found.file_data, found.function_call, found.function_response)
        if given.count(None) < len(given) - 1:
            raise wrong_at(f"{param}.parts", "a part holds more than one of text, inlineData, fileData and functions")

    def _part(self, found: PartIn, param: str) -> Iterator[Part]:
        self._check(found, param)
        if found.function_call is not None or found.function_response is not None:
            raise wrong_at(
                f"{param}.parts", "a functionCall belongs to the model's turn, a functionResponse to the user's"
            )
        if found.text:
            yield Text(found.text)
        elif found.inline_data is not None:
            yield from self._blob(found.inline_data, param)
        elif found.file_data is not None:
            yield _file(found.file_data, f"{param}.parts")

    def _blob(self, found: BlobIn, param: str) -> Iterator[Part]:
        """Inline data. A kind that no engine reads (a PDF, a video) becomes a note, not an error: clients send the
        whole history with every request, so an error would end their session."""
        if found.display_name:
            self.dropped["contents[].parts[].inlineData.displayName"] = None
        kind, _, form = found.mime_type.lower().partition(";")[0].strip().partition("/")
        data = found.data.translate(_URL_ALPHABET) if "-" in found.data or "_" in found.data else found.data
        if kind == "image":
            yield Image(f"data:{kind}/{form};base64,{data}")
        elif kind == "audio" and form in _SOUNDS:
            yield Audio(data, _SOUNDS[form])
        elif kind == "text" or form in ("json", "xml"):
            try:
                yield Text(b64decode(data, validate=True).decode())
            except (Base64Error, ValueError):
                raise wrong_at(f"{param}.parts", "the data of an inlineData is not the base64 of a text") from None
        else:
            self.dropped["contents[].parts[].inlineData"] = None
            yield Text("[PDF omitted]" if form == "pdf" else "[file omitted]")


class _Turn(Struct):
    """Contents of one role in a row: clients send each item of a stream back as one. param: that of the first."""

    role: str
    param: str
    parts: list[PartIn]


def _turns(contents: list[ContentIn]) -> list[_Turn]:
    turns: list[_Turn] = []
    for index, content in enumerate(contents):
        param, role = f"contents.{index}", content.role or "user"
        if role not in ("user", "model", "function"):
            raise wrong_at(f"{param}.role", "must be 'user' or 'model'")
        role = "model" if role == "model" else "user"
        if turns and turns[-1].role == role:
            turns[-1].parts += listed(content.parts)
        else:
            turns.append(_Turn(role, param, [*listed(content.parts)]))
    return turns


def _file(found: FileIn, param: str) -> Image:
    if found.file_uri.startswith(("http://", "https://")) and found.mime_type.lower().startswith("image/"):
        return Image(found.file_uri)
    raise wrong_at(param, "files are not kept here: send an image as inlineData or by its http(s) URL")


def _returned(response: Raw, param: str) -> str:
    """The text that the model gets: `output`, or `error`, or the whole object."""
    if response == NULL:
        return ""
    found = members_of(response)
    if found is None:
        raise wrong_at(f"{param}.response", "must be an object")
    only = next(iter(found)) if len(found) == 1 else None
    if only not in ("output", "error"):
        return bytes(response).decode()
    text = text_in(found[only])
    text = bytes(found[only]).decode() if text is None else text
    return _ERROR + text if only == "error" else text
