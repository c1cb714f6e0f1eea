"""OpenAI: chat completions, text completions, embeddings, models; streamed and whole.

Sources: the OpenAI streaming specification (docs/dialects/openai.md); openai-python 3.54 and 1.109, openai-node 6.49,
langchain-openai 1.7 and the AI SDK as recorded clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import WORDS, Example, Examples, ExtrasPolicy, Field, body_members
from gateway.core.http import JSON_TYPE, Request, Response, Route
from gateway.core.lifecycle import Embeddings, Reply, WholeReply
from gateway.core.messages import (
    Chat,
    Complete,
    Generate,
    ListModels,
    ModelCard,
    Op,
)
from gateway.core.ports import Passthrough, StreamWriter
from gateway.wire.json import encode, members, require_json, settle_unknown, whole_numbers
from gateway.wire.openai import passthrough
from gateway.wire.openai import reading as requests
from gateway.wire.openai import writing as replies
from gateway.wire.openai.request_views import CHAT_MEMBERS, TEXT_MEMBERS

_TOOLS = [{"type": "function", "function": {"name": "f"}}]
_SAMPLING = (
    Field("temperature", "mapped", sample=0.5),
    Field("top_p", "mapped", sample=0.9),
    Field("seed", "mapped", sample=7),
    Field("frequency_penalty", "mapped", sample=0.5),
    Field("presence_penalty", "mapped", sample=0.5),
    Field("logit_bias", "mapped", sample={"42": -1.0}),
    Field("stop", "mapped", sample=["END"]),
    Field("n", "mapped", sample=2),
    Field("user", "mapped", sample="user-1"),
    Field("max_tokens", "mapped", sample=16),
)
_COMMON = (
    Field(
        "model",
        "consumed",
        note="names the pool; the worker sees its own name for it",
        sample="m",
        names_model=True,
    ),
    Field("stream", "mapped", sample=True),
    Field(
        "stream_options",
        "consumed",
        note="usage is always asked of the worker, and stripped unless asked for here; other members go on",
        sample={"include_usage": True},
        beside={"stream": True},
    ),
    *_SAMPLING,
)
_REMOTE = "forwarded; vLLM ignores it, a remote OpenAI endpoint obeys it"

FIELDS: Mapping[str, Sequence[Field]] = {
    "chat": (
        Field("messages", "mapped", sample=[{"role": "user", "content": "hi"}]),
        *_COMMON,
        Field("max_completion_tokens", "mapped", note="goes before max_tokens", sample=16),
        Field("tools", "mapped", note="an empty array is dropped", sample=_TOOLS),
        Field(
            "tool_choice",
            "mapped",
            note="without tools named as dropped, 400 if it asks for one",
            sample="auto",
            beside={"tools": _TOOLS},
        ),
        Field(
            "parallel_tool_calls",
            "mapped",
            note="named as dropped without tools",
            sample=False,
            beside={"tools": _TOOLS},
        ),
        Field("response_format", "mapped", sample={"type": "json_object"}),
        Field("reasoning_effort", "mapped", sample="low"),
        Field("logprobs", "mapped", sample=True),
        Field("top_logprobs", "mapped", note="400 without logprobs", sample=2, beside={"logprobs": True}),
        Field("functions", "refused", note="deprecated by OpenAI: use tools", sample=[{"name": "f"}]),
        Field("function_call", "refused", note="deprecated by OpenAI: use tool_choice", sample="auto"),
        Field("service_tier", "mapped", note=_REMOTE, sample="auto"),
        Field("store", "mapped", note=_REMOTE, sample=False),
        Field("metadata", "mapped", note=_REMOTE, sample={"k": "v"}),
        Field("moderation", "mapped", note=_REMOTE, sample={}),
        Field("modalities", "mapped", note=_REMOTE, sample=["text"]),
        Field("audio", "mapped", note=_REMOTE, sample={"voice": "alloy", "format": "wav"}),
        Field("prediction", "mapped", note=_REMOTE, sample={"type": "content", "content": "x"}),
        Field("prompt_cache_key", "mapped", note=_REMOTE, sample="k"),
        Field("prompt_cache_options", "mapped", note=_REMOTE, sample={}),
        Field("prompt_cache_retention", "mapped", note=_REMOTE, sample="24h"),
        Field("safety_identifier", "mapped", note=_REMOTE, sample="s"),
        Field("verbosity", "mapped", note=_REMOTE, sample="low"),
        Field("web_search_options", "mapped", note=_REMOTE, sample={}),
    ),
    "complete": (
        Field("prompt", "mapped", sample="hi"),
        *_COMMON,
        Field("suffix", "mapped", note="vLLM answers 400 to it", sample="end"),
        Field("echo", "mapped", sample=True),
        Field(
            "best_of", "refused", note="unless it equals n: no engine behind us draws more than it returns", sample=4
        ),
        Field("logprobs", "mapped", sample=1),
    ),
    "embed": (
        Field("input", "mapped", sample="hi"),
        Field("model", "consumed", note="names the pool", sample="m", names_model=True),
        Field("encoding_format", "mapped", sample="float"),
        Field("dimensions", "mapped", sample=8),
        Field("user", "mapped", sample="user-1"),
    ),
}
_KNOWN = body_members(FIELDS)
_DONE = b"data: [DONE]"
EXAMPLES: Examples = {
    "chat": (Example("chat", {"messages": [{"role": "user", "content": WORDS}]}, ends=_DONE),),
    "complete": (Example("complete", {"prompt": WORDS}, ends=_DONE),),
    "embed": (Example("embed", {"input": WORDS}, streams="never"),),
}
"""The smallest valid requests."""
_CANONICAL = {"chat": CHAT_MEMBERS, "complete": TEXT_MEMBERS, "embed": frozenset[str]()}


class OpenAI:
    """The dialect `openai`."""

    name = "openai"
    prefixes: tuple[str, ...] = ("", "/openai")
    extras: ExtrasPolicy = "pass"
    routes: tuple[Route, ...] = (
        Route("POST", "/v1/chat/completions", "chat"),
        Route("POST", "/v1/completions", "complete"),
        Route("POST", "/v1/embeddings", "embed"),
        Route("GET", "/v1/models", "models"),
        Route("GET", "/v1/models/{model:path}", "model"),
    )
    fields = FIELDS
    examples = EXAMPLES
    errors: Mapping[Kind, tuple[int, str, str]] = replies.ERRORS
    passthrough: Mapping[str, Passthrough] = {"openai": passthrough.Passthrough(replies.error_event)}

    # -- requests ---------------------------------------------------------------------------------------------------

    @whole_numbers
    def read(self, request: Request) -> Op | ListModels:
        if request.route == "models":
            return ListModels(write=_write_models)
        if request.route == "model":
            return ListModels(write=_write_model, model=request.params["model"])
        require_json(request)
        raw = members(request)
        extra, dropped = settle_unknown(raw, _KNOWN[request.route], self.extras)
        if extra:
            canonical = _CANONICAL[request.route]
            extra = {name: value for name, value in extra.items() if name not in canonical}
        body = encode(raw) if dropped else request.body
        if request.route == "chat":
            return requests.read_chat(body, raw, extra, dropped, self.extras)
        if request.route == "complete":
            return requests.read_text(body, raw, extra, dropped, self.extras)
        return requests.read_embed(body, raw, extra, dropped)

    # -- replies ----------------------------------------------------------------------------------------------------

    def write(self, reply: WholeReply, op: Op) -> Response:
        if isinstance(reply, Embeddings):
            body: dict[str, Any] = {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": index, "embedding": vector}
                    for index, vector in enumerate(reply.vectors)
                ],
                "model": replies.shown(op, reply.model),
                "usage": replies.write_usage(reply.usage) if reply.usage is not None else None,
            }
            return Response(200, [JSON_TYPE], encode(body))
        assert isinstance(reply, Reply)
        assert isinstance(op, (Chat, Complete))
        write = replies.write_choice if isinstance(op, Chat) else replies.write_text_choice
        body = {
            "id": reply.start.id,
            "object": "chat.completion" if isinstance(op, Chat) else "text_completion",
            "created": reply.start.created,
            "model": replies.shown(op, reply.start.model),
            "choices": [write(choice) for choice in reply.choices],
            "usage": replies.write_usage(reply.usage) if reply.usage is not None else None,
        }
        if reply.start.fingerprint is not None:
            body["system_fingerprint"] = reply.start.fingerprint
        if reply.start.tier is not None:
            body["service_tier"] = reply.start.tier
        body.update(reply.start.extra or {})
        return Response(200, [JSON_TYPE], encode(body))

    def writer(self, op: Generate) -> StreamWriter:
        return replies.StreamWriter(op, replies.error_event)

    def refuse(self, error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
        return replies.refusal(error)


def _write_models(cards: Sequence[ModelCard]) -> Response:
    return Response(200, [JSON_TYPE], encode({"object": "list", "data": [_write_card(card) for card in cards]}))


def _write_model(cards: Sequence[ModelCard]) -> Response:
    return Response(200, [JSON_TYPE], encode(_write_card(cards[0])))


def _write_card(card: ModelCard) -> dict[str, Any]:
    body: dict[str, Any] = {"id": card.name, "object": "model", "created": card.created, "owned_by": "dragoman"}
    if card.alias_of is not None:
        body["root"] = card.alias_of
    if card.max_context is not None:
        body["max_model_len"] = card.max_context
    return body
