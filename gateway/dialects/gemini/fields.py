"""The field tables: the handling of each field of a request to Google's API. The names are those of its reference and
of the recorded clients; see `gateway.dialects.gemini`."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.fields import NO_TARGET, WORDS, Example, Examples, Field, Tables, renamed, rows
from gateway.wire.openai.requests.fields import SAMPLES

_TOOLS = [{"functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT"}}]}]
_SCHEMA = {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}
_JSON = {"responseMimeType": "application/json"}
_TEXTS = [{"role": "user", "parts": [{"text": "hi"}]}]
_INSTANCES = [{"content": "a"}]
_INSTEAD = {"content": None}
_SIZE = {"outputDimensionality": 8}
_TEXT = {"parts": [{"text": "a"}]}
_MODE = {"functionCallingConfig": {"mode": "ANY"}}
_SYSTEM = {"parts": [{"text": "s"}]}

CONFIG: Mapping[str, str] = {
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "maxOutputTokens": "max_tokens",
    "stopSequences": "stop",
    "candidateCount": "n",
    "seed": "seed",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
}
"""Member of `generationConfig` -> its name on vLLM's wire."""
_NOTES = {
    "topK": "left out and named for workers without it",
    "maxOutputTokens": "more than the context is cut off, and named; 0 is not a bound",
}
UNREAD = (
    *("audioTimestamp", "enableEnhancedCivicAnswers", "enableAffectiveDialog", "imageConfig", "mediaResolution"),
    *("modelConfig", "modelSelectionConfig", "routingConfig", "speechConfig", "translationConfig"),
)
"""Members of `generationConfig` that are left out and named."""
_THINKING = (
    "a budget or level: low, medium or high; 0 is none. Left out for a model that cannot. includeThoughts shows it"
)
_ENUM = "application/json; text/x.enum makes the values of the schema a choice"
_CONFIG = (
    Field("generationConfig", "consumed", {}, "its members are the next rows", probe={"temperature": 0.5}),
    *(renamed(f"generationConfig.{own}", to, SAMPLES[to], _NOTES.get(own, "")) for own, to in CONFIG.items()),
    renamed("generationConfig.responseMimeType", "response_format", "application/json", _ENUM),
    renamed("generationConfig.responseSchema", "response_format", _SCHEMA, "Google's schema, made JSON Schema"),
    renamed("generationConfig.responseJsonSchema", "response_format", {"type": "object"}, "goes on as it is"),
    renamed("generationConfig.responseLogprobs", "logprobs", True),
    Field("generationConfig.logprobs", "ignored", 2, "the number of alternatives, beside responseLogprobs"),
    renamed("generationConfig.thinkingConfig", "reasoning_effort", {"thinkingBudget": 8192}, _THINKING),
    Field("generationConfig.responseModalities", "refused", ["TEXT", "AUDIO"], "unless it is TEXT alone"),
    *(Field(f"generationConfig.{name}", "ignored", True, NO_TARGET) for name in UNREAD),
)
_MODEL = Field("model", "consumed", "m", "names the pool if the path names none that is served", names_model=True)
_FUNCTIONS = "functions; a tool of the web is left out and named, another of Google's own servers is a 400"
_CALLING = "AUTO, ANY, NONE, VALIDATED; one allowed name is that tool, several leave the others out"
_PREDICT = "of predict: outputDimensionality, and autoTruncate, which is true when absent"
_GOOGLE = "only Google's own service reads it"
_PROMPT = (
    _MODEL,
    renamed(
        "contents", "messages", _TEXTS, "a last turn of the model is gone on with, which only vLLM can do: else 400"
    ),
    renamed("systemInstruction", "messages", _SYSTEM, "one system message"),
    Field("tools", "mapped", _TOOLS, _FUNCTIONS),
)
_IGNORED = rows("ignored", _GOOGLE, safetySettings=[], labels={"k": "v"}, serviceTier="flex", store=True)
_NOT_STORED = "nothing is kept here; engines cache prefixes themselves"
_CACHED = Field("cachedContent", "refused", "cachedContents/c", _NOT_STORED)
_LENGTH = "says nothing of a prompt's length"

FIELDS: Tables = {
    "chat": (
        *_PROMPT,
        renamed("toolConfig", "tool_choice", _MODE, _CALLING, {"tools": _TOOLS}),
        *_CONFIG,
        *_IGNORED,
        Field("modelArmorConfig", "ignored", {}, _GOOGLE),
        _CACHED,
    ),
    "count": (
        *_PROMPT,
        renamed("generateContentRequest", "messages", {"contents": _TEXTS}, "a whole request", {"contents": None}),
        *rows("ignored", _LENGTH, generationConfig={"temperature": 0.5}, toolConfig={}),
        _CACHED,
    ),
    "embed": (
        renamed("content", "input", _TEXT, "its texts, joined"),
        renamed("requests", "input", [{"content": _TEXT}], "of batchEmbedContents", _INSTEAD),
        renamed("instances", "input, truncate_prompt_tokens", _INSTANCES, "of predict", _INSTEAD),
        renamed(
            "parameters", "dimensions", {"outputDimensionality": 8}, _PREDICT, {**_INSTEAD, "instances": _INSTANCES}
        ),
        renamed("outputDimensionality", "dimensions", 8),
        Field("autoTruncate", "consumed", False, "truncate_prompt_tokens for vLLM", probe=True),
        _MODEL,
        *rows("ignored", "no engine behind us has it", taskType="RETRIEVAL_QUERY", title="t"),
    ),
}

_HELLO = {"contents": [{"role": "user", "parts": [{"text": WORDS}]}]}
_END = b'"responseId":'
EXAMPLES: Examples = {
    "chat": (
        Example("generate", _HELLO, streams="never"),
        Example("stream", _HELLO, b"alt=sse", streams="always", ends=b'"finishReason":'),
    ),
    "count": (Example("count", _HELLO, streams="never"),),
    "embed": (
        Example("embed", {"content": {"parts": [{"text": WORDS}]}}, streams="never"),
        Example("embed_many", {"requests": [{"content": {"parts": [{"text": WORDS}]}}]}, streams="never"),
        Example("predict", {"instances": [{"content": WORDS}]}, streams="never"),
    ),
}
