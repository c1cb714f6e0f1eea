"""The field table: the handling of each field of a request to the Ollama-style API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.core.fields import WORDS, Example, Examples, Field, body_members
from gateway.dialects._shared.rows import model_row, renamed, rows
from gateway.wire.openai.requests.fields import TOOLS, mapped

FIELDS: Mapping[str, Sequence[Field]] = {
    "chat": (
        model_row("names the pool"),
        *rows("mapped", "also Ollama's images, thinking and tool_name", messages=[{"role": "user", "content": "hi"}]),
        *mapped("stream", note="false when absent; ignored on /chat/sse, which always streams"),
        *mapped("temperature", "max_tokens"),
        Field("max_completion_tokens", "renamed", to="max_tokens", note="400 beside max_tokens", sample=16),
        *mapped(
            "top_p",
            "top_k",
            "min_p",
            "seed",
            "stop",
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
            "logit_bias",
            "user",
        ),
        Field("n", "refused", note="unless it is 1: a reply here has one message", sample=2),
        *TOOLS,
        *mapped("response_format", "reasoning_effort"),
        Field("format", "renamed", to="response_format", note='"json" or a JSON schema', sample="json"),
        Field("think", "renamed", to="reasoning_effort", note="a level; true and false are dropped", sample="low"),
        Field(
            "options",
            "consumed",
            note="its members are the next rows; others are dropped",
            sample={},
            probe={"temperature": 0.5},
        ),
        renamed("options.temperature", "temperature", 0.7),
        renamed("options.top_p", "top_p", 0.9),
        renamed("options.top_k", "top_k", 40),
        renamed("options.min_p", "min_p", 0.1),
        renamed("options.seed", "seed", 7),
        renamed("options.stop", "stop", ["END"]),
        Field("options.num_predict", "renamed", to="max_tokens", note="-1 and -2: no limit", sample=16),
        renamed("options.frequency_penalty", "frequency_penalty", 0.5),
        renamed("options.presence_penalty", "presence_penalty", 0.5),
        renamed("options.repeat_penalty", "repetition_penalty", 1.1),
    ),
}
KNOWN = body_members(FIELDS)["chat"]
"""The names of the top-level members of a body."""
OPTIONS = {
    field.name.removeprefix("options."): field.to
    for field in FIELDS["chat"]
    if field.name.startswith("options.") and field.to is not None
}
"""Members of `options` -> the top-level members with the same meaning."""

_LEAST = {"messages": [{"role": "user", "content": WORDS}]}
EXAMPLES: Examples = {
    "chat": (
        Example("chat", _LEAST, ends=b'"done":true,"index"'),
        Example("sse", _LEAST, streams="always", ends=b"data: [END]", alike=True),
    )
}
"""The smallest valid requests."""
