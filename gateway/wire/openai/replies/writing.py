"""Writes parts of canonical replies as JSON of OpenAI's wire, for every dialect whose replies resemble OpenAI's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from gateway.core.lifecycle import ReplyChoice, ReplyPart
from gateway.core.messages import Op
from gateway.core.usage import Usage


def shown(op: Op, reported: str) -> str:
    return op.model or reported


def write_usage(usage: Usage) -> dict[str, Any]:
    """The usage object. Unknown counts are 0, because OpenAI's clients require integers."""
    body: dict[str, Any] = {
        "prompt_tokens": usage.input or 0,
        "completion_tokens": usage.output or 0,
        "total_tokens": (usage.input or 0) + (usage.output or 0),
    }
    details = {"cached_tokens": usage.cached, "created_cache_tokens": usage.stored}
    if usage.cached is not None or usage.stored is not None:
        body["prompt_tokens_details"] = {name: count for name, count in details.items() if count is not None}
    if usage.reasoning is not None:
        body["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return body


def write_message(choice: ReplyChoice) -> dict[str, Any]:
    """The assistant message of a finished choice. content is null only with tool calls or a refusal."""
    text, thinking, refusal, calls = choice.by_kind()
    if text is None and not calls and refusal is None:
        text = ""
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": refusal}
    if thinking is not None:
        message["reasoning"] = message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = write_calls(calls)
    return message


def write_calls(calls: Sequence[ReplyPart]) -> list[dict[str, Any]]:
    return [
        {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
        for call in calls
    ]


def write_choice(choice: ReplyChoice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "message": write_message(choice),
        "logprobs": {"content": join_logprobs(choice.logprobs), "refusal": None} if choice.logprobs else None,
        "finish_reason": choice.reason,
    }


def write_text_choice(choice: ReplyChoice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "text": choice.text() or "",
        "logprobs": text_logprobs(choice.logprobs, 0) if choice.logprobs else None,
        "finish_reason": choice.reason,
        **(choice.extra or {}),
    }


def join_logprobs(raws: Sequence[Raw]) -> list[Any]:
    return [item for raw in raws for item in msgspec.json.decode(raw)]


def joined_logprobs(raws: Sequence[Raw]) -> Raw:
    """The same as JSON text, unread: those of a long reply are megabytes."""
    return Raw(b"[%b]" % b",".join([inner for raw in raws if (inner := bytes(raw)[1:-1])]))


def text_logprobs(raws: Sequence[Raw], offset: int) -> dict[str, Any]:
    """Canonical logprobs in the form of text completions. `offset` is where this text begins, in characters."""
    items = join_logprobs(raws)
    offsets = []
    for item in items:
        offsets.append(offset)
        offset += len(item["token"])
    return {
        "text_offset": offsets,
        "token_logprobs": [item["logprob"] for item in items],
        "tokens": [item["token"] for item in items],
        "top_logprobs": [{top["token"]: top["logprob"] for top in item["top_logprobs"]} or None for item in items],
    }
