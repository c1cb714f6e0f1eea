"""The field table: the handling of each field of a request to the Responses API. The names are those of OpenAI's
reference and of the recorded clients; see `gateway.dialects.responses`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.core.fields import WORDS, Example, Examples, Field
from gateway.dialects._shared.rows import NO_PLACE, ignored_members, model_row, outer_members, renamed, rows

_TOOLS = [{"type": "function", "name": "f"}]
_NOT_STORED = "nothing is stored here"


def _ignored(name: str, sample: Any, note: str = NO_PLACE) -> Field:
    return Field(name, "ignored", note=note, sample=sample)


_PROMPT = (
    model_row("names the pool; the worker sees its own name for it"),
    Field("input", "renamed", to="messages", note="text, or items of every kind", sample="hi"),
    renamed(
        "instructions",
        "messages",
        "s",
        "one system message, with the system and developer messages that the input begins with",
    ),
    Field("tools", "mapped", note="those that a server would execute are left out and named", sample=_TOOLS),
)
_REFUSED = (
    Field("previous_response_id", "refused", note="unless the gateway stores responses", sample="resp_1"),
    Field("conversation", "refused", note=_NOT_STORED, sample="conv_1"),
    Field("prompt", "refused", note=_NOT_STORED, sample={"id": "pmpt_1"}),
)
FIELDS: Mapping[str, Sequence[Field]] = {
    "chat": (
        *_PROMPT,
        Field("stream", "mapped", sample=True),
        _ignored("stream_options", {"include_obfuscation": False}, "usage is always told, and nothing is obfuscated"),
        renamed("max_output_tokens", "max_tokens", 24, "what exceeds the context is cut off, and named"),
        *rows("mapped", "", temperature=0.5, top_p=0.9),
        Field("top_logprobs", "renamed", to="logprobs, top_logprobs", sample=2),
        Field("user", "mapped", sample="user-1"),
        Field("metadata", "emulated", note="told again in the reply", sample={"k": "v"}),
        Field(
            "tool_choice",
            "mapped",
            note="auto where it names a tool that was left out; allowed_tools shortens the list",
            sample="required",
            beside={"tools": _TOOLS},
        ),
        Field(
            "parallel_tool_calls",
            "mapped",
            note="left out and named for workers without it",
            sample=False,
            beside={"tools": _TOOLS},
        ),
        Field("text.format", "renamed", to="response_format", sample={"type": "json_object"}),
        _ignored("text.verbosity", "low"),
        renamed(
            "reasoning.effort",
            "reasoning_effort",
            "low",
            "xhigh and max are high. Left out and named for a model that does not reason",
        ),
        Field("reasoning.summary", "emulated", note="reasoning then comes as a summary", sample="auto"),
        Field("reasoning.generate_summary", "emulated", note="its older name", sample="auto"),
        _ignored("reasoning.context", "all_turns"),
        _ignored("reasoning.mode", "auto"),
        Field(
            "include",
            "emulated",
            to="logprobs",
            note="logprobs, and reasoning.encrypted_content; what else it names is dropped and named",
            sample=["message.output_text.logprobs"],
        ),
        Field(
            "store",
            "consumed",
            note="the reply says whether it is stored; true is named where nothing is",
            sample=False,
            probe=True,
        ),
        Field("background", "refused", note="unless it is false", sample=True),
        *_REFUSED,
        *rows("ignored", NO_PLACE, truncation="auto", service_tier="auto", safety_identifier="s", max_tool_calls=5),
        *rows("ignored", NO_PLACE, moderation={}, context_management=[]),
        Field("prompt_cache_key", "consumed", note="chooses the place among the workers", sample="k", probe="l"),
        *rows("ignored", NO_PLACE, prompt_cache_options={}, prompt_cache_retention="24h", client_metadata={"k": "v"}),
        *rows("ignored", NO_PLACE, access_programs=[], image={}),
    ),
    "count": (
        *_PROMPT,
        *_REFUSED,
        *rows(
            "ignored",
            "says nothing of a prompt's length",
            tool_choice="auto",
            parallel_tool_calls=False,
            reasoning={"effort": "low"},
            text={"verbosity": "low"},
            truncation="auto",
        ),
    ),
}
KNOWN = outer_members(FIELDS)
IGNORED = ignored_members(FIELDS)
REFUSED = tuple(field.name for field in _REFUSED)

_LEAST = {"input": WORDS}
EXAMPLES: Examples = {
    "chat": (Example("chat", _LEAST, ends=b'"total_tokens":'),),
    "count": (Example("count", _LEAST, streams="never"),),
}
"""The smallest valid requests."""
