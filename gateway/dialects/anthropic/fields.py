"""The field table: the handling of each field of a request to the Messages API. The names are those of Anthropic's
reference and of the recorded clients; see `gateway.dialects.anthropic`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.core.fields import WORDS, Example, Examples, Field

_TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]
_NO_PLACE = "nothing behind us has a place for it"
_LEVEL = "the nearest of low, medium and high"

_PROMPT = (
    Field(
        "model", "consumed", note="names the pool; the worker sees its own name for it", sample="m", names_model=True
    ),
    Field(
        "messages",
        "mapped",
        note="a last message of the assistant is gone on with, which only vLLM can do: else 400",
        sample=[{"role": "user", "content": "hi"}],
    ),
    Field(
        "system", "renamed", to="messages", note="one system message, its blocks joined by an empty line", sample="s"
    ),
    Field("tools", "mapped", note="those without a schema and deferred ones are left out and named", sample=_TOOLS),
)
_CHOICE = Field(
    "tool_choice",
    "mapped",
    note="auto where it names a tool that was left out",
    sample={"type": "any"},
    beside={"tools": _TOOLS},
)
_THINKING = Field(
    "thinking",
    "renamed",
    to="reasoning_effort",
    note=f"enabled: {_LEVEL}, by its budget; disabled: none; adaptive says nothing. Left out for a model that cannot",
    sample={"type": "enabled", "budget_tokens": 8192},
)
_EFFORT = Field(
    "output_config.effort",
    "renamed",
    to="reasoning_effort",
    note=f"{_LEVEL}; goes before thinking. Left out for a model that cannot",
    sample="low",
)
_FORMAT = Field(
    "output_config.format",
    "renamed",
    to="response_format",
    sample={"type": "json_schema", "schema": {"type": "object"}},
)
_IGNORED = (
    Field("cache_control", "ignored", note=_NO_PLACE, sample={"type": "ephemeral"}),
    Field("context_management", "ignored", note=_NO_PLACE, sample={"edits": []}),
    Field("mcp_servers", "ignored", note=_NO_PLACE, sample=[]),
    Field("betas", "ignored", note=_NO_PLACE, sample=["b"]),
)

FIELDS: Mapping[str, Sequence[Field]] = {
    "chat": (
        *_PROMPT,
        Field(
            "max_tokens",
            "mapped",
            note="required; what exceeds the context is cut off, and named; 0 is 1",
            sample=24,
        ),
        Field("stream", "mapped", sample=True),
        Field("stop_sequences", "renamed", to="stop", sample=["END"]),
        Field("temperature", "mapped", sample=0.5),
        Field("top_p", "mapped", sample=0.9),
        Field("top_k", "mapped", note="left out and named for workers without it", sample=5),
        _CHOICE,
        _THINKING,
        _EFFORT,
        _FORMAT,
        Field("metadata.user_id", "renamed", to="user", note="its SHA-256, 32 digits of it", sample="user-1"),
        *_IGNORED,
        Field("container", "ignored", note=_NO_PLACE, sample="c"),
        Field("diagnostics", "ignored", note=_NO_PLACE, sample={}),
        Field("inference_geo", "ignored", note=_NO_PLACE, sample="us"),
        Field("safeguards", "ignored", note=_NO_PLACE, sample=[]),
        Field("service_tier", "ignored", note=_NO_PLACE, sample="auto"),
        Field("speed", "ignored", note=_NO_PLACE, sample="fast"),
        Field("user_profile_id", "ignored", note=_NO_PLACE, sample="u"),
    ),
    "count": (
        *_PROMPT,
        Field("tool_choice", "ignored", note="says nothing of a prompt's length", sample={"type": "auto"}),
        Field("thinking", "ignored", note="says nothing of a prompt's length", sample={"type": "adaptive"}),
        Field("output_config", "ignored", note="says nothing of a prompt's length", sample={"effort": "low"}),
        *_IGNORED,
        Field("speed", "ignored", note=_NO_PLACE, sample="fast"),
    ),
}
KNOWN = {operation: frozenset(field.name.partition(".")[0] for field in found) for operation, found in FIELDS.items()}
"""The names of the top-level members that each operation's table has."""
IGNORED = {
    operation: tuple(field.name for field in found if field.handling == "ignored")
    for operation, found in FIELDS.items()
}
"""The names of the fields that each operation accepts and names as dropped."""

_TALK = [{"role": "user", "content": WORDS}]
EXAMPLES: Examples = {
    "chat": (Example("chat", {"max_tokens": 16, "messages": _TALK}, ends=b'data: {"type":"message_stop"}'),),
    "count": (Example("count", {"messages": _TALK}, streams="never"),),
}
"""The smallest valid requests."""
