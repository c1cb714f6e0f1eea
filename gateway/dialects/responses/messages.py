"""OpenAI's web sockets of the Responses API: a client sends `response.create`, and gets a stream's events as messages.

Sources: OpenAI's guide "WebSocket mode"; Open Responses; openai-python 3.54 (`responses.connect`) and Codex CLI 0.169
(docs/dialects/responses.md).
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw, Struct

from gateway.core.http import Headers
from gateway.core.messages import Extra
from gateway.dialects._shared.faults import wrong_at
from gateway.wire.json import NULL, decoded, encode_line, text_in

_CREATE = Raw(b'"response.create"')
_LANE = re.compile(r"[A-Za-z0-9_.-]{1,256}")
# Headers of an error that clients act on or report. Codex reads them.
_ERROR_HEADERS = (b"retry-after", b"x-request-id", b"x-ratelimit-", b"ratelimit")
_ERROR = b"event: error\n"


class _Lane(Struct):
    stream_id: str | None = None


class _Refused(Struct):
    error: Raw


_lane = msgspec.json.Decoder(_Lane)
_refused = msgspec.json.Decoder(_Refused)


def take_envelope(raw: Extra) -> bool:
    """Takes out of a message what no POST has; what is left asks for a stream. Returns whether the model is to answer:
    with `generate: false` its workers only read the prompt. Raises GatewayError(BAD_REQUEST)."""
    kind = raw.pop("type", NULL)
    if kind != _CREATE:
        raise wrong_at("type", "must be response.create, the only message that clients send")
    lane = raw.pop("stream_id", NULL)
    if lane != NULL and not _LANE.fullmatch(text_in(lane) or ""):
        raise wrong_at("stream_id", "must be 1 to 256 letters, digits and _.-")
    generate = raw.pop("generate", NULL)
    if generate not in (NULL, Raw(b"true"), Raw(b"false")):
        raise wrong_at("generate", "must be true or false")
    raw["stream"] = Raw(b"true")
    return generate != Raw(b"false")


class Messages:
    """Implements core.ports.SocketWire."""

    def lane(self, message: bytes) -> str:
        if b'"stream_id"' not in message:
            return ""
        found = decoded(_lane.decode, message)
        name = found.stream_id if found is not None else None
        return name if name is not None and _LANE.fullmatch(name) else ""

    def events(self, frames: list[bytes], lane: str) -> list[bytes]:
        """Without the `error` that precedes `response.failed`: one message ends a response."""
        return [
            _in_lane(frame.partition(b"\ndata: ")[2], lane)
            for frame in frames
            if frame.startswith(b"event: ") and not frame.startswith(_ERROR)
        ]

    def refusal(self, status: int, headers: Headers, body: bytes, lane: str) -> bytes:
        fields = {name.decode(): value.decode("latin-1") for name, value in headers if name.startswith(_ERROR_HEADERS)}
        event = {"type": "error", "status": status, "error": _refused.decode(body).error, "headers": fields}
        return _in_lane(encode_line(event), lane)


def _in_lane(event: bytes, lane: str) -> bytes:
    return b'%b,"stream_id":"%b"}' % (event[:-1], lane.encode()) if lane else event
