"""What TGI says of itself and of its model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.core.http import JSON_TYPE, Response
from gateway.core.messages import ModelCard
from gateway.wire.json import encode

VERSION = "3.3.6"
"""Of TGI's API, not of the gateway."""
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
