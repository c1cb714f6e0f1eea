"""Canonical replies to Azure's bodies."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import JSON_TYPE, Response
from gateway.core.lifecycle import Embeddings, Reply, ReplyChoice
from gateway.core.messages import Generate, ModelCard, Op
from gateway.dialects._shared.faults import missing
from gateway.wire.json import encode
from gateway.wire.openai.replies import writing


def info(cards: Sequence[ModelCard]) -> Response:
    """The card of the only model in `cards`. Raises GatewayError (NO_MODEL, BAD_REQUEST) for none or several."""
    if not cards:
        raise GatewayError(Kind.NO_MODEL, "no model is served here")
    found = [card for card in cards if card.alias_of is None] or cards
    if len(found) != 1:
        header = "azureml-model-deployment"
        raise missing(header, f"several models are served here: name one in the header '{header}'")
    features = found[0].features or frozenset()
    kind = "embeddings" if features == {"embeddings"} else "chat_completion"
    body = {"model_name": found[0].name, "model_type": kind, "model_provider_name": "dragoman"}
    return Response(200, [JSON_TYPE], encode(body))


def write_embeddings(reply: Embeddings, op: Op) -> Response:
    vectors = [
        {"index": index, "object": "embedding", "embedding": vector} for index, vector in enumerate(reply.vectors)
    ]
    body = {
        "id": f"embd-{secrets.token_hex(12)}",
        "object": "list",
        "data": vectors,
        "model": writing.shown(op, reply.model),
        "usage": writing.write_usage(reply.usage) if reply.usage is not None else None,
    }
    return Response(200, [JSON_TYPE], encode(body))


def write(reply: Reply, op: Generate) -> Response:
    body: dict[str, Any] = {
        "id": reply.start.id,
        "model": writing.shown(op, reply.start.model),
        "choices": [_write_choice(choice) for choice in reply.choices],
        "created": reply.start.created,
        "object": "chat.completion",
    }
    if reply.start.fingerprint is not None:
        body["system_fingerprint"] = reply.start.fingerprint
    body["usage"] = writing.write_usage(reply.usage) if reply.usage is not None else None
    return Response(200, [JSON_TYPE], encode(body))


def _write_choice(choice: ReplyChoice) -> dict[str, Any]:
    """One choice. The specification's content is always a string, also with tool calls."""
    message = writing.write_message(choice)
    message["content"] = message["content"] or ""
    if message["refusal"] is None:
        del message["refusal"]
    body: dict[str, Any] = {"index": choice.index, "finish_reason": choice.reason, "message": message}
    if choice.logprobs:
        body["logprobs"] = {"content": writing.join_logprobs(choice.logprobs)}
    return body
