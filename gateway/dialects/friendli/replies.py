"""Canonical replies, events and errors to Friendli's bodies and streams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, Event, Finish, PartStart, Reason
from gateway.core.fields import own_name
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.lifecycle import Reply, ReplyChoice, ReplyPart
from gateway.core.messages import Chat, Complete, Generate, Op
from gateway.core.usage import Usage
from gateway.dialects._shared.api import Errors
from gateway.dialects._shared.faults import refusal
from gateway.dialects._shared.streams import EventWriter
from gateway.dialects.friendli.fields import FIELDS, TIMEOUT
from gateway.wire import sse
from gateway.wire.json import encode, encode_line, one_line, sent_names
from gateway.wire.openai.replies import refusals, writing
from gateway.wire.openai.streams.writing import OpenAIStreamWriter


def _known(reason: Reason) -> Reason:
    """The finish reason that the client knows: it reports any other as an error."""
    return "stop" if reason == "content_filter" else reason


def write(reply: Reply, op: Generate) -> Response:
    """A body for both SDKs: friendli 0.16.3 requires id and finish_reason in addition to the specification's fields."""
    start = reply.start
    body: dict[str, Any] = {
        "id": start.id,
        "object": "chat.completion" if isinstance(op, Chat) else "text_completion",
        "model": writing.shown(op, start.model),
        "created": start.created,
    }
    if isinstance(op, Complete):
        # A beam search returns the best beam only.
        body |= _complete(op, reply.choices[:1] if op.beams is not None else reply.choices, reply.usage)
    else:
        body["choices"] = [_chat_choice(choice) for choice in reply.choices]
        # Never null: without numbers the client raises and discards the reply.
        body["usage"] = writing.write_usage(reply.usage or Usage())
    return Response(200, [JSON_TYPE], encode(body))


def _complete(op: Complete, choices: Sequence[ReplyChoice], usage: Usage | None) -> dict[str, Any]:
    """The members of a finished text completion, streamed or whole."""
    written = [_choice(op, choice) for choice in choices]
    return {"choices": written, "usage": _usage(op, usage, sum(len(choice["tokens"]) for choice in written))}


def _choice(op: Complete, choice: ReplyChoice) -> dict[str, Any]:
    """A finished choice. Logprobs are cut to the tokens that are shown."""
    tokens = choice.tokens
    body: dict[str, Any] = {
        "index": choice.index,
        "seed": op.seeds[choice.index % len(op.seeds)],
        "text": choice.text() or "",
        "tokens": tokens,
        "finish_reason": _known(choice.reason),
    }
    if op.logprobs is not None:
        logprobs = writing.text_logprobs(choice.logprobs, 0)
        body["logprobs"] = {name: values[: len(tokens)] for name, values in logprobs.items()}
    return body


def _usage(op: Complete, reported: Usage | None, ids: int) -> dict[str, int]:
    """Exactly the specification's three counts. `ids` is the output count of a beam, or if the engine gave none."""
    prompt = reported.input if reported is not None else None
    if prompt is None:
        prompt = sum(len(given) for given in op.prompts if not isinstance(given, str))
    completion = ids if op.beams is not None or reported is None or reported.output is None else reported.output
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _chat_choice(choice: ReplyChoice) -> dict[str, Any]:
    body = writing.write_choice(choice)
    body["finish_reason"] = _known(choice.reason)
    return body


# -- streams --------------------------------------------------------------------------------------------------------


class _Sent(Struct):
    """The state of one choice of a stream. head begins its events; `waiting` is text whose token ids have not
    arrived."""

    head: bytes
    texts: list[str] = []
    tokens: list[int] = []
    logprobs: list[Raw] = []
    waiting: list[str] = []
    reason: Reason = "stop"

    def choice(self, index: int) -> ReplyChoice:
        part = ReplyPart("text", "".join(self.texts), tokens=tuple(self.tokens), logprobs=tuple(self.logprobs))
        return ReplyChoice(index, [part], self.reason)


