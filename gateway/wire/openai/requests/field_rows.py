"""Rows for the field tables of dialects whose bodies resemble OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.fields import Field

_TOOLS = [{"type": "function", "function": {"name": "f"}}]
_SAMPLES: Mapping[str, Any] = {
    "frequency_penalty": 0.5,
    "ignore_eos": False,
    "logit_bias": {"42": -1.0},
    "max_completion_tokens": 16,
    "max_tokens": 16,
    "messages": [{"role": "user", "content": "hi"}],
    "min_p": 0.1,
    "min_tokens": 1,
    "n": 2,
    "presence_penalty": 0.5,
    "prompt": "hi",
    "reasoning_effort": "low",
    "repetition_penalty": 1.1,
    "response_format": {"type": "json_object"},
    "seed": 7,
    "stop": ["END"],
    "stop_token_ids": [2],
    "stream": True,
    "temperature": 0.5,
    "top_k": 5,
    "top_p": 0.9,
    "user": "user-1",
}

TOOLS = (
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
)
"""`tools`, `tool_choice` and `parallel_tool_calls`."""
LOGPROBS = (
    Field("logprobs", "mapped", sample=True),
    Field("top_logprobs", "mapped", note="400 without logprobs", sample=2, beside={"logprobs": True}),
)
"""`logprobs` and `top_logprobs` of a chat."""


def mapped(*names: str, note: str = "") -> tuple[Field, ...]:
    """A row for each of these fields of OpenAI's or vLLM's wire, which reach the worker under their own names."""
    return tuple(Field(name, "mapped", note=note, sample=_SAMPLES[name]) for name in names)


def stream_options(note: str) -> Field:
    """The row of `stream_options`, which the gateway itself reads."""
    return Field("stream_options", "consumed", note=note, sample={"include_usage": True}, beside={"stream": True})
