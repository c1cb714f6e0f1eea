"""The bytes lane of OpenAI's wire: a worker's stream to a client of the same wire, touching only what must change.

Changed: the model's name; the usage chunk, which the gateway always asks for and strips when the client did not; the
role, which belongs to a choice's first delta only; `reasoning` (vLLM since 0.16) and `reasoning_content` (before), each
emitted as both; finish reasons that OpenAI does not know. Comments, CRLF, a missing space after `data:` and multi-line
data, which some clients cannot parse, are written anew in the one form that all of them read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.core.errors import GatewayError
from gateway.core.http import JSON_TYPE, Response
from gateway.core.messages import Chat, Embed, Extra, Generate
from gateway.core.usage import Usage
from gateway.wire import sse
from gateway.wire.chunk_template import MARK, TRIES, ChunkTemplate, cut, text_of
from gateway.wire.json import NULL, encode
from gateway.wire.openai import answers as wire

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_object = msgspec.json.Decoder(dict[str, Raw]).decode
_objects = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_error: Callable[[Raw], wire.ErrorIn | str] = msgspec.json.Decoder(wire.ErrorIn | str).decode
_usage = msgspec.json.Decoder(wire.UsageIn).decode
_int = msgspec.json.Decoder(int).decode
_word = msgspec.json.Decoder(str | None).decode
_KNOWN_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
_PLAIN_REASONS = _KNOWN_REASONS | {None}
_TEXTS = ("content", "reasoning", "reasoning_content", "refusal")
_HOLE = b'"%b"' % MARK
_ZERO, _EMPTY, _ASSISTANT, _NONE = Raw(b"0"), Raw(b'""'), Raw(b'"assistant"'), Raw(b"[]")
_SILENT = (NULL, _NONE)


class Passthrough(Struct, frozen=True):
    """For any dialect of this wire; `refuse` writes its error event. Implements core.ports.Relaying."""

    refuse: Callable[[GatewayError], bytes]

    def lane(self, op: Generate) -> Relay:
        return Relay(
            op.model or "",
            chat=isinstance(op, Chat),
            choices=op.n if isinstance(op, Chat) else op.n * len(op.prompts),
            include_usage=op.include_usage,
            refuse=self.refuse,
        )

    def whole(self, response: Response, op: Generate | Embed) -> tuple[Response, Usage | None]:
        body, usage = whole(response.body, op)
        return Response(200, [JSON_TYPE], body), usage


class Relay:
    """One stream. `choices` is how many choices the client asked for; `refuse` writes an error event in the client's
    own form. Implements core.ports.Lane."""

    headers = sse.HEADERS
    clean_end = False

    def __init__(
        self, model: str, *, chat: bool, choices: int, include_usage: bool, refuse: Callable[[GatewayError], bytes]
    ) -> None:
        self.done = False
        self.error: GatewayError | None = None
        self.usage: Usage | None = None
        self.produced = 0
        self._frames = sse.Reader()
        self._shown = Raw(encode(model))
        self._include_usage = include_usage
        self._refuse = refuse
        self._chat = chat
        self._choices = choices
        self._seen: set[int] = set()
        self._finished: set[int] = set()
        # Ordinary chunks but for their text, and what the client is sent around that.
        self._usual: list[tuple[ChunkTemplate, list[bytes]]] = []
        self._tries = TRIES

    def feed(self, block: bytes) -> bytes:
        for usual, pieces in self._usual:
            if block.startswith(usual.before) and block.endswith(usual.after) and self._frames.idle:
                literal = block[len(usual.before) - 1 : len(block) - len(usual.after) + 1]
                try:
                    text = text_of(literal)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    break
                if text:
                    self.produced += 1
                    return literal.join(pieces)
        out = []
        try:
            for frame in self._frames.feed(block):
                if frame.data == b"[DONE]":
                    out.append(self._finish())
                    break
                out.append(self._read(frame.data))
        except GatewayError as error:
            self.error = error
        return b"".join(out)

    def _finish(self) -> bytes:
        if len(self._finished) < self._choices:
            raise wire.truncated()
        self.done = True
        return sse.DONE

    def _read(self, data: bytes) -> bytes:
        try:
            try:
                chunk = _taken_apart(data)
            except (msgspec.DecodeError, UnicodeDecodeError):
                chunk = _taken_apart_leniently(data)
            ordinary = self._rewrite(chunk)
            if ordinary is not None and self._tries:
                self._learn(data, ordinary)
            return chunk.written()
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise wire.malformed() from None

    def _learn(self, data: bytes, name: str) -> None:
        self._tries -= 1
        usual = cut(data, ("choices", 0, "delta") if self._chat else ("choices", 0), name)
        if usual is not None:
            chunk = _taken_apart(usual.filled(MARK, 0)[6:])
            self._rewrite(chunk)
            self.produced -= 1
            self._usual.append((usual, chunk.written().split(_HOLE)))

    def _rewrite(self, chunk: _Chunk) -> str | None:
        """Makes the worker's chunk the client's. Returns the name of the member that is all the chunk says, if there is
        one. Raises GatewayError, or msgspec.ValidationError for a wrong type."""
        top = chunk.top
        if top.get("error", NULL) != NULL:
            raise wire.late_fault(_error(top["error"]))
        if chunk.choices is None:
            raise wire.malformed()
        top["model"] = self._shown
        told = top.get("usage", NULL) != NULL
        if told:
            self.usage = wire.usage(_usage(top["usage"]))
            if not self._include_usage:
                del top["usage"]
                chunk.due = bool(chunk.choices)
        names = [self._rewrite_choice(choice) for choice in chunk.choices]
        return names[0] if len(names) == 1 and not told else None

    def _rewrite_choice(self, choice: _Choice) -> str | None:
        index = _int(choice.members.get("index", _ZERO))
        first = index not in self._seen
        self._seen.add(index)
        if len(self._seen) > self._choices:
            raise wire.malformed()  # more choices than were asked for
        holder = choice.members
        if self._chat:
            holder = choice.delta = choice.delta if choice.delta is not None else {}
            if not first:
                holder.pop("role", None)
            elif "role" not in holder:
                holder = choice.delta = {"role": _ASSISTANT, **holder}
        names = [name for name in (_TEXTS if self._chat else ("text",)) if _speaks(holder.get(name, NULL))]
        if names or holder.get("tool_calls", _NONE) not in _SILENT:
            self.produced += 1
        if self._chat:
            _under_both_names(holder)
        word = _word(choice.members.get("finish_reason", NULL))
        if word:
            choice.members["finish_reason"] = Raw(encode(_finish_word(word)))
            self._finished.add(index)
            return None
        if word is not None:
            choice.members["finish_reason"] = NULL
        return names[0] if len(names) == 1 and not first else None

    def eof(self) -> bytes:
        if not self.done and self.error is None:
            self.error = wire.truncated()
        return b""

    def fail(self, error: GatewayError) -> bytes:
        self.error = error
        return self._refuse(error)

    def keepalive(self) -> bytes:
        return sse.KEEPALIVE


class _Choice(Struct):
    """One choice of a chunk: its members but the delta, and those of the delta, as JSON texts."""

    members: Extra
    delta: Extra | None


class _Chunk(Struct):
    """A chunk with its members as JSON texts, so that what is not looked at goes on as it came. due: the client is to
    have it."""

    top: Extra
    choices: list[_Choice] | None
    due: bool = True

    def written(self) -> bytes:
        if not self.due:
            return b""
        for choice in self.choices or ():
            if choice.delta is not None:
                choice.members["delta"] = Raw(encode(choice.delta))
        self.top["choices"] = Raw(encode([choice.members for choice in self.choices or ()]))
        return b"data: " + encode(self.top) + b"\n\n"


def _taken_apart(data: bytes) -> _Chunk:
    """Raises msgspec.DecodeError or UnicodeDecodeError."""
    if not data.isascii():
        data.decode()  # msgspec does not look into what it hands out raw
    top = _object(data)
    if 10 in data:  # data of several lines goes on as one
        top = _object(data.replace(b"\n", b" "))
    if top.get("choices", NULL) == NULL:
        return _Chunk(top, None)
    return _Chunk(
        top,
        [
            _Choice(members, _object(members["delta"]) if members.get("delta", NULL) != NULL else None)
            for members in _objects(top["choices"])
        ],
    )


def _taken_apart_leniently(data: bytes) -> _Chunk:
    """Python's workers write NaN and Infinity, and halves of characters; clients in Python read them. Raises ValueError
    for what is no JSON even to Python, or no chunk."""
    found = json.loads(data)
    choices = found.get("choices") if isinstance(found, dict) else None
    if not isinstance(choices, list):
        raise wire.malformed()
    return _Chunk(_raws(found), [_Choice(_raws(choice), _delta(choice)) for choice in choices])


def _raws(found: Any) -> Extra:
    if not isinstance(found, dict):
        raise wire.malformed()
    return {name: Raw(json.dumps(value, separators=(",", ":")).encode()) for name, value in found.items()}


def _delta(choice: dict[str, Any]) -> Extra | None:
    delta = choice.get("delta")
    return _raws(delta) if delta is not None else None


def _speaks(text: Raw) -> bool:
    """Whether a member that is to be text says anything. Raises GatewayError when it is anything else."""
    if text == NULL:
        return False
    if bytes(text)[:1] != b'"':
        raise wire.malformed()
    return text != _EMPTY


def _under_both_names(holder: Extra) -> None:
    for name in ("reasoning", "reasoning_content"):
        thinking = holder.get(name, NULL)
        if thinking != NULL and (name == "reasoning_content" or thinking != _EMPTY):
            holder["reasoning"] = holder["reasoning_content"] = thinking
            return


def whole(body: bytes, op: Generate | Embed) -> tuple[bytes, Usage | None]:
    """A buffered reply for a client of the same wire, and its usage; untouched where nothing must change.

    Raises GatewayError(UPSTREAM) when the body is not the reply to `op`, or an error in a 200.
    """
    model = op.model or ""
    try:
        if not body.isascii():
            body.decode()  # msgspec does not look into what it passes over
        tally = wire.tally_decoder.decode(body)
        if tally.error is not None:
            raise wire.late_fault(tally.error)
        if not _answers(tally, op):
            raise wire.malformed()
        usage = wire.usage(tally.usage) if tally.usage is not None else None
        choices = tally.choices or ()
        if all(choice.finish_reason in _PLAIN_REASONS for choice in choices) and not any(map(_thinks, choices)):
            if tally.model == model:
                return body, usage
            if tally.model is not None and body.count(b'"model"') == 1:
                said = b'"model":' + encode(tally.model)
                if said in body:
                    return body.replace(said, b'"model":' + encode(model)), usage
        reply = _decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise wire.malformed() from None
    reply["model"] = model
    for choice in reply.get("choices") or ():
        message = choice.get("message")
        thinking = message and (message.get("reasoning") or message.get("reasoning_content"))
        if thinking:
            message["reasoning"] = message["reasoning_content"] = thinking
        if choice.get("finish_reason") is not None:
            choice["finish_reason"] = _finish_word(choice["finish_reason"] or "stop")
    return encode(reply), usage


def _answers(tally: wire.TallyIn, op: Generate | Embed) -> bool:
    """Whether all is there that `op` asks for."""
    if isinstance(op, Embed):
        vectors = tally.data or ()
        return len(vectors) == len(op.inputs) and all(vector.embedding != NULL for vector in vectors)
    choices = tally.choices or ()
    if isinstance(op, Chat):
        return len(choices) == op.n and all(choice.message is not None for choice in choices)
    return len(choices) == op.n * len(op.prompts) and all(
        choice.text is not None and choice.finish_reason is not None for choice in choices
    )


def _thinks(choice: wire.TallyChoiceIn) -> bool:
    message = choice.message
    return message is not None and (message.reasoning or message.reasoning_content) is not None


def _finish_word(word: str) -> str:
    """A finish reason that OpenAI knows. Raises GatewayError when the engine gave the generation up."""
    if word in wire.FAILING:
        raise wire.aborted(word)
    return word if word in _KNOWN_REASONS else wire.reason(word)
