"""The Ollama-style API: chat completions whole, as newline-delimited JSON, or as server-sent events.

Source: "Chat Completions API Specification" (docs/dialects/ollama.md). It resembles the API of Ollama and is not the
same: ollama-python and ollama-js cannot call it. What it leaves open follows Ollama where Ollama has an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, End, Event, Failed, PartEnd, PartStart
from gateway.core.fields import ExtrasPolicy, Field, integer, number, sort_extras, validate
from gateway.core.http import JSON_TYPE, Headers, Request, Response, Route
from gateway.core.lifecycle import Embeddings, Reply, ReplyPart
from gateway.core.messages import (
    Generate,
    Image,
    Message,
    Op,
    Output,
    Thinking,
)
from gateway.core.ports import Passthrough, StreamWriter
from gateway.wire import images, sse
from gateway.wire.json import check_depth, encode, members, require_json, settle_unknown
from gateway.wire.openai import reading as requests
from gateway.wire.openai import writing as replies
from gateway.wire.openai.request_views import CHAT_MEMBERS

FIELDS: Mapping[str, Sequence[Field]] = {
    "chat": (
        Field("model", "consumed", note="names the pool", sample="m"),
        Field(
            "messages",
            "mapped",
            note="also Ollama's images, thinking and tool_name",
            sample=[{"role": "user", "content": "hi"}],
        ),
        Field("stream", "mapped", note="false when absent; ignored on /chat/sse, which always streams", sample=True),
        Field("temperature", "mapped", sample=0.7),
        Field("max_tokens", "mapped", sample=16),
        Field("max_completion_tokens", "renamed", to="max_tokens", note="400 beside max_tokens", sample=16),
        Field("top_p", "mapped", sample=0.9),
        Field("top_k", "mapped", sample=40),
        Field("min_p", "mapped", sample=0.1),
        Field("seed", "mapped", sample=7),
        Field("stop", "mapped", sample=["END"]),
        Field("frequency_penalty", "mapped", sample=0.5),
        Field("presence_penalty", "mapped", sample=0.5),
        Field("repetition_penalty", "mapped", sample=1.1),
        Field("logit_bias", "mapped", sample={"42": -1.0}),
        Field("user", "mapped", sample="user-1"),
        Field("n", "refused", note="unless it is 1: a reply here has one message", sample=2),
        Field("tools", "mapped", sample=[{"type": "function", "function": {"name": "f"}}]),
        Field("tool_choice", "mapped", note="without tools named as dropped, 400 if it asks for one", sample="auto"),
        Field("parallel_tool_calls", "mapped", note="named as dropped without tools", sample=False),
        Field("response_format", "mapped", sample={"type": "json_object"}),
        Field("reasoning_effort", "mapped", sample="low"),
        Field("format", "renamed", to="response_format", note='"json" or a JSON schema', sample="json"),
        Field("think", "renamed", to="reasoning_effort", note="a level; true and false are dropped", sample="low"),
        Field("options", "consumed", note="its members are the next rows; others are dropped", sample={}),
        Field("options.temperature", "renamed", to="temperature", sample=0.7),
        Field("options.top_p", "renamed", to="top_p", sample=0.9),
        Field("options.top_k", "renamed", to="top_k", sample=40),
        Field("options.min_p", "renamed", to="min_p", sample=0.1),
        Field("options.seed", "renamed", to="seed", sample=7),
        Field("options.stop", "renamed", to="stop", sample=["END"]),
        Field("options.num_predict", "renamed", to="max_tokens", note="-1 and -2 are no limit", sample=16),
        Field("options.frequency_penalty", "renamed", to="frequency_penalty", sample=0.5),
        Field("options.presence_penalty", "renamed", to="presence_penalty", sample=0.5),
        Field("options.repeat_penalty", "renamed", to="repetition_penalty", sample=1.1),
    ),
}
_KNOWN = frozenset(field.name for field in FIELDS["chat"] if "." not in field.name)
_OPTIONS = {
    field.name.removeprefix("options."): field.to
    for field in FIELDS["chat"]
    if field.name.startswith("options.") and field.to is not None
}

_LIMITS = {"top_k": integer(-1, 2**31 - 1), "min_p": number(0, 1), "repetition_penalty": number(0, 10, above=True)}


class _OwnIn(Struct):
    """What a message may have beside OpenAI's members."""

    images: list[str] | None = None
    thinking: str | None = None
    tool_name: str | None = None


