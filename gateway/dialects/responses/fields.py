"""The field table: the handling of each field of a request to the Responses API. The names are those of OpenAI's
reference and of the recorded clients; see `gateway.dialects.responses`."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.fields import NO_TARGET, WORDS, Example, Examples, Field, Tables, model_row, renamed, rows

_TOOLS = [{"type": "function", "name": "f"}]
_WITH_TOOLS = {"tools": _TOOLS}
_LEADING = "one system message, with the system and developer messages that the input begins with"
_LENGTH = "says nothing of a prompt's length"

_PROMPT = (
    model_row("names the pool; the worker sees its own name for it"),
    renamed("input", "messages", "hi", "text, or items of every kind"),
    renamed("instructions", "messages", "s", _LEADING),
    Field("tools", "mapped", _TOOLS, "a server's are left out and named; web_search too, unless it is run here"),
)
_REFUSED = (
    Field("previous_response_id", "refused", "resp_1", "unless the gateway stores responses"),
    Field("conversation", "refused", "conv_1", "conversations are not kept here"),
    Field("prompt", "refused", {"id": "pmpt_1"}, "prompts are not kept here"),
)
REFUSED: Mapping[str, str] = {
    "previous_response_id": "nothing is stored here, send the whole conversation as 'input'",
    "conversation": "conversations are not kept here, send all of it as 'input'",
    "prompt": "prompts are not kept here, send their text as 'instructions' or 'input'",
}
"""Why a member is refused, for its client. The first is obeyed where responses are stored."""
_CHOICE = "auto where it names a tool that was left out; allowed_tools shortens the list"
_STORE = "the reply says whether it is stored; true is named where nothing is"
_STREAM = "usage is always sent, and nothing is obfuscated"
_EFFORT = "xhigh and max are high. Left out and named for a model that does not reason"
_INCLUDE = "logprobs, and reasoning.encrypted_content; what else it names is dropped and named"
FIELDS: Tables = {
    "chat": (
        *_PROMPT,
        Field("stream", "mapped", True),
        Field("stream_options", "ignored", {"include_obfuscation": False}, _STREAM),
        renamed("max_output_tokens", "max_tokens", 24, "what exceeds the context is cut off, and named"),
        *rows("mapped", "", temperature=0.5, top_p=0.9, frequency_penalty=0.5, presence_penalty=0.5),
        renamed("top_logprobs", "logprobs, top_logprobs", 2),
        Field("user", "mapped", "user-1"),
        Field("metadata", "emulated", {"k": "v"}, "repeated in the reply"),
        Field("tool_choice", "mapped", "required", _CHOICE, beside=_WITH_TOOLS),
        Field("parallel_tool_calls", "mapped", False, "left out and named for workers without it", beside=_WITH_TOOLS),
        renamed("text.format", "response_format", {"type": "json_object"}),
        Field("text.verbosity", "ignored", "low", NO_TARGET),
        renamed("reasoning.effort", "reasoning_effort", "low", _EFFORT),
        Field("reasoning.summary", "emulated", "auto", "reasoning then comes as a summary"),
        Field("reasoning.generate_summary", "emulated", "auto", "its older name"),
        Field("reasoning.context", "ignored", "all_turns", NO_TARGET),
        Field("reasoning.mode", "ignored", "auto", NO_TARGET),
        Field("include", "emulated", ["message.output_text.logprobs"], _INCLUDE, to="logprobs"),
        Field("store", "consumed", False, _STORE, probe=True),
        Field("background", "refused", True, "unless it is false"),
        *_REFUSED,
        *rows("ignored", NO_TARGET, truncation="auto", service_tier="auto", safety_identifier="s", max_tool_calls=5),
        *rows("ignored", NO_TARGET, moderation={}, context_management=[]),
        Field("prompt_cache_key", "consumed", "k", "chooses the place among the workers", probe="l"),
        *rows("ignored", NO_TARGET, prompt_cache_options={}, prompt_cache_retention="24h", client_metadata={"k": "v"}),
        *rows("ignored", NO_TARGET, access_programs=[], image={}),
        Field("generate", "emulated", False, "by web socket: workers only read the prompt", "max_tokens", "message"),
        Field(
            "stream_id", "consumed", "a", "by web socket: the lane, which its events name", where="message", probe=""
        ),
    ),
    "count": (
        *_PROMPT,
        *_REFUSED,
        *rows("ignored", _LENGTH, tool_choice="auto", parallel_tool_calls=False, reasoning={"effort": "low"}),
        *rows("ignored", _LENGTH, text={"verbosity": "low"}, truncation="auto"),
    ),
}

_LEAST = {"input": WORDS}
EXAMPLES: Examples = {
    "chat": (Example("chat", _LEAST, ends=b'"total_tokens":'), Example("compact", _LEAST, streams="never")),
    "count": (Example("count", _LEAST, streams="never"),),
}
