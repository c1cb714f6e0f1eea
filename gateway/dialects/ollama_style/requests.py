"""Reads requests to the Ollama-style API into the canonical form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import ExtrasPolicy, Range, sort_extras, validate
from gateway.core.http import Request
from gateway.core.messages import Chat, Extra, Image, Message, Output, Thinking
from gateway.dialects._shared.api import Api
from gateway.dialects._shared.objects import members_of
from gateway.dialects._shared.ollama import OPTIONS
from gateway.wire import images
from gateway.wire.json import check_depth, decoded, encode, objects_of
from gateway.wire.openai.requests import reading
from gateway.wire.openai.requests.bounds import RANGES
from gateway.wire.openai.requests.constraints import lift
from gateway.wire.openai.requests.messages import answer_calls, read_at
from gateway.wire.openai.requests.views import CHAT_MEMBERS, MOST_PARTS

_LIMITS = {"top_k": RANGES["top_k"], "min_p": RANGES["min_p"], "repetition_penalty": Range(0, 10, above=True)}


class _OwnIn(Struct):
    """The members of a message that OpenAI's wire does not have."""

    images: Annotated[list[str], Meta(max_length=MOST_PARTS)] | None = None
    thinking: str | None = None
    tool_name: str | None = None


_OWN = _OwnIn.__struct_fields__
_own = msgspec.json.Decoder(_OwnIn)


def read(request: Request, given: Extra, api: Api) -> Chat:
    """Reads a request, whose members are `given`. Raises GatewayError (BAD_REQUEST, UNSUPPORTED)."""
    policy = api.extras
    left_out = _lift_options(given, policy)
    unknown, dropped = api.settle(given, "chat")
    # Members that OpenAI's wire defines have the same meaning here.
    extra = {name: raw for name, raw in unknown.items() if name not in CHAT_MEMBERS}
    known = {name: raw for name, raw in given.items() if name not in extra}
    left_out += _lift_think(known)
    # No worker reads these, so they are never passed on.
    sort_extras("error" if policy == "error" else "drop", left_out)
    output = _lift_format(known)
    if request.route == "sse":
        known.pop("stream", None)
    ranged = {name: known[name] for name in _LIMITS if name in known}
    check_depth(ranged)
    validate({name: msgspec.json.decode(raw) for name, raw in ranged.items()}, _LIMITS)
    own = _take_own(known)
    if "max_tokens" in known and "max_completion_tokens" in known:
        raise _twice("max_completion_tokens", "max_tokens")
    op = reading.read_chat(encode(known), known, extra, dropped + left_out, policy)
    if op.n != 1:
        raise GatewayError(Kind.BAD_REQUEST, "'n' must be 1 here: a reply has one message", param="n")
    op.raw = op.wire = None
    op.output = output or op.output
    op.messages = answer_calls(_with_own(op.messages, own))
    op.stream = op.stream or request.route == "sse"
    op.view = "sse" if request.route == "sse" else "ndjson"
    return op


def _lift_options(known: Extra, policy: ExtrasPolicy) -> tuple[str, ...]:
    """Moves the members of `options` to the top level of `known`. Returns the names of members with no place there.

    Raises GatewayError(BAD_REQUEST) for a value that is given in both places.
    """
    raw = known.pop("options", None)
    if raw is None:
        return ()
    options = members_of(raw)
    if options is None:
        raise GatewayError(Kind.BAD_REQUEST, "'options' must be an object", param="options")
    left_out: Extra = {}
    for name, value in options.items():
        target = OPTIONS.get(name)
        if bytes(value) == b"null" or (name == "num_predict" and bytes(value) in (b"-1", b"-2")):
            continue
        if target is None:
            left_out[name] = value
        elif target in known:
            raise _twice(f"options.{name}", target)
        else:
            known[target] = value
    if policy != "error":
        left_out = lift(left_out, known, "options", "chat")
    return tuple(f"options.{name}" for name in left_out)


def _lift_think(known: Extra) -> tuple[str, ...]:
    """Reads `think`. A level is a reasoning effort. true and false are dropped, and returned as dropped names: not
    every worker can switch thinking on or off."""
    raw = known.pop("think", None)
    if raw is None:
        return ()
    if bytes(raw) in (b"true", b"false"):
        return ("think",)
    if "reasoning_effort" in known:
        raise _twice("think", "reasoning_effort")
    known["reasoning_effort"] = raw
    return ()


def _lift_format(known: Extra) -> Output | None:
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


def _take_own(known: Extra) -> dict[int, _OwnIn]:
    """Removes Ollama's own members from the messages in `known`, and returns them by message index."""
    raw = bytes(known.get("messages", b""))
    if not any(b'"%b"' % name.encode() in raw for name in _OWN):
        return {}
    messages = decoded(objects_of, raw)
    if messages is None:  # the reader of the messages reports the error
        return {}
    found = {}
    for index, message in enumerate(messages):
        own = {name: message.pop(name) for name in _OWN if name in message}
        if own:
            found[index] = read_at(f"messages.{index}", Raw(encode(own)), _own)
    known["messages"] = Raw(encode(messages))
    return found


def _with_own(messages: tuple[Message, ...], owns: Mapping[int, _OwnIn]) -> tuple[Message, ...]:
    """The messages with Ollama's own members: images as base64, thinking, the name of the tool that answers."""
    found = list(messages)
    for index, own in owns.items():
        message, param = found[index], f"messages.{index}"
        parts, name = message.parts, message.name
        if own.thinking:
            if any(isinstance(part, Thinking) for part in parts):
                raise _twice(f"{param}.thinking", f"{param}.reasoning")
            parts = (Thinking(own.thinking), *parts)
        pictures = []
        for position, image in enumerate(own.images or ()):
            url = images.as_url(image)
            if url is None:
                at = f"{param}.images.{position}"
                why = f"'{at}' is not the base64 of an image of a known format"
                raise GatewayError(Kind.BAD_REQUEST, why, param=at)
            pictures.append(Image(url))
        parts = (*parts, *pictures)
        if own.tool_name:
            if name not in (None, own.tool_name):
                raise _twice(f"{param}.tool_name", f"{param}.name")
            name = own.tool_name
        found[index] = msgspec.structs.replace(message, parts=parts, name=name)
    return tuple(found)
