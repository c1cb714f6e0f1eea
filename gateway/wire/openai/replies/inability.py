"""Answers by which a worker reports that its model does not do what was asked at all: chats of a model that makes
embeddings, embeddings of one that chats. That is the model's nature: no worker has failed.

Sources: vLLM 0.10 to 0.33 (`api_server.py`, `serving_*.py`), llama.cpp's `tools/server`, SGLang 0.5
(`serving_embedding.py`), Ollama 0.12 (`server/routes.py`), OpenAI.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.core.errors import GatewayError
from gateway.core.failures import Cause
from gateway.core.http import Response
from gateway.core.messages import MEDIA_FEATURES, NOT_DONE, Chat, Complete, Embed, Media, Op, Score
from gateway.wire.openai.requests.unsupported import beyond

_MISSING = frozenset({404, 405})
_REPORTED = frozenset({400, 404, 422, 500, 501})
_BEGINNING = 4_000
_END = rb"(?: API)?(?:[\"'.,(]|\s*$| Start it)"
_WORDS: Mapping[type[Op], re.Pattern[bytes]] = {
    Chat: re.compile(
        rb"does not support (?:Chat Completions|chat|completions|generate)" + _END + rb"|This is not a chat model",
        re.IGNORECASE,
    ),
    Complete: re.compile(rb"does not support (?:Completions|generate)" + _END, re.IGNORECASE),
    Embed: re.compile(
        rb"does not support (?:Embeddings?)" + _END + rb"|not (?:appear to be )?an embedding model", re.IGNORECASE
    ),
    Score: re.compile(rb"does not support (?:Score|Rerank|reranking)" + _END, re.IGNORECASE),
}
_NOT: Mapping[type[Op], tuple[str, str]] = {
    Chat: ("chat", "generates no text"),
    Complete: ("completions", "completes no texts"),
    Embed: ("embeddings", "makes no embeddings"),
    Score: ("scores", "does not rank documents"),
}
"""Operation -> the feature that it needs, and the words about a model without it."""


def inability(response: Response, op: Op | None, backend: str) -> GatewayError | None:
    """The refusal if `response` means that this worker's model does not do what `op` asks at all; None for any other.
    Its `lacks` is set where the worker reports that in words.

    A worker without the path of an operation that few models do does not do it; another worker of the model may, and
    is asked. A missing path for chats, which nearly all do, is more likely a wrong address. A model that the worker
    does not know is a fault of the configuration, and not meant here.
    """
    status, body = response.status, response.body
    if (status not in _MISSING and status not in _REPORTED) or b"does not exist" in body:
        return None
    if isinstance(op, Media):
        reported = False
        feature, what = MEDIA_FEATURES[op.work], NOT_DONE[op.work]
    elif op is not None and type(op) in _NOT:
        text = isinstance(op, (Chat, Complete))
        reported = _WORDS[type(op)].search(body, 0, _BEGINNING) is not None
        feature, what = _NOT[type(op)]
        if text and not reported:
            return None
    else:
        return None
    if not reported and status not in (*_MISSING, 501):
        return None
    error = beyond(backend, what)
    if reported:
        error.lacks = feature
    elif status in _MISSING:
        error.cause = Cause.WRONG_PATH
    return error
