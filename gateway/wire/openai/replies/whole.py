"""Buffered replies of OpenAI's wire for clients of the same wire: passed on unchanged if nothing must change."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_not
from typing import Any

import msgspec

from gateway.core.messages import Chat, Embed, Generate, NamedTool, choices_of
from gateway.core.usage import Usage
from gateway.wire import clock
from gateway.wire.json import NULL, encode
from gateway.wire.openai.replies import views as wire
from gateway.wire.openai.replies.excess import ORDINARY_BYTES, refuse_excess, refuse_longer
from gateway.wire.openai.replies.tool_calls import Call, is_cut
from gateway.wire.openai.replies.vectors import as_asked
from gateway.wire.scan import without_nulls

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_KNOWN_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
_PLAIN_REASONS = _KNOWN_REASONS | {None}
_OBJECTS = ("chat.completion", "text_completion")
# Removes members that OpenAI describes as absent or an object (the fingerprint: a text), and that vLLM writes as null.
_described = without_nulls(
    b"annotations", b"function_call", b"system_fingerprint", b"prompt_tokens_details", b"completion_tokens_details"
)


def whole(body: bytes, op: Generate | Embed) -> tuple[bytes, Usage | None]:
    """A buffered reply for a client of the same wire, and its usage. Missing ids, times and indices are filled in.

    Raises GatewayError(UPSTREAM) if the body is not a reply to `op`, the reported error if it is an error in a 200, and
    as `as_asked`.
    """
    model = op.model or ""
    if type(op) is Embed:
        refuse_longer(body, len(op.inputs))
    elif len(body) > ORDINARY_BYTES:
        refuse_excess(body, choices_of(op))
    wire.require_strict(body)
    try:
        tally = wire.tally_decoder.decode(body)
        if tally.error is not None:
            raise wire.late_fault(tally.error)
        vectors = _as_asked(tally, op) if type(op) is Embed else None
        exact = _exact(tally, op) if type(op) is not Embed else vectors is None
        usage = wire.usage(tally.usage) if tally.usage is not None else None
        if exact:
            if tally.model == model:
                return _described(body), usage
            if tally.model is not None and body.count(b'"model"') == 1:
                named = b'"model":' + encode(tally.model)
                if named in body:
                    return _described(body.replace(named, b'"model":' + encode(model))), usage
        reply = _decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise wire.malformed() from None
    reply["model"] = model
    if type(op) is not Embed:
        _mend(reply, op)
    for entry, vector in zip(reply.get("data") or (), vectors or (), strict=False):
        entry["embedding"] = vector
    return _described(encode(reply)), usage


def _as_asked(tally: wire.TallyIn, op: Embed) -> tuple[msgspec.Raw, ...] | None:
    """The vectors that the client asked for; None if they are the worker's. Raises as `as_asked`, and
    GatewayError(UPSTREAM) if one is missing."""
    given = [one.embedding for one in tally.data or ()]
    if len(given) != len(op.inputs) or NULL in given:
        raise wire.malformed()
    vectors = as_asked(given, op)
    return vectors if any(map(is_not, vectors, given)) else None


def is_named(op: Generate | Embed) -> bool:
    """Whether the request names the function that must be called. OpenAI itself then ends the call with `stop`."""
    return isinstance(op, Chat) and isinstance(op.tool_choice, NamedTool)


def in_members(content: Sequence[wire.ContentIn]) -> dict[str, str]:
    """A reply's content that came in parts, as the members that this wire's clients read."""
    found = {"content": ""}
    for kind, text in wire.texts(content):
        name = {"text": "content", "thinking": "reasoning_content"}.get(kind, kind)
        found[name] = found.get(name, "") + text
    return found


def _mend(reply: dict[str, Any], op: Generate) -> None:
    """Corrects, in place, the faults that `_exact` checks for."""
    chat = isinstance(op, Chat)
    if not reply.get("id"):
        reply["id"] = clock.new_id("chatcmpl-" if chat else "cmpl-")
    reply["object"] = "chat.completion" if chat else "text_completion"
    reply["created"] = wire.created_at(reply.get("created"), clock.seconds())
    named = is_named(op)
    for position, choice in enumerate(reply["choices"]):
        choice.setdefault("index", position)
        message = choice.get("message")
        if chat:
            if not message.get("role"):
                message["role"] = "assistant"
            if isinstance(message.get("content"), list):
                message |= in_members(msgspec.convert(message["content"], list[wire.ContentIn]))
            thinking = message.get("reasoning") or message.get("reasoning_content")
            if thinking:
                message["reasoning"] = message["reasoning_content"] = thinking
            for call in message.get("tool_calls") or ():
                call["id"] = call.get("id") or clock.new_id("call_")
                call["type"] = "function"
        if choice.get("finish_reason") is not None:
            calls = (message.get("tool_calls") if chat else None) or []
            choice["finish_reason"] = word = finish_word(choice["finish_reason"] or "stop", bool(calls and not named))
            for call in calls:
                _mend_arguments(call, is_cut(wire.reason(word)) and call is calls[-1])


def _mend_arguments(call: dict[str, Any], cut: bool) -> None:
    function = call.get("function")
    if isinstance(function, dict):
        given, done = function.get("arguments"), Call(0, None, None)
        text = given if isinstance(given, str) else "" if given is None else encode(given).decode()
        function["arguments"] = done.next(text) + done.rest(cut)


def _exact(tally: wire.TallyIn, op: Generate) -> bool:
    """True if only the model's name must change for the client. Raises GatewayError(UPSTREAM) if the reply lacks
    something that `op` asks for."""
    choices, chat = tally.choices or (), type(op) is Chat
    if len(choices) != choices_of(op):
        raise wire.malformed()
    exact = bool(tally.id) and tally.object in _OBJECTS and type(tally.created) is int
    exact = exact and tally.created == wire.created_at(tally.created, 0)
    for choice in choices:
        message, why = choice.message, choice.finish_reason
        if message is None if chat else choice.text is None or why is None:
            raise wire.malformed()
        if choice.index is None or why not in _PLAIN_REASONS:
            exact = False
        elif message is not None and exact:
            exact = bool(message.role) and (message.reasoning or message.reasoning_content) is None
            if message.tool_calls or isinstance(message.content, list):
                exact = exact and _exact_calls(message, why == "stop" and not is_named(op))
    return exact


def _exact_calls(message: wire.TallyMessageIn, must_name_calls: bool) -> bool:
    if isinstance(message.content, list) or must_name_calls:
        return False
    return all(
        call.id and call.type == "function" and _has_arguments(call.function) for call in message.tool_calls or ()
    )


def _has_arguments(function: wire.FunctionIn | None) -> bool:
    return function is None or (bytes(function.arguments)[:1] == b'"' and function.text.strip() not in ("", "null"))


def finish_word(word: str, calls: bool = False) -> str:
    """A finish reason that OpenAI defines. calls: `stop` stands for calls of tools. Raises GatewayError if the engine
    aborted the generation."""
    if word in wire.FAILING:
        raise wire.aborted(word)
    found = word if word in _KNOWN_REASONS else wire.reason(word)
    return "tool_calls" if calls and found == "stop" else found