_OWN = _OwnIn.__struct_fields__
_own = msgspec.json.Decoder(_OwnIn)
_messages = msgspec.json.Decoder(list[dict[str, Raw]])


class Ollama:
    """The dialect `ollama`."""

    name = "ollama"
    prefixes: tuple[str, ...] = ("/ollama",)
    extras: ExtrasPolicy = "drop"
    routes: tuple[Route, ...] = (
        Route("POST", "/chat/completions", "chat"),
        Route("POST", "/chat/sse", "sse"),
    )
    fields = FIELDS
    errors: Mapping[Kind, tuple[int, str, str]] = replies.ERRORS
    passthrough: Mapping[str, Passthrough] = {}

    # -- requests ---------------------------------------------------------------------------------------------------

    def read(self, request: Request) -> Op:
        require_json(request)
        given = members(request)
        unknown, dropped = settle_unknown(given, _KNOWN, self.extras)
        # Those that OpenAI's wire defines are read as there.
        extra = {name: raw for name, raw in unknown.items() if name not in CHAT_MEMBERS}
        known = {name: raw for name, raw in given.items() if name not in extra}
        left_out = _lift_options(known) + _lift_think(known)
        # No worker has a name for these: they are never passed on.
        sort_extras("error" if self.extras == "error" else "drop", left_out)
        output = _lift_format(known)
        if request.route == "sse":
            known.pop("stream", None)
        sampling = _take_sampling(known)
        own = _take_own(known)
        if "max_tokens" in known and "max_completion_tokens" in known:
            raise _twice("max_completion_tokens", "max_tokens")
        op = requests.read_chat(encode(known), known, extra, dropped + left_out, self.extras)
        if op.n != 1:
            raise GatewayError(Kind.BAD_REQUEST, "'n' must be 1 here: a reply has one message", param="n")
        op.raw = op.wire = None
        op.sampling = msgspec.structs.replace(op.sampling, **sampling)
        op.output = output or op.output
        op.messages = requests.answer_calls(_with_own(op.messages, own))
        op.stream = op.stream or request.route == "sse"
        op.view = "sse" if request.route == "sse" else "ndjson"
        return op

    # -- replies ----------------------------------------------------------------------------------------------------

    def write(self, reply: Reply | Embeddings, op: Op) -> Response:
        assert isinstance(reply, Reply)
        choice = reply.choices[0]
        message: dict[str, Any] = {"role": "assistant", "content": choice.text() or choice.text("refusal") or ""}
        thinking = choice.text("thinking")
        if thinking is not None:
            message["thinking"] = thinking
        if choice.calls:
            message["tool_calls"] = [_write_call(call) for call in choice.calls]
        body = {
            "id": "cmpl-" + reply.start.id.removeprefix("chatcmpl-"),
            "model": replies.shown(op, reply.start.model),
            "created": reply.start.created,
            "message": message,
            "done": True,
        }
        return Response(200, [JSON_TYPE], encode(body))

    def writer(self, op: Generate) -> StreamWriter:
        return _Events(self.error_object) if op.view == "sse" else _Lines(self.error_object)

    # -- errors -----------------------------------------------------------------------------------------------------

    def error_object(self, error: GatewayError, request: Request | None = None) -> dict[str, Any]:
        """message, type and code. There is no place for the field at fault: a message that names one uses the
        client's own name for it."""
        _, type_, code = self.errors[error.kind]
        message = error.message
        if error.param is not None and request is not None:
            own = _own_name(error.param, request)
            quoted = f"'{error.param}'"
            if quoted in message:
                message = message.replace(quoted, f"'{own}'")
            elif error.kind is Kind.UNSUPPORTED:
                message = f"'{own}': {message}"
        return {"message": message, "type": type_, "code": error.code or code}

    def refuse(self, error: GatewayError, request: Request | None, op: Op | None) -> Response:
        """One form for both paths: nothing is streamed yet."""
        status = self.errors[error.kind][0]
        body = {"error": self.error_object(error, request)}
        return Response(status, [JSON_TYPE, *replies.error_headers(error, status)], encode(body))


# -- requests to canonical ------------------------------------------------------------------------------------------


def _take_sampling(known: dict[str, Raw]) -> dict[str, Any]:
    """Takes those parameters out of `known` that OpenAI's wire has no name for."""
    raws = {name: known.pop(name) for name in _LIMITS if name in known}
    check_depth(raws)
    values = {name: msgspec.json.decode(raw) for name, raw in raws.items()}
    validate(values, _LIMITS)
    if "top_k" in values:
        values["top_k"] = int(values["top_k"])
    return values


