"""Canonical replies, events and errors to TGI's bodies and events: a token at a time, all text beside the last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, Event, Start
from gateway.core.fields import own_words
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.lifecycle import Reply, ReplyChoice
from gateway.core.messages import Complete, ModelCard, Op
from gateway.core.usage import Usage
from gateway.dialects._shared.api import Errors
from gateway.dialects._shared.faults import refusal
from gateway.dialects._shared.streams import PIECE, EventWriter
from gateway.dialects.tgi.fields import FIELDS
from gateway.dialects.tgi.requests import ReplyFacts
from gateway.wire import sse
from gateway.wire.json import encode, encode_line, sent_names
from gateway.wire.openai.streams.writing import OpenAIStreamWriter


class _LogprobIn(Struct):
    token: str
    logprob: float | None = None


_logprobs = msgspec.json.Decoder(list[_LogprobIn]).decode


def write(reply: Reply, op: Complete) -> Response:
    """A whole reply: the likeliest choice where there are several."""
    facts = op.facts(ReplyFacts)
    choice = max(reply.choices, key=_likelihood) if len(reply.choices) > 1 else reply.choices[0]
    stop = _stop(choice.stop_sequence)
    text = (choice.text() or "") + stop
    body: dict[str, Any] = {"generated_text": _before(op, facts) + text}
    if facts.details:
        tokens = _tokens(text.removesuffix(stop) if stop else text, choice.tokens, choice.logprobs)
        if tokens:
            tokens[-1]["text"] += stop
        if choice.end_token is not None:
            tokens.append(_ended_by(choice.end_token, "" if tokens else text))
        used = reply.usage if len(reply.choices) == 1 else None
        body["details"] = {**_ending(choice.reason, stop, used, len(tokens), op), "prefill": [], "tokens": tokens}
    return Response(200, [JSON_TYPE], encode([body] if facts.listed else body))


def _likelihood(choice: ReplyChoice) -> float:
    """The mean logprob of its tokens."""
    found = [one.logprob for raw in choice.logprobs for one in _logprobs(raw) if one.logprob is not None]
    return sum(found) / len(found) if found else float("-inf")


def _before(op: Complete, facts: ReplyFacts) -> str:
    return str(op.prompts[0]) if facts.full else ""


def _stop(matched: str | int | None) -> str:
    """The stop sequence, which TGI leaves at the end of the text."""
    return matched if isinstance(matched, str) else ""


def _ending(reason: str, stop: str, usage: Usage | None, counted: int, op: Complete) -> dict[str, Any]:
    output = usage.output if usage is not None else None
    word = "length" if reason == "length" else "stop_sequence" if stop else "eos_token"
    return {"finish_reason": word, "generated_tokens": counted if output is None else output, "seed": op.sampling.seed}


def _tokens(text: str, ids: Sequence[int], logprobs: Sequence[Raw]) -> list[dict[str, Any]]:
    """The tokens of `text`. If their own texts are not its pieces, as with a character of several tokens, the last one
    carries it. The caller adds text without any id to the token before."""
    if len(ids) == 1 and not logprobs:  # nearly every chunk of a stream, and a third of its cost (n = 38,400)
        return [_token(ids[0], text, None)]
    found = [one for raw in logprobs for one in _logprobs(raw)][: len(ids)]
    texts = [one.token for one in found]
    if len(texts) != len(ids) or "".join(texts) != text:
        texts = [""] * (len(ids) - 1) + [text]
    values = [one.logprob for one in found] + [None] * (len(ids) - len(found))
    return [_token(*one) for one in zip(ids, texts, values, strict=False)]


def _token(number: int, text: str, logprob: float | None) -> dict[str, Any]:
    return {"id": number, "text": text, "logprob": logprob, "special": False}


def _ended_by(end_token: int, loose: str = "") -> dict[str, Any]:
    """The model's end token. Its text is the tokenizer's own, which no worker returns; clients leave it out. loose:
    text for which there is no other token."""
    return {**_token(end_token, loose, None), "special": not loose}


class ChatWriter(OpenAIStreamWriter):
    """OpenAI's chunks. A client of TGI's needs a fingerprint in each."""

    def _start(self, event: Start) -> bytes:
        return super()._start(replace(event, fingerprint=event.fingerprint or ""))


class TokenWriter(EventWriter):
    """One stream: an event for each token. The last token waits for the end, beside which it stands."""

    def __init__(self, op: Complete) -> None:
        super().__init__()
        self._op = op
        self._texts: list[str] = []
        self._held: dict[str, Any] | None = None
        self._loose = ""
        self._index = 0

    def write(self, event: Event) -> bytes:
        return self._more(event) if type(event) is Delta else self.other(event)

    def failed(self, error: GatewayError) -> bytes:
        return (self._token() if self._held is not None else b"") + error_event(error)

    def _more(self, event: Delta) -> bytes:
        self._texts.append(event.text)
        self.buffered_bytes += len(event.text) + PIECE
        if not event.tokens:
            if self._held is not None:
                self._held["text"] += event.text
            else:
                self._loose += event.text
            return b""
        logprobs = () if event.logprobs is None else (event.logprobs,)
        out = b""
        for token in _tokens(event.text, event.tokens, logprobs):
            if self._held is not None:
                out += self._token()
            token["text"], self._loose = self._loose + token["text"], ""
            self._held = token
        return out

    def _token(self, text: str | None = None, details: dict[str, Any] | None = None) -> bytes:
        self._index += 1
        event = {"index": self._index, "token": self._held, "generated_text": text, "details": details}
        self._held = None
        return sse.frame(encode_line(event))

    def ended(self) -> bytes:
        stop = _stop(self.finish.stop_sequence)
        before = b""
        if self.finish.end_token is not None:
            before = self._token() if self._held is not None else b""
            self._held = _ended_by(self.finish.end_token, self._loose)
        if self._held is None:
            # A reply without any token: its event needs one, and no token has this id.
            self._held = {"id": -1, "text": self._loose, "logprob": None, "special": not self._loose}
        self._held["text"] += stop
        self._held["special"] = self._held["special"] and not stop
        text = _before(self._op, self._op.facts(ReplyFacts)) + "".join(self._texts) + stop
        details = _ending(self.finish.reason, stop, self.usage, self._index + 1, self._op)
        read = self.usage.input if self.usage is not None else None
        return before + self._token(text, {**details, "input_length": read or 0})


# -- errors -----------------------------------------------------------------------------------------------------------

_ERRORS = {
    **dict.fromkeys((Kind.BAD_REQUEST, Kind.UNSUPPORTED, Kind.CONTEXT_LENGTH), (422, "validation")),
    Kind.UNAUTHENTICATED: (401, "unauthorized"),
    Kind.FORBIDDEN: (403, "forbidden"),
    **dict.fromkeys((Kind.NO_ROUTE, Kind.NO_MODEL), (404, "not_found")),
    Kind.NO_METHOD: (405, "not_found"),
    Kind.TOO_LARGE: (413, "validation"),
    Kind.MEDIA_TYPE: (415, "validation"),
    Kind.UPSTREAM: (424, "generation"),
    **dict.fromkeys((Kind.LIMITED, Kind.QUOTA), (429, "overloaded")),
    Kind.CLIENT_GONE: (499, "generation"),
    Kind.TRUNCATED: (500, "incomplete_generation"),
    Kind.INTERNAL: (500, "generation"),
    Kind.OVERLOADED: (503, "overloaded"),
    **dict.fromkeys((Kind.NO_WORKER, Kind.DRAINING), (503, "healthcheck")),
    Kind.TIMEOUT: (504, "generation"),
}
ERRORS: Errors = {kind: (*found, kind.value) for kind, found in _ERRORS.items()}
"""Kind -> (status, error_type, code)."""

# TGI's words before the cause.
_BEFORE = {"validation": "Input validation error: ", "generation": "Request failed during generation: "}


def error_object(error: GatewayError, request: Request | None = None) -> dict[str, Any]:
    """The error; a field by the name that the client knows."""
    _, type_, code = ERRORS[error.kind]
    message = error.message
    if request is not None:
        fields = FIELDS["chat" if request.route == "chat" else "complete"]
        sent = sent_names(request.body)
        message = own_words(error, fields, sent)
        if error.param == "tokens":  # canonical; a client asks for them by one of these
            own = "parameters.details" if "parameters.details" in sent else "stream"
            message = message.replace("'tokens'", f"'{own}'")
        elif error.param == "n" and request.route != "chat":
            message = message.replace("'n'", "'parameters.best_of'")
    if (error.param, error.code) == ("model", "missing_parameter"):
        message += "; TGI's clients name no model: the gateway's operator sets `dialects.tgi.default_model` for them"
    return {"error": _BEFORE.get(type_, "") + message, "error_type": type_, "code": error.code or code}


def error_event(error: GatewayError) -> bytes:
    """The last event of a stream that failed."""
    return sse.frame(encode_line(error_object(error)))


def refuse(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
    status = ERRORS[error.kind][0]
    body = error_object(error, request)
    return refusal(error, status, body), body["code"]


# -- about the models --------------------------------------------------------------------------------------------------

VERSION = "3.3.6"
"""The version of TGI's API, not of the gateway."""
_UNKNOWN_LENGTH = 2**31 - 1


def info(cards: Sequence[ModelCard]) -> Response:
    """The first of the models, which is the default where there is one."""
    card = cards[0] if cards else None
    context = card.max_context if card is not None and card.max_context is not None else _UNKNOWN_LENGTH
    body: dict[str, Any] = {
        "model_id": card.name if card is not None else "",
        "model_sha": None,
        "model_pipeline_tag": "text-generation",
        "max_concurrent_requests": 128,
        "max_best_of": 2,
        "max_stop_sequences": 4,
        "max_input_tokens": max(1, context - 1),
        "max_total_tokens": context,
        "validation_workers": 1,
        "max_client_batch_size": 1,
        "router": "text-generation-router",
        "version": VERSION,
        "sha": None,
        "docker_label": None,
    }
    return Response(200, [JSON_TYPE], encode(body))


def health(cards: Sequence[ModelCard]) -> Response:
    """Whether any model can be served. Says nothing of which: it is answered without a key."""
    if any(card.ready for card in cards):
        return Response(200)
    return Response(503, [JSON_TYPE], encode({"error": "unhealthy", "error_type": "healthcheck"}))
