"""The field table: the handling of each field of a request to the Messages API. The names are those of Anthropic's
reference and of the recorded clients; see `gateway.dialects.anthropic`."""

from __future__ import annotations

from gateway.core.fields import NO_TARGET, WORDS, Example, Examples, Field, Tables, model_row, renamed, rows

_TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]
_LEVEL = "the nearest of low, medium and high"
_LAST = "a last message of the assistant is gone on with, which only vLLM can do: else 400"
_THINKING = f"enabled: {_LEVEL}, by its budget; disabled: none; adaptive says nothing. Left out for a model that cannot"
_EFFORT = f"{_LEVEL}; goes before thinking. Left out for a model that cannot"
_SCHEMA = {"type": "json_schema", "schema": {"type": "object"}}
_CHOICE = "auto where it names a tool that was left out"
_LENGTH = "says nothing of a prompt's length"

_PROMPT = (
    model_row("names the pool; the worker sees its own name for it"),
    Field("messages", "mapped", [{"role": "user", "content": "hi"}], _LAST),
    renamed("system", "messages", "s", "one system message, its blocks joined by an empty line"),
    Field(
        "tools",
        "mapped",
        _TOOLS,
        "without a schema or deferred: left out and named; web_search and web_fetch too, unless run here",
    ),
)
_IGNORED = (
    *rows("ignored", NO_TARGET, cache_control={"type": "ephemeral"}, context_management={"edits": []}),
    *rows("ignored", NO_TARGET, mcp_servers=[], betas=["b"]),
)

FIELDS: Tables = {
    "chat": (
        *_PROMPT,
        Field("max_tokens", "mapped", 24, "required; what exceeds the context is cut off, and named; 0 is 1"),
        Field("stream", "mapped", True),
        renamed("stop_sequences", "stop", ["END"]),
        *rows("mapped", "", temperature=0.5, top_p=0.9),
        Field("top_k", "mapped", 5, "left out and named for workers without it"),
        Field("tool_choice", "mapped", {"type": "any"}, _CHOICE, beside={"tools": _TOOLS}),
        renamed("thinking", "reasoning_effort", {"type": "enabled", "budget_tokens": 8192}, _THINKING),
        renamed("output_config.effort", "reasoning_effort", "low", _EFFORT),
        renamed("output_config.format", "response_format", _SCHEMA),
        renamed("metadata.user_id", "user", "user-1", "its SHA-256, 32 digits of it"),
        *_IGNORED,
        *rows("ignored", NO_TARGET, container="c", diagnostics={}, inference_geo="us", safeguards=[]),
        *rows("ignored", NO_TARGET, service_tier="auto", speed="fast", user_profile_id="u"),
    ),
    "count": (
        *_PROMPT,
        *rows("ignored", _LENGTH, tool_choice={"type": "auto"}, thinking={"type": "adaptive"}),
        *rows("ignored", _LENGTH, output_config={"effort": "low"}),
        *_IGNORED,
        *rows("ignored", NO_TARGET, speed="fast"),
    ),
}

_TALK = [{"role": "user", "content": WORDS}]
EXAMPLES: Examples = {
    "chat": (Example("chat", {"max_tokens": 16, "messages": _TALK}, ends=b'data: {"type":"message_stop"}'),),
    "count": (Example("count", {"messages": _TALK}, streams="never"),),
}
