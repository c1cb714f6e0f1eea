"""The field table: the handling of each field of a request to Cohere's API. The names are those of Cohere's reference
and of the recorded clients; see `gateway.dialects.cohere`."""

from __future__ import annotations

from gateway.core.fields import WORDS, Example, Examples, Field, Tables, model_row, renamed, rows
from gateway.wire.openai.requests.fields import TOOLS, mapped

_TOOLS = {"tools": TOOLS[0].sample}
_LAST = "a last message of the assistant is gone on with, which only vLLM can do: else 400"
_CITED = "a 400 unless its mode is OFF or DISABLED: no worker cites"
_THINKING = "enabled: low, medium or high, by its budget; disabled: none. Left out for a model that cannot"
_SCHEMA = {"type": "json_object", "json_schema": {"type": "object"}}

FIELDS: Tables = {
    "chat": (
        model_row("names the pool; the worker sees its own name for it"),
        *mapped("messages", note=_LAST),
        *mapped("stream"),
        Field("tools", "mapped", TOOLS[0].sample, "an empty array is none, a tool of the web left out and named"),
        Field("strict_tools", "renamed", True, "the tools' own `strict`", "tools", beside=_TOOLS),
        Field("tool_choice", "mapped", "REQUIRED", "REQUIRED or NONE; named as dropped without tools", beside=_TOOLS),
        renamed("documents", "messages", ["a", {"id": "d", "data": {"text": "b"}}], "in the first system message"),
        Field("citation_options", "refused", {"mode": "FAST"}, _CITED),
        Field("response_format", "mapped", _SCHEMA, "a schema as `json_schema`, or as `schema`"),
        Field("max_tokens", "mapped", 24, "more than the context leaves is cut off, and named"),
        renamed("stop_sequences", "stop", ["END"]),
        *mapped("temperature"),
        renamed("p", "top_p", 0.9),
        renamed("k", "top_k", 5, "0 is off; left out and named for workers without it"),
        *mapped("seed", "frequency_penalty", "presence_penalty"),
        renamed("logprobs", "logprobs, return_token_ids", True, "the ids of tokens where the worker has them"),
        renamed("thinking", "reasoning_effort", {"type": "enabled", "token_budget": 8192}, _THINKING),
        *rows("ignored", "only Cohere's own service reads it", safety_mode="CONTEXTUAL", priority=1),
    ),
}

EXAMPLES: Examples = {
    "chat": (Example("chat", {"messages": [{"role": "user", "content": WORDS}]}, ends=b"data: [DONE]"),),
}
