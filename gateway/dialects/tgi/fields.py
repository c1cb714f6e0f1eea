"""The handling of every field that a client of TGI can send. The names are those of TGI's OpenAPI file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.fields import WORDS, Example, Examples, Field, Tables, model_row
from gateway.wire.openai.requests.fields import FIELDS as OPENAI_FIELDS

# Parameters without `do_sample` are greedy, no parameters at all are not: each is measured beside others.
_BESIDE: Mapping[str, Any] = {"parameters": {}}


def _parameter(name: str, handling: Any, **more: Any) -> Field:
    return Field(f"parameters.{name}", handling, **{"beside": _BESIDE, **more})


_SAMPLES = "temperature 1 unless it is given"

FIELDS: Tables = {
    "complete": (
        Field("inputs", "renamed", to="prompt", note="not empty", sample="hi"),
        model_row("not TGI's: names the pool, else the default"),
        Field("stream", "renamed", to="stream, logprobs, return_token_ids", note="of `/` alone", sample=True),
        Field("parameters", "renamed", to="temperature", note="its members are the next rows", sample={}),
        _parameter("max_new_tokens", "renamed", to="max_tokens", note="null: what room there is", sample=16),
        _parameter("do_sample", "renamed", to="temperature", note=f"false: 0; true: {_SAMPLES}", sample=True),
        _parameter("temperature", "renamed", to="temperature", note="above 0; samples", sample=0.5),
        _parameter("top_k", "renamed", to="top_k, temperature", note=f"samples: {_SAMPLES}", sample=5),
        _parameter("top_p", "renamed", to="top_p, temperature", note=f"samples: {_SAMPLES}", sample=0.9),
        _parameter("typical_p", "ignored", note="samples; no engine behind us has it", sample=0.9),
        _parameter("repetition_penalty", "renamed", to="repetition_penalty", sample=1.1),
        _parameter("frequency_penalty", "renamed", to="frequency_penalty", sample=0.5),
        _parameter("seed", "renamed", to="seed", note="its lower 63 bits", sample=7),
        _parameter("stop", "renamed", to="stop", note="at most 4; the match ends the text", sample=["E"]),
        _parameter("truncate", "renamed", to="truncate_prompt_tokens", note="vLLM alone", sample=9),
        _parameter("return_full_text", "emulated", note="the inputs before the text", sample=True),
        _parameter("best_of", "refused", note="unless it samples without a seed: then the likelier of 2", sample=2),
        _parameter("details", "renamed", to="logprobs, return_token_ids", sample=True),
        _parameter("decoder_input_details", "refused", note="no worker returns them in this form", sample=True),
        _parameter("top_n_tokens", "refused", note="no worker returns the ids of other tokens", sample=2),
        _parameter("grammar", "renamed", to="response_format or structured_outputs",
                   sample={"type": "regex", "value": "a+"}),
        _parameter("watermark", "ignored", note="no engine behind us has it", sample=True),
        _parameter("adapter_id", "consumed", note="names the model", sample="m"),
    ),
    "chat": OPENAI_FIELDS["chat"],
    "tokenize": (
        Field("inputs", "renamed", to="prompt", note="not empty", sample="hi"),
        model_row("not TGI's: names the pool, else the default"),
        Field("parameters", "ignored", note="no text is made; its `adapter_id` names the model", sample={}),
    ),
}  # fmt: skip
PARAMETERS = frozenset(
    field.name.removeprefix("parameters.") for field in FIELDS["complete"] if field.name.startswith("parameters.")
)
"""The members of `parameters` that the table has."""

_DONE = b"data: [DONE]"
EXAMPLES: Examples = {
    "chat": (Example("chat", {"messages": [{"role": "user", "content": WORDS}]}, ends=_DONE),),
    "complete": (
        Example("root", {"inputs": WORDS}, ends=b'"input_length":'),
        Example("generate", {"inputs": WORDS}, streams="never"),
        Example("generate_stream", {"inputs": WORDS}, streams="always", ends=b'"input_length":'),
    ),
    "tokenize": (Example("tokenize", {"inputs": WORDS}, streams="never"),),
}
