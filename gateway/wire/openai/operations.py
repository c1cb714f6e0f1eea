"""Whole requests and whole replies of OpenAI's API, for every dialect that has its bodies: chats, text completions,
embeddings, lists of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from gateway.core.fields import ExtrasPolicy
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.lifecycle import Embeddings, Reply, WholeReply
from gateway.core.messages import Chat, Complete, Extra, ModelCard, Op
from gateway.core.usage import Usage
from gateway.wire.json import encode, settle_unknown
from gateway.wire.openai.replies import writing
from gateway.wire.openai.requests import reading
from gateway.wire.openai.requests.constraints import CONSTRAINTS
from gateway.wire.openai.requests.views import CHAT_MEMBERS, TEXT_MEMBERS

_CANONICAL = {"chat": CHAT_MEMBERS, "complete": TEXT_MEMBERS, "embed": frozenset[str]()}


def read(request: Request, raw: Extra, operation: str, known: frozenset[str], policy: ExtrasPolicy) -> Op:
    """The body of `request`, whose members are `raw`, as `operation` (chat, complete or embed). `policy` applies to
    members that are not in `known`. Raises GatewayError (BAD_REQUEST, UNSUPPORTED)."""
    extra, dropped = settle_unknown(raw, known, policy, binding=CONSTRAINTS[operation])
    if extra:
        canonical = _CANONICAL[operation]
        extra = {name: value for name, value in extra.items() if name not in canonical}
    body = encode(raw) if dropped else request.body
    if operation == "chat":
        return reading.read_chat(body, raw, extra, dropped, policy)
    if operation == "complete":
        return reading.read_text(body, raw, extra, dropped, policy)
    return reading.read_embed(body, raw, extra, dropped)


def name_deployment(request: Request, raw: Extra) -> None:
    """Writes the deployment in the path of `request`, if there is one, into its body and into `raw`, its members.
    Clients of Azure may leave another name, "" or null there."""
    deployment = request.params.get("deployment", "").strip()
    if deployment:
        raw["model"] = Raw(encode(deployment))
        request.body = encode(raw)


def write(reply: WholeReply, op: Op) -> Response:
    if isinstance(reply, Embeddings):
        body: dict[str, Any] = {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": vector}
                for index, vector in enumerate(reply.vectors)
            ],
            "model": writing.shown(op, reply.model),
            "usage": writing.write_usage(reply.usage or Usage()),
        }
        return Response(200, [JSON_TYPE], encode(body))
    assert isinstance(reply, Reply)
    assert isinstance(op, (Chat, Complete))
    write_one = writing.write_choice if isinstance(op, Chat) else writing.write_text_choice
    body = {
        "id": reply.start.id,
        "object": "chat.completion" if isinstance(op, Chat) else "text_completion",
        "created": reply.start.created,
        "model": writing.shown(op, reply.start.model),
        "choices": [write_one(choice) for choice in reply.choices],
    }
    if reply.usage is not None:
        body["usage"] = writing.write_usage(reply.usage)
    if reply.start.fingerprint is not None:
        body["system_fingerprint"] = reply.start.fingerprint
    if reply.start.tier is not None:
        body["service_tier"] = reply.start.tier
    body.update(reply.start.extra or {})
    return Response(200, [JSON_TYPE], encode(body))


def write_models(cards: Sequence[ModelCard]) -> Response:
    return Response(200, [JSON_TYPE], encode({"object": "list", "data": [_write_card(card) for card in cards]}))


def write_model(cards: Sequence[ModelCard]) -> Response:
    """The first of `cards`."""
    return Response(200, [JSON_TYPE], encode(_write_card(cards[0])))


def _write_card(card: ModelCard) -> dict[str, Any]:
    body: dict[str, Any] = {"id": card.name, "object": "model", "created": card.created, "owned_by": "dragoman"}
    if card.alias_of is not None:
        body["root"] = card.alias_of
    if card.max_context is not None:
        body["max_model_len"] = card.max_context
    return body
