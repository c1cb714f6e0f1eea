"""The field table: the handling of each field of a request to SageMaker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.core.fields import WORDS, Example, Examples, Field, Tables, model_row
from gateway.wire.openai.requests.fields import LOGPROBS, TOOLS, mapped, stream_options

MODEL = "/opt/ml/model"
"""The model's folder in a container. Every reply has it as the model's name."""
MAX_PROMPTS = 1024
"""The most prompts in one request."""

_COMMON = (
    model_row(f"names the pool, unless the path or a header does; `{MODEL}` is the default one"),
    *mapped("stream", note="implied by `invocations-response-stream`"),
    stream_options("the usage chunk comes only if it is asked for here"),
    *mapped("max_tokens", "temperature", "top_p"),
    *mapped("top_k", "min_p", note="vLLM"),
    *mapped("seed", "frequency_penalty", "presence_penalty"),
    *mapped("repetition_penalty", note="vLLM"),
    *mapped("logit_bias", "stop"),
    *mapped("stop_token_ids", "ignore_eos", "min_tokens", note="vLLM"),
    Field("skip_special_tokens", "mapped", note="vLLM", sample=True),
    Field("prompt_logprobs", "mapped", note="vLLM; answered in plain replies only", sample=1),
    Field("kv_transfer_params", "mapped", note="vLLM; answered in plain replies only", sample={"k": "v"}),
    Field("structured_outputs", "mapped", note="vLLM", sample={"regex": "a+"}),
    *mapped("response_format", "n", "user"),
)
_DEPRECATED = "deprecated by OpenAI, unknown to the engines"

FIELDS: Tables = {
    "chat": (
        *mapped("messages", note="its presence means chat"),
        *_COMMON,
        *mapped("max_completion_tokens", note="goes before max_tokens"),
        *TOOLS,
        *mapped("reasoning_effort"),
        Field("include_reasoning", "mapped", note="vLLM", sample=True),
        Field("chat_template_kwargs", "mapped", note="vLLM", sample={"enable_thinking": False}),
        *LOGPROBS,
        Field("functions", "refused", note=f"{_DEPRECATED}: use tools", sample=[{"name": "f"}]),
        Field("function_call", "refused", note=f"{_DEPRECATED}: use tool_choice", sample="auto"),
    ),
    "complete": (
        *mapped("prompt", note=f"its presence means text; at most {MAX_PROMPTS} in an array"),
        *_COMMON,
        Field("suffix", "mapped", note="vLLM answers 400 to it", sample="end"),
        Field("echo", "mapped", sample=True),
        Field("best_of", "refused", note="unless it equals n", sample=4),
        Field("logprobs", "mapped", sample=1),
    ),
}


def _examples(least: Mapping[str, object]) -> Sequence[Example]:
    return (
        Example("endpoint", least, ends=b"data: [DONE]"),
        Example("invocations", least, ends=b"data: [DONE]"),
        Example("endpoint_stream", least, streams="always", ends=b"data: [DONE]"),
    )


EXAMPLES: Examples = {
    "chat": _examples({"messages": [{"role": "user", "content": WORDS}]}),
    "complete": _examples({"prompt": WORDS}),
}
