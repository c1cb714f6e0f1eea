"""Replies with text of sound, with sound and with images: whole, as events, and as bytes that are nothing but sound.

They pass as they came; errors, the end, usage, and the model's name are looked at. vLLM streams a transcript in
chunks like those of a chat. Each gets the members of OpenAI's events beside its own, so that both kinds of client read
it, and the last event of OpenAI's is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct

from gateway.core.errors import GatewayError, reply_too_large
from gateway.core.estimate import CHARACTERS
from gateway.core.http import JSON_TYPE, Headers, Response, header_value
from gateway.core.messages import Media
from gateway.core.ports import Lane, Partial
from gateway.core.usage import Usage
from gateway.wire import sse
from gateway.wire.bulk import is_large
from gateway.wire.json import encode, encode_line, members_of
from gateway.wire.openai.replies import views as wire

MOST_FRAME = 64 << 20
"""Bytes of one event: an image is one."""
MOST_TEXT = 16 << 20
"""Characters of a transcript that is repeated at its end."""
_ENDS = {"transcribe": "transcript.text.done", "translate": "transcript.text.done", "speak": "speech.audio.done"}
_IMAGES = {"draw": "image_generation.completed", "edit": "image_edit.completed"}
_DRAWN = frozenset(_IMAGES.values())
_ON_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
_TEXTS = frozenset({"text", "srt", "vtt"})
_PLAIN = b"text/plain; charset=utf-8"
_EVENTS = b"text/event-stream"
_Seconds = Annotated[float, Meta(ge=0, le=2**31 - 1)]
"""Limits are charged them: bounded as counts of tokens are."""
_SOUND = ("audio/", "video/", "application/octet-stream", "application/ogg")


class _UsageIn(Struct):
    """OpenAI's members, then those of a chat's."""

    input_tokens: wire.Count | None = None
    output_tokens: wire.Count | None = None
    prompt_tokens: wire.Count | None = None
    completion_tokens: wire.Count | None = None
    seconds: _Seconds | None = None


class _DeltaIn(Struct, frozen=True):
    content: str | None = None


class _ChoiceIn(Struct):
    delta: _DeltaIn = _DeltaIn()
    finish_reason: str | None = None


class _EventIn(Struct):
    type: str | None = None
    object: str | None = None
    choices: list[_ChoiceIn] | None = None
    usage: _UsageIn | None = None
    error: wire.ErrorIn | str | None = None


class _WholeIn(Struct):
    """A transcript, or images, without what they hold."""

    text: str | None = None
    data: list[Raw] | None = None
    model: str | None = None
    usage: _UsageIn | None = None
    duration: _Seconds | None = None
    error: wire.ErrorIn | str | None = None


_event = msgspec.json.Decoder(_EventIn)
_whole = msgspec.json.Decoder(_WholeIn)
_images = msgspec.json.Decoder(list[dict[str, Raw]])


def _used(
    found: _UsageIn | None, op: Media, output: int | None, seconds: float | None = None, images: int = 0
) -> Usage:
    """The usage that the worker reported; if it counted no tokens, those of the prompt's words, by their length, and
    `output`."""
    made_images = images if op.images else UNSET
    if found is not None and found.seconds is not None:
        seconds = found.seconds
    duration = op.audio_s if seconds is None else seconds
    audio_s = UNSET if duration is None else round(duration, 3)
    if found is not None:
        read = found.input_tokens if found.input_tokens is not None else found.prompt_tokens
        made = found.output_tokens if found.output_tokens is not None else found.completion_tokens
        if read is not None or made is not None:
            return Usage(read, made, audio_s=audio_s, images=made_images)
    return Usage(_tokens(len(op.words)), output, source="estimated", audio_s=audio_s, images=made_images)


def _tokens(characters: int) -> int:
    return -(-characters // CHARACTERS)


def whole(response: Response, op: Media) -> tuple[Response, Usage]:
    """(the client's reply, its usage) for a worker's 200. Raises GatewayError(UPSTREAM) for one that is none."""
    kind = (response.header(b"content-type") or b"").lower()
    body = response.body
    from_audio = op.work in ("transcribe", "translate")
    asked = next((value for name, value in op.fields if name == "response_format"), "json") if from_audio else ""
    if asked in _TEXTS and not body.lstrip().startswith(b"{"):
        try:
            written = body.decode()
        except UnicodeDecodeError:
            raise wire.malformed() from None
        if kind.startswith(b"text/html"):
            raise wire.malformed()
        plain = kind if kind.startswith(b"text/") else JSON_TYPE[1] if kind.startswith(JSON_TYPE[1]) else _PLAIN
        return Response(200, [(b"content-type", plain)], body), _used(None, op, _tokens(len(written)))
    found = wire.decoded(body, _whole)
    if found.error is not None:
        raise wire.late_fault(found.error)
    if (found.text is None) if from_audio else not found.data:
        raise wire.malformed()
    if not from_audio:
        return _json(body, found.model, op), _used(found.usage, op, 0, images=len(found.data or ()))
    text = found.text or ""
    usage = _used(found.usage, op, _tokens(len(text)), found.duration)
    if asked == "text":  # vLLM answers with JSON all the same
        return Response(200, [(b"content-type", _PLAIN)], text.encode() + b"\n"), usage
    return _json(body, found.model, op), usage


def _json(body: bytes, model: str | None, op: Media) -> Response:
    if not is_large(body):
        wire.require_strict(body)
    if model is not None and model != op.model:
        body = encode({**members_of(body), "model": op.model})
    return Response(200, [JSON_TYPE], body)


def events(response: Response, op: Media) -> bytes:
    """The events that say what a reply of `whole` says."""
    body, kind = response.body, _ENDS.get(op.work) or _IMAGES[op.work]
    written = JSON_TYPE in response.headers and body.lstrip().startswith(b"{")
    members: dict[str, Any] = members_of(body.translate(_ON_ONE_LINE)) if written else {"text": body.decode()}
    if op.work in _ENDS:
        return sse.frame(encode_line({**members, "type": kind}))
    images = wire.decoded(members.pop("data"), _images)
    usage, created = members.pop("usage", None), members.pop("created", None)
    common = members if created is None else {"created_at": created, **members}
    made = [{**common, **image, "type": kind} for image in images]
    if usage is not None:
        made[-1]["usage"] = usage  # of all
    return b"".join([sse.frame(encode_line(one), kind.encode()) for one in made])


def is_stream(headers: Headers, op: Media) -> bool:
    """Whether a 200 with these headers is streamed to the client of `op`: sound always is. A server may answer whole
    although a stream was asked for, as OpenAI's does for some models."""
    if op.work == "speak" and not op.stream:
        return True
    return op.stream and (header_value(headers, b"content-type") or b"").lower().startswith(_EVENTS)


def lane(headers: Headers, op: Media, refuse: Callable[[GatewayError], bytes]) -> Lane:
    """A lane for the worker's streamed 200 with these headers. refuse: writes an error as an event. Raises
    GatewayError(UPSTREAM) for something else than sound, if that was asked for."""
    if op.stream:
        return EventsLane(op, refuse)
    kind = (header_value(headers, b"content-type") or b"application/octet-stream").decode("latin-1").lower()
    framed = any(name in (b"content-length", b"transfer-encoding") for name, _ in headers)
    if not kind.startswith(_SOUND) or not framed:
        raise wire.malformed()
    return SoundLane(kind, op)


class _MediaLane:
    """The common part of both lanes. No other worker goes on with such a stream."""

    keeps_op = False
    error: GatewayError | None = None
    done = False
    produced = 0
    clean_end = False
    headers: Headers

    def __init__(self, op: Media) -> None:
        self._op = op
        self.usage: Usage | None = None
        self.finishes: dict[int, str] = {}

    def partial(self) -> Partial | str:
        return "media"

    def splice(self, repeated: str) -> None:
        raise AssertionError("there is nothing to go on with")

    def conclude(self, usage: Usage) -> bytes:
        raise AssertionError("only the worker ends it")


class SoundLane(_MediaLane):
    """Sound as it comes. It is whole if its HTTP message is. Implements core.ports.Lane."""

    def __init__(self, kind: str, op: Media) -> None:
        super().__init__(op)
        self.headers = [(b"content-type", kind.encode("latin-1")), (b"x-accel-buffering", b"no")]
        self._any = False

    def feed(self, block: bytes) -> bytes:
        self._any = True
        return block

    def eof(self) -> bytes:
        if self._any:
            self.done = True
            self.usage = _used(None, self._op, 0)
        else:
            self.error = wire.truncated()
        return b""

    def fail(self, error: GatewayError) -> bytes:
        self.error = error
        return b""

    def keepalive(self) -> bytes:
        return b""


class EventsLane(_MediaLane):
    """Events of OpenAI's, or vLLM's chunks. Implements core.ports.Lane."""

    headers = sse.HEADERS

    def __init__(self, op: Media, refuse: Callable[[GatewayError], bytes]) -> None:
        super().__init__(op)
        self._refuse = refuse
        self._reader = sse.Reader(MOST_FRAME)
        self._ended = 0  # events that end the reply, of which each image has one
        self._finished = False  # vLLM's last chunk has its reason
        self._texts: list[str] | None = None  # of vLLM's chunks
        self._size = 0
        self._reported: _UsageIn | None = None

    def feed(self, block: bytes) -> bytes:
        out = []
        try:
            for frame in self._reader.feed(block):
                if frame.data == b"[DONE]":
                    if not (self._ended or self._finished):
                        raise wire.truncated()
                    out.append(self._last() + sse.DONE)
                    self.done = True
                    break
                if not frame.silent:
                    out.append(self._read(frame))
                if self._ended >= (self._op.n if self._op.work in ("draw", "edit") else 1):
                    self.done = True  # whatever follows: a `[DONE]`, the end of the body, or a cut
                    break
        except GatewayError as error:
            self.error = error
        if self.done or self.produced or self._ended:
            # Also for a reply that breaks off later, or whose client leaves: the sound was read.
            self.usage = _used(self._reported, self._op, self.produced, images=self._ended)
        return b"".join(out)

    def _read(self, frame: sse.Frame) -> bytes:
        data = frame.data
        found = wire.decoded(data, _event)
        if found.error is not None:
            raise wire.late_fault(found.error)
        if found.type == "error" or frame.event == b"error":
            raise wire.fault(500, data)
        if not is_large(data):
            wire.require_strict(data)
        if found.usage is not None:
            self._reported = found.usage
        if found.object is not None and found.object.endswith(".chunk") and found.choices is not None:
            return self._chunk(data, found.choices)
        if found.type == _ENDS.get(self._op.work) or found.type in _DRAWN:
            self._ended += 1
        else:
            self.produced += 1
        return sse.frame(data.replace(b"\n", b" "), frame.event)

    def _chunk(self, data: bytes, choices: list[_ChoiceIn]) -> bytes:
        if self._texts is None:
            self._texts = []
        text = ""
        if choices:
            text, word = choices[0].delta.content or "", choices[0].finish_reason
            if word in wire.FAILING:
                raise wire.aborted(word)
            self._finished = bool(word)
        members = members_of(data.replace(b"\n", b" "))
        members["model"] = Raw(encode(self._op.model))
        if text:
            self.produced += 1
            self._texts.append(text)
            self._size += len(text)
            if self._size > MOST_TEXT:
                raise reply_too_large()
            members |= {"type": Raw(b'"transcript.text.delta"'), "delta": Raw(encode(text))}
        return sse.frame(encode_line(members))

    def _last(self) -> bytes:
        """OpenAI's last event behind vLLM's chunks, which other clients of vLLM take for one more chunk."""
        if self._texts is None or self._ended:
            return b""
        event: dict[str, Any] = {"type": "transcript.text.done", "text": "".join(self._texts), "choices": []}
        usage = _used(self._reported, self._op, None)
        if usage.source == "engine" and usage.total is not None:
            counts = {"input_tokens": usage.input, "output_tokens": usage.output, "total_tokens": usage.total}
            event["usage"] = {"type": "tokens", **counts}
        return sse.frame(encode_line(event))

    def eof(self) -> bytes:
        self.error = wire.truncated()
        return b""

    def fail(self, error: GatewayError) -> bytes:
        self.error = error
        return self._refuse(error)

    def keepalive(self) -> bytes:
        return sse.KEEPALIVE
