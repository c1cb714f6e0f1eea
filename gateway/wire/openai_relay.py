"""The bytes lane of OpenAI's wire: a worker's stream to a client of the same wire, touching only what must change.

Changed: the model's name; the usage chunk, which the gateway always asks for and strips when the client did not; the
role, which belongs to a choice's first delta only; `reasoning` (vLLM since 0.16) and `reasoning_content` (before), each
emitted as both; finish reasons that OpenAI does not know. Comments, CRLF, a missing space after `data:` and multi-line
data, which some clients cannot parse, are written anew in the one form that all of them read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from gateway.core.errors import GatewayError
from gateway.core.http import JSON_TYPE, Response
from gateway.core.messages import Chat, Embed, Generate
from gateway.core.usage import Usage
from gateway.wire import openai as wire
from gateway.wire import sse
from gateway.wire.json import encode
from gateway.wire.stencil import MARK, TRIES, Stencil, cut

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_usage_decoder = msgspec.json.Decoder(wire.UsageIn)
# The whole delta of a thinking token, as vLLM writes it.
_REASONING = re.compile(rb'"delta":\{"reasoning(?:_content)?":("(?:[^"\\]|\\.)*")\}')
_BOTH = rb'"delta":{"reasoning":\1,"reasoning_content":\1}'
_KNOWN_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})


class Relaying(Struct, frozen=True):
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
        body, usage = whole(response.body, op.model or "", chat=isinstance(op, Chat))
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
        self._model = model
        self._shown = b'"model":' + encode(model)
        self._upstream: bytes | None = None
        self._include_usage = include_usage
        self._refuse = refuse
        self._chat = chat
        self._choices = choices
        self._seen: set[int] = set()
        self._finished: set[int] = set()
        self._settled = False
        # What the last ordinary chunk was but for its text, and what the client is sent around that.
        self._usual: Stencil | None = None
        self._pieces: list[bytes] = []
        self._tries = TRIES

    def feed(self, block: bytes) -> bytes:
        usual = self._usual
        if usual is not None and block.startswith(usual.before) and block.endswith(usual.after) and self._frames.idle:
            text = block[len(usual.before) : -len(usual.after)]
            # No quote: nothing but text is there. The rest would not be as the client expects it.
            if text and 34 not in text and 10 not in text and 13 not in text and not text.endswith(b"\\"):
                self.produced += 1
                return text.join(self._pieces)
        out = []
        try:
            for frame in self._frames.feed(block):
                data = self._quick(frame.data) if self._settled and 10 not in frame.data else None
                if data is not None:
                    if self._tries and (usual is None or not frame.data.startswith(usual.before[6:])):
                        self._learn(frame.data)
                    self.produced += 1
                    out.append(b"data: " + data + b"\n\n")
                elif frame.data == b"[DONE]":
                    out.append(self._finish())
                    break
                else:
                    out.append(self._rewrite(frame.data))
        except GatewayError as error:
            self.error = error
        return b"".join(out)

    def _quick(self, data: bytes) -> bytes | None:
        """An ordinary token's chunk without parsing it, or None when it is not ordinary.

        A quote inside a JSON string is always escaped: these byte strings are structure, never a message's content.
        """
        if (
            (b'"finish_reason":null' not in data and b'"finish_reason": null' not in data)
            or b'"usage"' in data
            or b'"error"' in data
            or b'"role"' in data
            or (self._choices > 1 and data.count(b'"finish_reason"') != 1)
        ):
            return None
        if b'"reasoning' in data:
            data, count = _REASONING.subn(_BOTH, data)
            if count != 1:
                return None
        if self._upstream is not None:
            data = data.replace(self._upstream, self._shown, 1)
        return data

    def _learn(self, data: bytes) -> None:
        self._tries -= 1
        holder: tuple[str | int, ...] = ("choices", 0, "delta") if self._chat else ("choices", 0)
        for name in ("content", "reasoning", "reasoning_content") if self._chat else ("text",):
            usual = cut(data, holder, name) if b'"%b":' % name.encode() in data else None
            sent = self._quick(usual.filled(MARK, 0)) if usual is not None else None
            if sent is not None:
                self._usual, self._pieces = usual, sent.split(MARK)
                return

    def _finish(self) -> bytes:
        if len(self._finished) < max(1, len(self._seen)):
            raise wire.truncated()
        self.done = True
        return sse.DONE

    def _rewrite(self, data: bytes) -> bytes:
        try:
            chunk = _decode(data)
            return self._rewrite_chunk(chunk, data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise wire.malformed() from None

    def _rewrite_chunk(self, chunk: dict[str, Any], data: bytes) -> bytes:
        error = chunk.get("error")
        if error is not None:
            raise wire.late_fault(msgspec.convert(error, wire.ErrorIn | str))
        choices = chunk["choices"] = msgspec.convert(chunk.get("choices"), list[dict[str, Any]])
        self._learn_model(chunk, data)
        if chunk.get("usage") is not None:
            self.usage = wire.usage(msgspec.convert(chunk["usage"], wire.UsageIn))
            if not self._include_usage:
                del chunk["usage"]
                if not choices:
                    return b""
        for choice in choices:
            self._rewrite_choice(choice)
        # From here on an ordinary chunk needs no parsing, if the model's name can be exchanged in its bytes.
        if choices and len(self._seen) >= self._choices:
            self._settled = self._upstream is None or self._upstream in data
        return b"data: " + encode(chunk) + b"\n\n"

    def _learn_model(self, chunk: dict[str, Any], data: bytes) -> None:
        upstream = chunk.get("model")
        if isinstance(upstream, str) and upstream != self._model:
            name = encode(upstream)
            self._upstream = b'"model": ' + name if b'"model": ' + name in data else b'"model":' + name
        chunk["model"] = self._model

    def _rewrite_choice(self, choice: dict[str, Any]) -> None:
        index = choice.get("index", 0)
        if self._chat:
            delta = choice.get("delta")
            delta = msgspec.convert(delta, dict[str, Any]) if delta is not None else {}
            if index in self._seen:
                delta.pop("role", None)
            elif "role" not in delta:
                delta = {"role": "assistant", **delta}
            thinking = delta.get("reasoning") or delta.get("reasoning_content")
            if thinking is not None:
                delta["reasoning"] = delta["reasoning_content"] = thinking
            if any(delta.get(name) for name in ("content", "reasoning", "tool_calls", "refusal")):
                self.produced += 1
            choice["delta"] = delta
        elif choice.get("text"):
            self.produced += 1
        self._seen.add(index)
        if len(self._seen) > self._choices:
            raise wire.malformed()  # more choices than were asked for
        word = choice.get("finish_reason")
        if word is not None:
            choice["finish_reason"] = _finish_word(str(word))
            self._finished.add(index)

    def eof(self) -> bytes:
        if not self.done and self.error is None:
            self.error = wire.truncated()
        return b""

    def fail(self, error: GatewayError) -> bytes:
        self.error = error
        return self._refuse(error)

    def keepalive(self) -> bytes:
        return sse.KEEPALIVE


def whole(body: bytes, model: str, *, chat: bool) -> tuple[bytes, Usage | None]:
    """A buffered reply for a client of the same wire, and its usage; untouched where nothing must change.

    Raises GatewayError(UPSTREAM) when the body is no reply, or an error in a 200.
    """
    try:
        tally = wire.tally_decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise wire.malformed() from None
    if tally.error is not None:
        raise wire.late_fault(tally.error)
    if tally.choices is None and tally.data is None:
        raise wire.malformed()
    words = {choice.finish_reason for choice in tally.choices or ()}
    usage = wire.usage(tally.usage) if tally.usage is not None else None
    if words <= _KNOWN_REASONS and not (chat and b'"reasoning' in body):
        if tally.model == model:
            return body, usage
        if tally.model is not None:
            said = b'"model":' + encode(tally.model)
            if body.count(said) == 1:
                return body.replace(said, b'"model":' + encode(model)), usage
    reply = _decode(body)
    reply["model"] = model
    for choice in reply.get("choices") or ():
        message = choice.get("message")
        thinking = message and (message.get("reasoning") or message.get("reasoning_content"))
        if thinking:
            message["reasoning"] = message["reasoning_content"] = thinking
        if choice.get("finish_reason") is not None:
            choice["finish_reason"] = _finish_word(str(choice["finish_reason"]))
    return encode(reply), usage


def _finish_word(word: str) -> str:
    """A finish reason that OpenAI knows. Raises GatewayError when the engine gave the generation up."""
    if word in wire.FAILING:
        raise wire.aborted(word)
    return word if word in _KNOWN_REASONS else wire.reason(word)
