"""Invented transcripts, sounds and images, by OpenAI's API and, for transcripts, as vLLM streams them.

A transcript depends on the sound's bytes alone, a sound and an image on the words alone.
"""

from __future__ import annotations

import asyncio
import base64
import math
import re
import time
import zlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from msgspec import Struct

from workers.serving import Send, whole
from workers.simulated.answers import draw
from workers.simulated.options import Options
from workers.simulated.requests import Generate, Refused

_RATE = 16_000  # samples a second, of two bytes
_SECOND = b"".join(int(8000 * math.sin(at / 8)).to_bytes(2, "little", signed=True) for at in range(_RATE))
_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
_WORDS = 3  # a second
_BOUNDARY = re.compile(rb'boundary="?([^";]+)')
_NAME = re.compile(rb'[; ]name="([^"]*)"')
_FILENAME = re.compile(rb'filename="([^"]*)"')


class Upload(Struct):
    """The parts of an upload: texts by name, and files by name, as (filename, content)."""

    texts: dict[str, str]
    files: dict[str, list[tuple[str, bytes]]]

    def text(self, name: str, default: str = "") -> str:
        return self.texts.get(name, default)

    @property
    def stream(self) -> bool:
        return self.text("stream").lower() in ("true", "1")


class JsonRequest(Struct, kw_only=True):
    """A JSON request."""

    model: str | None = None
    input: str = ""
    prompt: str = ""
    voice: Any = None
    response_format: str | None = None
    stream_format: str | None = None
    stream: bool | None = False
    partial_images: int | None = 0
    n: int | None = 1


_request = msgspec.json.Decoder(JsonRequest)


def read_json(body: bytes) -> JsonRequest:
    """Raises Refused."""
    try:
        return _request.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused(400, "Bad Request", str(error)) from None


