"""The field table: the handling of each field of a request to the Ollama-style API."""

from __future__ import annotations

from gateway.core.fields import WORDS, Example, Examples, Field, Tables, model_row, renamed
from gateway.dialects._shared.ollama import option_rows
from gateway.wire.openai.requests.fields import TOOLS, mapped

_OTHERS = "its members are the next rows; others are dropped"

FIELDS: Tables = {
    "chat": (
        model_row("names the pool"),
        *mapped("messages", note="also Ollama's images, thinking and tool_name"),
        *mapped("stream", note="false when absent; ignored on /chat/sse, which always streams"),
        *mapped("temperature", "max_tokens"),
        renamed("max_completion_tokens", "max_tokens", 16, "400 beside max_tokens"),
        *mapped("top_p", "top_k", "min_p", "seed", "stop", "frequency_penalty", "presence_penalty"),
        *mapped("repetition_penalty", "logit_bias", "user"),
        Field("n", "refused", 2, "unless it is 1: a reply here has one message"),
        *TOOLS,
        *mapped("response_format", "reasoning_effort"),
        renamed("format", "response_format", "json", '"json" or a JSON schema'),
        renamed("think", "reasoning_effort", "low", "a level; true and false are dropped"),
        Field("options", "consumed", {}, _OTHERS, probe={"temperature": 0.5}),
        *option_rows({"num_predict": "-1 and -2: no limit"}),
    ),
}
_LEAST = {"messages": [{"role": "user", "content": WORDS}]}
EXAMPLES: Examples = {
    "chat": (
        Example("chat", _LEAST, ends=b'"done":true,"index"'),
        Example("sse", _LEAST, streams="always", ends=b"data: [END]", alike=True),
    )
}
