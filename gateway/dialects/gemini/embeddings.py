"""Requests for embeddings, and their replies: one text, several, and Vertex AI's older `predict`."""

from __future__ import annotations

from typing import Any

from msgspec.json import Decoder

from gateway.core.fields import ExtrasPolicy
from gateway.core.http import JSON_TYPE, Response
from gateway.core.lifecycle import Embeddings
from gateway.core.messages import Embed, Extra
from gateway.dialects._shared.faults import wrong, wrong_at
from gateway.dialects.gemini.names import read_named
from gateway.dialects.gemini.views import ContentIn, EmbedBody, EmbedIn, ParametersIn, PartIn
from gateway.wire.json import encode, missing

_body = Decoder(EmbedBody)


def read_embed(raw: Extra, left: list[str], policy: ExtrasPolicy) -> Embed:
    """Reads the texts of `content`, `requests` or `instances`. Raises GatewayError(BAD_REQUEST)."""
    found, unknown = read_named(raw, _body, policy)
    left += unknown
    op = Embed(model=None, inputs=(), encoding="float")
    op.dimensions, op.truncate = found.output_dimensionality, bool(found.auto_truncate)
    if (found.content, found.requests, found.instances).count(None) != 2:
        raise missing("content", "one of 'content', 'requests' and 'instances' is required")
    if found.instances is not None:
        parameters = found.parameters or ParametersIn()
        op.inputs = tuple(one.content for one in found.instances)
        op.dimensions = parameters.output_dimensionality or op.dimensions
        op.truncate = parameters.auto_truncate is not False
        _name(left, "instances", [(one.task_type, one.title) for one in found.instances])
    elif found.requests is not None:
        op.inputs = tuple(_text(one.content, f"requests.{index}") for index, one in enumerate(found.requests))
        op.dimensions = _only(found.requests) or op.dimensions
        op.truncate = op.truncate or any(one.auto_truncate for one in found.requests)
        _name(left, "requests", [(one.task_type, one.title) for one in found.requests])
    else:
        op.inputs = (_text(found.content, ""),)
    if found.parameters is not None and found.instances is None:
        left.append("parameters")
    return op


def _only(found: list[EmbedIn]) -> int | None:
    """The dimensions of all vectors."""
    sizes = {one.output_dimensionality for one in found}
    if len(sizes) > 1:
        raise wrong("requests", "must all have the same 'outputDimensionality'")
    return sizes.pop()


def _name(left: list[str], param: str, facts: list[tuple[str | None, str | None]]) -> None:
    for name, given in (("taskType", [task for task, _ in facts]), ("title", [title for _, title in facts])):
        if any(given):
            left.append(f"{param}[].{name}")


def _text(content: ContentIn | None, param: str) -> str:
    param = f"{param}.content".lstrip(".")
    found = [] if content is None else content.parts
    parts: list[PartIn] = found if isinstance(found, list) else [] if found is None else [found]
    texts = [part.text for part in parts if part.text is not None]
    if not texts or len(texts) != len(parts):
        raise wrong_at(param, "must have parts of text, and no others")
    return "\n".join(texts)


def write_embeddings(reply: Embeddings, route: str) -> Response:
    """The reply on this route. Workers count the tokens of all texts together, so `predict` has a count for one
    text alone."""
    tokens = reply.usage.input if reply.usage is not None else None
    body: dict[str, Any]
    if route == "predict":
        statistics: dict[str, Any] = {"truncated": False}
        if tokens is not None and len(reply.vectors) == 1:
            statistics["token_count"] = tokens
        found = [{"embeddings": {"values": vector, "statistics": statistics}} for vector in reply.vectors]
        return Response(200, [JSON_TYPE], encode({"predictions": found}))
    vectors = [{"values": vector} for vector in reply.vectors]
    body = {"embedding": vectors[0]} if route == "embed" else {"embeddings": vectors}
    if tokens is not None:
        body["usageMetadata"] = {"promptTokenCount": tokens, "totalTokenCount": tokens}
    return Response(200, [JSON_TYPE], encode(body))