class TokenWriter(EventWriter):
    """Canonical events to `token_sampled` events, one for each token id, and `complete`, with the specified whitespace.

    If several ids come together, the last one carries their text. Text without ids goes to the next id, or at the
    choice's end to an event with a null token. `complete` repeats the whole reply, so it is kept until then: a token
    takes about as much memory as its event on the wire.
    """

    def __init__(self, op: Complete) -> None:
        super().__init__()
        self._op = op
        self._sent: dict[int, _Sent] = {}

    def write(self, event: Event) -> bytes:
        if type(event) is Delta:
            sent = self._sent[event.choice]
            text, tokens = event.text, event.tokens
            if event.logprobs is not None:
                sent.logprobs.append(event.logprobs)
                self.buffered_bytes += len(memoryview(event.logprobs))
            sent.texts.append(text)
            if len(tokens) == 1 and not sent.waiting:
                sent.tokens.append(tokens[0])
                out = b'%b%b, "token": %d}\n\n' % (sent.head, encode_line(text), tokens[0])
            else:
                out = self._several(sent, text, tokens)
            self.buffered_bytes += len(out) or len(sent.head) + len(text)
            return out
        return self.other(event)

    def part_started(self, event: PartStart) -> bytes:
        self._state(event.choice)
        return b""

    def _state(self, index: int) -> _Sent:
        if index not in self._sent:
            self._sent[index] = _Sent(b'data: {"event": "token_sampled", "index": %d, "text": ' % index)
        return self._sent[index]

    def finished(self, event: Finish) -> bytes:
        sent = self._state(event.choice)
        sent.reason = event.reason
        if not sent.waiting:
            return b""
        return b'%b%b, "token": null}\n\n' % (sent.head, encode_line("".join(sent.waiting)))

    def failed(self, error: GatewayError) -> bytes:
        return error_event(error, self._op)

    def _several(self, sent: _Sent, text: str, tokens: tuple[int, ...]) -> bytes:
        sent.waiting.append(text)
        if not tokens:
            return b""
        sent.tokens += tokens
        silent = b"".join(b'%b"", "token": %d}\n\n' % (sent.head, token) for token in tokens[:-1])
        text, sent.waiting = "".join(sent.waiting), []
        return b'%b%b%b, "token": %d}\n\n' % (silent, sent.head, encode_line(text), tokens[-1])

    def ended(self) -> bytes:
        """The last event, on one line and without a `token` member: friendli-client would count it as another token."""
        choices = [sent.choice(index) for index, sent in sorted(self._sent.items())]
        body = {"event": "complete", **_complete(self._op, choices, self.usage)}
        return sse.frame(one_line(json.dumps(body, ensure_ascii=False).encode()))


class ChatWriter(OpenAIStreamWriter):
    """Writes OpenAI's chunks, with only the finish reasons that the client knows."""

    def _finish(self, event: Finish) -> bytes:
        return super()._finish(replace(event, reason=_known(event.reason)))


class ChunkWriter(ChatWriter):
    """Text completions as friendli 0.16.3 reads them: OpenAI's chunks, one for each token id, which is `token`.

    If several ids come together, the last one carries their text. Text without an id has the token null.
    """

    def write(self, event: Event) -> bytes:
        if type(event) is not Delta:
            return super().write(event)
        part = self._open[event.choice, event.index]
        silent = b"".join(b'%b"","token":%d%b' % (part.before, token, part.ordinary) for token in event.tokens[:-1])
        token = b"%d" % event.tokens[-1] if event.tokens else b"null"
        return silent + self._special(event, part, b'%b,"token":%b' % (encode_line(event.text), token))


# -- errors -----------------------------------------------------------------------------------------------------------

ERRORS: Errors = {
    **refusals.ERRORS,
    Kind.UNSUPPORTED: (422, "unprocessable_request_error", Kind.UNSUPPORTED.value),
    Kind.TIMEOUT: (504, "timeout_error", Kind.TIMEOUT.value),
}
"""Two exceptions: the client's own deadline is a 429, and a worker's refusal that names a field a 422. See `refuse`."""


def error_event(error: GatewayError, op: Op) -> bytes:
    """The error event of a stream. friendli-client raises InvalidGenerationError with its text."""
    own = _in_own_words(error, None, op, error.kind)
    return sse.frame(encode_line({"event": "error", "message": own.message, **refusals.error_object(own, ERRORS)}))


def refuse(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
    """(the answer, its code). A worker's refusal that names a field is a 422, because the gateway found it valid."""
    by_name = error.kind is Kind.BAD_REQUEST and error.upstream is not None and error.param is not None
    own = _in_own_words(error, request, op, Kind.UNSUPPORTED if by_name else error.kind)
    status = 429 if own.param == TIMEOUT.name and own.kind is Kind.TIMEOUT else ERRORS[own.kind][0]
    body = refusals.error_object(own, ERRORS)
    return refusal(error, status, body), body["error"]["code"]


def _in_own_words(error: GatewayError, request: Request | None, op: Op | None, kind: Kind) -> GatewayError:
    """The error as one of `kind`, with the caller's name for the field, including the field of its deadline."""
    param, message = error.param, error.message
    if error.code == "deadline_exceeded" and param == "timeout":
        param = TIMEOUT.name
    if param is not None:
        own = _own_name(param, request, op)
        message, param = message.replace(f"'{param}'", f"'{own}'"), own
    return GatewayError(kind, message, param=param, code=error.code)


def _own_name(param: str, request: Request | None, op: Op | None) -> str:
    if not isinstance(op, Complete):
        return own_name(param, FIELDS["chat"]) if isinstance(op, Chat) else param
    if param == "logprobs" and op.beams is not None and op.logprobs is None:
        # For w beams vLLM asks itself for 2 w logprobs, which may exceed its limit on logprobs.
        return "num_beams"
    if param in ("prompt", "tokens"):  # backends call the token ids of a reply `tokens`
        return "prompt" if isinstance(op.prompts[0], str) else "tokens"
    return own_name(param, FIELDS["complete"], sent_names(request.body) if request is not None else ())
