"""Replies without a worker: lists of models, one model's card, the version, and replies to requests without
content."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from gateway.core.http import JSON_TYPE, Headers, Response
from gateway.core.messages import ModelCard
from gateway.core.usage import Usage
from gateway.wire.json import encode

VERSION = "0.32.9"
"""Codex wants 0.13.4 at least, VS Code 0.6.4; Open WebUI reads digits and dots only."""
LINES: Headers = [(b"content-type", b"application/x-ndjson")]
_NEVER = "9999-12-31T23:59:59Z"
# The gateway's feature -> Ollama's capability.
_CAPABILITIES = (("tools", "tools"), ("vision", "vision"), ("reasoning", "thinking"), ("audio", "audio"))
# The features listed for a model that declares none. Only what a worker reports as missing is refused for it.
_UNDECLARED = frozenset({"tools"})
_ARCHITECTURE = "x"


def stamp(seconds: int) -> str:
    """RFC 3339, to the nanosecond, as Ollama writes times. seconds is Unix time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000000000Z")


def banner(cards: Sequence[ModelCard]) -> Response:
    """The reply to a probe, as `ollama` itself expects it."""
    return Response(200, [(b"content-type", b"text/plain; charset=utf-8")], b"Ollama is running")


def version(cards: Sequence[ModelCard]) -> Response:
    """The version of Ollama's API, not of the gateway."""
    return Response(200, [JSON_TYPE], encode({"version": VERSION}))


def tags(cards: Sequence[ModelCard]) -> Response:
    return Response(200, [JSON_TYPE], encode({"models": [_entry(card) for card in cards]}))


def running(cards: Sequence[ModelCard]) -> Response:
    """The list of models that have a ready worker. They never expire."""
    entries = [
        {**_entry(card), "expires_at": _NEVER, "size_vram": 0, "context_length": card.max_context or 0}
        for card in cards
        if card.ready
    ]
    return Response(200, [JSON_TYPE], encode({"models": entries}))


def show(name: str, cards: Sequence[ModelCard]) -> Response:
    """The card of one model, which the client calls `name`."""
    card = cards[0]
    info: dict[str, Any] = {"general.architecture": _ARCHITECTURE, "general.basename": name}
    if card.max_context is not None:
        info[f"{_ARCHITECTURE}.context_length"] = card.max_context
    body = {
        **dict.fromkeys(("license", "modelfile", "parameters", "template"), ""),
        "details": _details(card),
        "model_info": info,
        "capabilities": capabilities(card),
        "modified_at": stamp(card.created),
    }
    return Response(200, [JSON_TYPE], encode(body))


def pulled(cards: Sequence[ModelCard]) -> Response:
    """The reply to a pull of a served model: the last line of Ollama's, since nothing has to be fetched."""
    return Response(200, LINES, b'{"status":"success"}\n')


def nothing_asked(route: str, model: str, reason: str, cards: Sequence[ModelCard]) -> Response:
    """The reply to a request without content, which loads or unloads a model (`reason`). Streamed or not, it is one
    object on one line."""
    if route == "embeddings":
        return Response(200, [JSON_TYPE], encode({"embedding": []}))
    if route == "embed":
        return Response(200, [JSON_TYPE], encode({"model": model, "embeddings": [], **prompt_metrics(None, 0)}))
    members = {"model": model, "created_at": stamp(cards[0].created), **empty(route)}
    body = encode({**members, "done": True, "done_reason": reason, **metrics(None, 0, 0)})
    return Response(200, [JSON_TYPE], body + b"\n")


def empty(route: str) -> dict[str, Any]:
    """The text of a reply without any."""
    return {"message": {"role": "assistant", "content": ""}} if route == "chat" else {"response": ""}


def prompt_metrics(usage: Usage | None, total: int) -> dict[str, int]:
    """The members about time and tokens that every reply has. Durations are in nanoseconds; unknown counts are 0."""
    read = (usage.input if usage is not None else None) or 0
    return {"total_duration": total, "load_duration": 0, "prompt_eval_count": read}


def metrics(usage: Usage | None, prompt: int, generation: int) -> dict[str, int]:
    """The same, and those about the generation."""
    written = (usage.output if usage is not None else None) or 0
    own = {"prompt_eval_duration": prompt, "eval_count": written, "eval_duration": generation}
    return prompt_metrics(usage, prompt + generation) | own


def capabilities(card: ModelCard) -> list[str]:
    """The model's capabilities, by Ollama's names."""
    features = (_UNDECLARED if card.features is None else card.features) - card.lacks
    found = [] if card.features == frozenset({"embeddings"}) else ["completion"]
    found += [word for feature, word in _CAPABILITIES if feature in features]
    return [*found, "embedding"] if "embeddings" in features else found


def _entry(card: ModelCard) -> dict[str, Any]:
    return {
        "name": card.name,
        "model": card.name,
        "modified_at": stamp(card.created),
        "size": 0,
        "digest": sha256(card.name.encode()).hexdigest(),
        "details": _details(card),
        "capabilities": capabilities(card),
    }


def _details(card: ModelCard) -> dict[str, Any]:
    texts = dict.fromkeys(("parent_model", "format", "family", "parameter_size", "quantization_level"), "")
    return {**texts, "families": [], "context_length": card.max_context or 0}
