"""The field tables of OpenAI's requests, rows for tables that resemble them, and the smallest requests.

Sources: the OpenAI streaming specification (docs/dialects/openai.md) and the signatures of OpenAI's own clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.fields import WORDS, Example, Examples, Field, Tables, model_row, rows

_TOOLS = [{"type": "function", "function": {"name": "f"}}]
_WITH_TOOLS = {"tools": _TOOLS}
_NOT_ALONE = "without tools named as dropped"
SAMPLES: Mapping[str, Any] = {
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
"""Field of OpenAI's or vLLM's wire -> a value that a valid request may have."""

TOOLS = (
    Field("tools", "mapped", _TOOLS, "an empty array is dropped, a tool of the web left out and named"),
    Field("tool_choice", "mapped", "auto", f"{_NOT_ALONE}, 400 if it asks for one", beside=_WITH_TOOLS),
    Field("parallel_tool_calls", "mapped", False, "named as dropped without tools", beside=_WITH_TOOLS),
)
"""`tools`, `tool_choice` and `parallel_tool_calls`."""
LOGPROBS = (
    Field("logprobs", "mapped", sample=True),
    Field("top_logprobs", "mapped", note="400 without logprobs", sample=2, beside={"logprobs": True}),
)
"""`logprobs` and `top_logprobs` of a chat."""


def mapped(*names: str, note: str = "") -> tuple[Field, ...]:
    """A row for each of these fields of OpenAI's or vLLM's wire, which reach the worker under their own names."""
    return tuple(Field(name, "mapped", note=note, sample=SAMPLES[name]) for name in names)


def stream_options(note: str) -> Field:
    """The row of `stream_options`, which the gateway itself reads."""
    return Field("stream_options", "consumed", note=note, sample={"include_usage": True}, beside={"stream": True})


_COMMON = (
    model_row("names the pool; the worker sees its own name for it"),
    *mapped("stream"),
    stream_options("usage is always asked of the worker, and stripped unless asked for here; other members go on"),
    *mapped("temperature", "top_p", "seed", "frequency_penalty", "presence_penalty", "logit_bias", "stop", "n", "user"),
    *mapped("max_tokens"),
)
_REMOTE = "only OpenAI's own service reads it"
_DRAWN = "no engine behind us draws more than it returns"

FIELDS: Tables = {
    "chat": (
        *mapped("messages"),
        *_COMMON,
        *mapped("max_completion_tokens", note="goes before max_tokens"),
        *TOOLS,
        *mapped("response_format", "reasoning_effort"),
        *LOGPROBS,
        Field("functions", "refused", note="deprecated by OpenAI: use tools", sample=[{"name": "f"}]),
        Field("function_call", "refused", note="deprecated by OpenAI: use tool_choice", sample="auto"),
        *rows("ignored", _REMOTE, service_tier="auto", store=True, metadata={"k": "v"}),
        Field("moderation", "refused", note=_REMOTE, sample={}),
        Field("modalities", "refused", note=f'{_REMOTE}; `["text"]` is every worker\'s', sample=["text", "audio"]),
        *rows("ignored", _REMOTE, audio={"voice": "alloy", "format": "wav"}),
        *rows("ignored", _REMOTE, prediction={"type": "content", "content": "x"}),
        Field("prompt_cache_key", "consumed", note="chooses the place among workers", sample="k"),
        *rows("ignored", _REMOTE, prompt_cache_options={}, prompt_cache_retention="24h"),
        *rows("ignored", _REMOTE, safety_identifier="s", verbosity="low"),
        *rows("ignored", _REMOTE, web_search_options={}),
        Field("echo", "mapped", note="vLLM", sample=True),
        Field("best_of", "refused", 2, f"unless it is 1: {_DRAWN}"),
    ),
    "complete": (
        *mapped("prompt"),
        *_COMMON,
        Field("suffix", "mapped", note="vLLM answers 400 to it", sample="end"),
        Field("echo", "mapped", sample=True),
        Field("best_of", "refused", 4, f"unless it equals n: {_DRAWN}"),
        Field("logprobs", "mapped", sample=1),
    ),
    "embed": (
        Field("input", "mapped", sample="hi"),
        model_row("names the pool"),
        Field("encoding_format", "mapped", sample="float"),
        Field("dimensions", "mapped", sample=8),
        *mapped("user"),
    ),
}

_DONE = b"data: [DONE]"
EXAMPLES: Examples = {
    "chat": (Example("chat", {"messages": [{"role": "user", "content": WORDS}]}, ends=_DONE),),
    "complete": (Example("complete", {"prompt": WORDS}, ends=_DONE),),
    "embed": (Example("embed", {"input": WORDS}, streams="never"),),
}
"""The smallest valid requests."""