def read_upload(kind: bytes, body: bytes) -> Upload:
    """Raises Refused for another type of body. kind is the content type."""
    boundary = _BOUNDARY.search(kind)
    if not kind.lower().startswith(b"multipart/form-data") or boundary is None:
        raise Refused(422, "Bad Request", "Field required: file", "file")
    upload = Upload({}, {})
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary[1])[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        name, filename = _NAME.search(head), _FILENAME.search(head)
        assert name is not None
        if filename is None:
            upload.texts[name[1].decode()] = content.decode()
        else:
            file = filename[1].decode(), content
            upload.files.setdefault(name[1].decode().removesuffix("[]"), []).append(file)
    return upload


def seconds_of(sound: bytes) -> float:
    """The length of a WAVE file, or of any other one at 16 KB a second."""
    if sound[:4] == b"RIFF" and len(sound) > 44:
        return len(sound) / max(1, int.from_bytes(sound[28:32], "little"))
    return len(sound) / 16_000


class Transcript:
    """The reply to one upload with sound."""

    def __init__(self, upload: Upload, model: str, kind: str) -> None:
        found = upload.files.get("file")
        if not found:
            raise Refused(422, "Bad Request", "Field required: file", "file")
        sound = found[0][1]
        self.seconds = seconds_of(sound)
        self.kind, self.model, self.upload = kind, model, upload
        words = max(1, min(400, round(self.seconds * _WORDS)))
        self.text = draw(f"{zlib.crc32(sound)}", Generate(ignore_eos=True), 0, words, words).text.strip()

    def whole(self) -> tuple[bytes, bytes]:
        """(the body, its type)"""
        form = self.upload.text("response_format", "json")
        if form in ("text", "srt", "vtt"):
            time_ = "00:00:00,000 --> 00:00:01,000" if form == "srt" else "00:00.000 --> 00:01.000"
            lines = {"text": self.text, "srt": f"1\n{time_}\n{self.text}\n", "vtt": f"WEBVTT\n\n{time_}\n{self.text}\n"}
            return lines[form].encode(), b"text/plain; charset=utf-8"
        body: dict[str, Any] = {"text": self.text}
        if form == "verbose_json":
            body |= {"duration": self.seconds, "language": self.upload.text("language", "en"), "segments": []}
        elif self.kind == "transcription":
            body["usage"] = {"type": "duration", "seconds": math.ceil(self.seconds)}
        return msgspec.json.encode(body), b"application/json"

    def chunks(self) -> list[bytes]:
        """As vLLM streams it."""
        head = {"id": "trsc-1", "object": f"{self.kind}.chunk", "created": int(time.time()), "model": self.model}
        words = re.findall(r"\s*\S+", self.text)
        found = []
        for at, word in enumerate(words):
            choice: dict[str, Any] = {"delta": {"content": word}}
            if at == len(words) - 1:
                choice["finish_reason"] = "stop"
            found.append({**head, "choices": [choice]})
        if self.upload.text("stream_include_usage").lower() == "true":
            made, read = len(words), round(self.seconds * 50)
            usage = {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}
            found.append({**head, "choices": [], "usage": usage})
        return [b"data: " + msgspec.json.encode(one) + b"\n\n" for one in found] + [b"data: [DONE]\n\n"]


def sound_of(request: JsonRequest) -> bytes:
    """A tone of a quarter of a second for each word."""
    samples = max(1, len(request.input.split())) * _RATE // 4
    data = (_SECOND * (samples // _RATE + 1))[: 2 * samples]
    if request.response_format == "pcm":
        return data
    head = b"fmt " + (16).to_bytes(4, "little") + b"\x01\0\x01\0" + _RATE.to_bytes(4, "little")
    head += (2 * _RATE).to_bytes(4, "little") + b"\x02\0\x10\0data" + len(data).to_bytes(4, "little")
    return b"RIFF" + (4 + len(head) + len(data)).to_bytes(4, "little") + b"WAVE" + head + data


def image_of(words: str, index: int) -> str:
    """A picture of one pixel, in base64, with the words' checksum behind it."""
    return base64.b64encode(_PNG + zlib.crc32(f"{words}{index}".encode()).to_bytes(4, "big")).decode()


async def speak(request: JsonRequest, options: Options, send: Send) -> None:
    """POST /v1/audio/speech."""
    if not request.input.strip():
        raise Refused(400, "BadRequestError", "Input text cannot be empty", "input")
    sound = sound_of(request)
    pieces = [sound[at : at + 8192] for at in range(0, len(sound), 8192)]
    if request.stream_format != "sse":
        await _stream(send, pieces, b"audio/pcm" if request.response_format == "pcm" else b"audio/wav", options)
        return
    events: list[dict[str, Any]] = [
        {"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode()} for piece in pieces
    ]
    read, made = len(request.input.split()), len(pieces)
    usage = {"input_tokens": read, "output_tokens": made, "total_tokens": read + made}
    await _stream(
        send, _events([*events, {"type": "speech.audio.done", "usage": usage}]), b"text/event-stream", options
    )


async def draw_images(words: str, n: int, stream: bool, partial: int, kind: str, options: Options, send: Send) -> None:
    """POST /v1/images/generations, /v1/images/edits, /v1/images/variations."""
    created = int(time.time())
    read = len(words.split())
    details = {"text_tokens": read, "image_tokens": 0}
    usage = {"input_tokens": read, "input_tokens_details": details}
    usage |= {"output_tokens": 256 * n, "total_tokens": read + 256 * n}
    images = [image_of(words, index) for index in range(n)]
    if not stream:
        await asyncio.sleep(options.itl_ms / 1000)
        body = {"created": created, "data": [{"b64_json": one} for one in images], "usage": usage}
        await whole(send, 200, msgspec.json.encode(body), b"application/json")
        return
    events: list[dict[str, Any]] = [
        {"type": f"{kind}.partial_image", "b64_json": images[0], "partial_image_index": at, "created_at": created}
        for at in range(partial)
    ]
    events += [{"type": f"{kind}.completed", "b64_json": one, "created_at": created, "usage": usage} for one in images]
    await _stream(send, _events(events), b"text/event-stream", options)


def _events(events: list[dict[str, Any]]) -> list[bytes]:
    return [b"event: %b\ndata: %b\n\n" % (one["type"].encode(), msgspec.json.encode(one)) for one in events]


async def transcribe(transcript: Transcript, options: Options, send: Send) -> None:
    """POST /v1/audio/transcriptions, /v1/audio/translations."""
    if transcript.upload.stream:
        await _stream(send, transcript.chunks(), b"text/event-stream; charset=utf-8", options)
        return
    await asyncio.sleep(options.itl_ms / 1000)
    await whole(send, 200, *transcript.whole())


async def _stream(send: Send, pieces: list[bytes], kind: bytes, options: Options) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    async for piece in _paced(pieces, options.itl_ms / 1000):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _paced(pieces: list[bytes], pause_s: float) -> AsyncIterator[bytes]:
    for piece in pieces:
        if pause_s:
            await asyncio.sleep(pause_s)
        yield piece


async def answer(path: str, kind: bytes, body: bytes, options: Options, send: Send) -> None:
    """Any of these requests. Raises Refused."""
    request = read_upload(kind, body) if path in UPLOADS else read_json(body)
    model = request.text("model") if isinstance(request, Upload) else request.model
    if model and model not in options.models:
        raise Refused(404, "NotFoundError", f"The model `{model}` does not exist.", "model")
    if isinstance(request, Upload):
        if path.startswith("/v1/audio/"):
            word = "transcription" if path.endswith("transcriptions") else "translation"
            await transcribe(Transcript(request, options.models[0], word), options, send)
            return
        words = request.text("prompt") + "".join(f"{zlib.crc32(one)}" for _, one in request.files.get("image", ()))
        partial = int(request.text("partial_images", "0"))
        await draw_images(words, int(request.text("n", "1")), request.stream, partial, "image_edit", options, send)
    elif path == "/v1/audio/speech":
        await speak(request, options, send)
    else:
        partial, kind_ = request.partial_images or 0, "image_generation"
        await draw_images(request.prompt, request.n or 1, bool(request.stream), partial, kind_, options, send)


UPLOADS = frozenset({"/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits", "/v1/images/variations"})
"""Paths of uploads."""
PATHS = UPLOADS | {"/v1/audio/speech", "/v1/images/generations"}