def _lift_options(known: dict[str, Raw]) -> tuple[str, ...]:
    """Puts the members of `options` in their places in `known`; returns the names of those that have none.

    Raises GatewayError(BAD_REQUEST) for a value that is given both ways.
    """
    raw = known.pop("options", None)
    if raw is None:
        return ()
    try:
        options = msgspec.json.decode(raw, type=dict[str, Raw])
    except msgspec.ValidationError:
        raise GatewayError(Kind.BAD_REQUEST, "'options' must be an object", param="options") from None
    left_out = []
    for name, value in options.items():
        target = _OPTIONS.get(name)
        if bytes(value) == b"null" or (name == "num_predict" and bytes(value) in (b"-1", b"-2")):
            continue
        if target is None:
            left_out.append(f"options.{name}")
        elif target in known:
            raise _twice(f"options.{name}", target)
        else:
            known[target] = value
    return tuple(left_out)


def _lift_think(known: dict[str, Raw]) -> tuple[str, ...]:
    """A level is a reasoning effort. Whether a model thinks at all cannot be told to every worker: true and false are
    left out, and said to be."""
    raw = known.pop("think", None)
    if raw is None:
        return ()
    if bytes(raw) in (b"true", b"false"):
        return ("think",)
    if "reasoning_effort" in known:
        raise _twice("think", "reasoning_effort")
    known["reasoning_effort"] = raw
    return ()


def _lift_format(known: dict[str, Raw]) -> Output | None:
    raw = known.pop("format", None)
    if raw is None or bytes(raw) == b'""':
        return None
    if "response_format" in known:
        raise _twice("format", "response_format")
    if bytes(raw) == b'"json"':
        return Output("json")
    if bytes(raw).startswith(b"{"):
        check_depth({"format": raw})
        return Output("schema", raw)
    raise GatewayError(Kind.BAD_REQUEST, "'format' must be \"json\" or a JSON schema", param="format")


def _twice(own: str, other: str) -> GatewayError:
    return GatewayError(Kind.BAD_REQUEST, f"'{own}' and '{other}' are the same: send one of them", param=own)


def _take_own(known: dict[str, Raw]) -> dict[int, _OwnIn]:
    """Takes what is Ollama's own out of the messages in `known`, by their index."""
    raw = bytes(known.get("messages", b""))
    if not any(b'"%b"' % name.encode() in raw for name in _OWN):
        return {}
    try:
        messages = _messages.decode(raw)
    except msgspec.ValidationError:  # whoever reads them says what is wrong
        return {}
    found = {}
    for index, message in enumerate(messages):
        own = {name: message.pop(name) for name in _OWN if name in message}
        if own:
            found[index] = requests.read_at(f"messages.{index}", Raw(encode(own)), _own)
    known["messages"] = Raw(encode(messages))
    return found


def _with_own(messages: tuple[Message, ...], owns: Mapping[int, _OwnIn]) -> tuple[Message, ...]:
    """The messages with Ollama's own members: images as base64, thinking, the name of the tool that answers."""
    found = list(messages)
    for index, own in owns.items():
        message, place = found[index], f"messages.{index}"
        parts, name = message.parts, message.name
        if own.thinking:
            if any(isinstance(part, Thinking) for part in parts):
                raise _twice(f"{place}.thinking", f"{place}.reasoning")
            parts = (Thinking(own.thinking), *parts)
        for position, image in enumerate(own.images or ()):
            url = images.as_url(image)
            if url is None:
                at = f"{place}.images.{position}"
                raise GatewayError(
                    Kind.BAD_REQUEST, f"'{at}' is not the base64 of an image of a known format", param=at
                )
            parts = (*parts, Image(url))
        if own.tool_name:
            if name not in (None, own.tool_name):
                raise _twice(f"{place}.tool_name", f"{place}.name")
            name = own.tool_name
        found[index] = msgspec.structs.replace(message, parts=parts, name=name)
    return tuple(found)


def _own_name(param: str, request: Request) -> str:
    """What the client called the field that a worker calls `param`."""
    try:
        given = msgspec.json.decode(request.body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return param
    if not isinstance(given, dict) or param in given:
        return param
    options = given.get("options")
    for field in FIELDS["chat"]:
        if field.to == param:
            name = field.name.removeprefix("options.")
            if name != field.name:
                if isinstance(options, dict) and name in options:
                    return field.name
            elif name in given:
                return name
    return param


# -- canonical to replies -------------------------------------------------------------------------------------------


def _write_call(call: ReplyPart) -> dict[str, Any]:
    """As in Ollama, arguments are an object; text that is none (models err) stays text."""
    return _call(call.call_id, call.name, call.text)


def _call(call_id: str | None, name: str | None, text: str) -> dict[str, Any]:
    try:
        arguments: Any = msgspec.json.decode(text, type=dict[str, Raw]) if text else {}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        arguments = text
    return {"id": call_id, "function": {"name": name, "arguments": arguments}}


_TEXT = b'{"message":{"role":"assistant","content":%b},"done":false,"index":%d}'
_THINKING = b'{"message":{"role":"assistant","content":"","thinking":%b},"done":false,"index":%d}'
_CALLS = b'{"message":{"role":"assistant","content":"","tool_calls":[%b]},"done":false,"index":%d}'
_LAST = b'{"message":{"role":"assistant","content":%b},"done":true,"index":%d}\n'


# Bytes that a piece of text takes beside its letters.
_PIECE = 64


class _Writer:
    """What both streams share: the chunks. `index` counts them. Chunks without text are left out."""

    headers: Headers
    clean_end = True

    def __init__(self, error_object: Any) -> None:
        self.buffered_bytes = 0
        self._error_object = error_object
        self._index = 0
        # (part index) -> its start and the pieces of its arguments: a call is one chunk, when it is whole.
        self._calls: dict[int, tuple[PartStart, list[str]]] = {}
        self._thinking: set[int] = set()

    def chunk(self, event: Event) -> bytes:
        """The chunk that `event` is due, or b""."""
        if isinstance(event, Delta):
            if event.index in self._calls:
                self._calls[event.index][1].append(event.text)
                self.buffered_bytes += _PIECE + len(event.text)
                return b""
            if not event.text:
                return b""
            form = _THINKING if event.index in self._thinking else _TEXT
            return self._next(form, encode(event.text))
        if isinstance(event, PartStart):
            if event.kind == "tool":
                self._calls[event.index] = (event, [])
            elif event.kind == "thinking":
                self._thinking.add(event.index)
        elif isinstance(event, PartEnd) and event.index in self._calls:
            start, pieces = self._calls.pop(event.index)
            text = "".join(pieces)
            self.buffered_bytes -= _PIECE * len(pieces) + len(text)
            return self._next(_CALLS, encode(_call(start.call_id, start.name, text)))
        return b""

    def _next(self, form: bytes, value: bytes) -> bytes:
        index = self._index
        self._index = index + 1
        return form % (value, index)


class _Lines(_Writer):
    """Newline-delimited JSON. The last line says `done: true`: it carries the last text where the worker ends the
    choice in the same chunk, else none, since a text is not held back only to learn whether it is the last."""

    headers = [JSON_TYPE, (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]

    def __init__(self, error_object: Any) -> None:
        super().__init__(error_object)
        self._held: bytes | None = None

    def write(self, event: Event) -> bytes:
        if isinstance(event, Delta):
            if event.last and event.index not in self._calls and event.index not in self._thinking:
                self._held = encode(event.text)
                return b""
            chunk = self.chunk(event)
            return chunk + b"\n" if chunk else b""
        if isinstance(event, End):
            return self._next(_LAST, self._held or b'""')
        if isinstance(event, Failed):
            held = self._next(_TEXT, self._held) + b"\n" if self._held is not None else b""
            return held + encode({"error": self._error_object(event.error), "done": True}) + b"\n"
        chunk = self.chunk(event)
        return chunk + b"\n" if chunk else b""

    def keepalive(self) -> bytes:
        """Space before the line that is to come, where JSON may have it: a line of its own would be no JSON."""
        return b" "


class _Events(_Writer):
    """Server-sent events, `done: false` throughout; `[END]` ends success and failure alike."""

    headers = sse.HEADERS
    END = b"data: [END]\n\n"

    def write(self, event: Event) -> bytes:
        if isinstance(event, End):
            return self.END
        if isinstance(event, Failed):
            return sse.frame(encode(self._error_object(event.error)), b"error") + self.END
        chunk = self.chunk(event)
        return b"data: " + chunk + b"\n\n" if chunk else b""

    def keepalive(self) -> bytes:
        return sse.KEEPALIVE
