"""The field table: the handling of each field of a request to SageMaker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.core.fields import WORDS, Example, Examples, Field, body_members

MODEL = "/opt/ml/model"
"""The model's folder in a container. Every reply has it as the model's name."""
MAX_PROMPTS = 1024
"""The most prompts in one request."""

_TOOLS = [{"type": "function", "function": {"name": "f"}}]
_COMMON = (
    Field(
        "model",
        "consumed",
        note=f"names the pool, unless the path or a header does; `{MODEL}` is the default one",
        sample="m",
        names_model=True,
    ),
    Field("stream", "mapped", note="implied by `invocations-response-stream`", sample=True),
    Field(
        "stream_options",
        "consumed",
        note="the usage chunk comes only if it is asked for here",
        sample={"include_usage": True},
        beside={"stream": True},
    ),
    Field("max_tokens", "mapped", sample=16),
    Field("temperature", "mapped", sample=0.5),
    Field("top_p", "mapped", sample=0.9),
    Field("top_k", "mapped", note="vLLM", sample=5),
    Field("min_p", "mapped", note="vLLM", sample=0.1),
    Field("seed", "mapped", sample=7),
    Field("frequency_penalty", "mapped", sample=0.5),
    Field("presence_penalty", "mapped", sample=0.5),
    Field("repetition_penalty", "mapped", note="vLLM", sample=1.1),
    Field("logit_bias", "mapped", sample={"42": -1.0}),
    Field("stop", "mapped", sample=["END"]),
    Field("stop_token_ids", "mapped", note="vLLM", sample=[2]),
    Field("ignore_eos", "mapped", note="vLLM", sample=False),
    Field("min_tokens", "mapped", note="vLLM", sample=1),
    Field("skip_special_tokens", "mapped", note="vLLM", sample=True),
    Field("prompt_logprobs", "mapped", note="vLLM; answered in plain replies only", sample=1),
    Field("kv_transfer_params", "mapped", note="vLLM; answered in plain replies only", sample={"k": "v"}),
    Field("structured_outputs", "mapped", note="vLLM", sample={"regex": "a+"}),
    Field("response_format", "mapped", sample={"type": "json_object"}),
    Field("n", "mapped", sample=2),
    Field("user", "mapped", sample="user-1"),
)
_DEPRECATED = "deprecated by OpenAI, unknown to the engines"

FIELDS: Mapping[str, Sequence[Field]] = {
    "chat": (
        Field("messages", "mapped", note="its presence means chat", sample=[{"role": "user", "content": "hi"}]),
        *_COMMON,
        Field("max_completion_tokens", "mapped", note="goes before max_tokens", sample=16),
        Field("tools", "mapped", note="an empty array is dropped", sample=_TOOLS),
        Field(
            "tool_choice",
            "mapped",
            note="without tools named as dropped, 400 if it asks for one",
            sample="auto",
            beside={"tools": _TOOLS},
        ),
        Field(
            "parallel_tool_calls",
            "mapped",
            note="named as dropped without tools",
            sample=False,
            beside={"tools": _TOOLS},
        ),
        Field("reasoning_effort", "mapped", sample="low"),
        Field("include_reasoning", "mapped", note="vLLM", sample=True),
        Field("chat_template_kwargs", "mapped", note="vLLM", sample={"enable_thinking": False}),
        Field("logprobs", "mapped", sample=True),
        Field("top_logprobs", "mapped", note="400 without logprobs", sample=2, beside={"logprobs": True}),
        Field("functions", "refused", note=f"{_DEPRECATED}: use tools", sample=[{"name": "f"}]),
        Field("function_call", "refused", note=f"{_DEPRECATED}: use tool_choice", sample="auto"),
    ),
    "complete": (
        Field("prompt", "mapped", note=f"its presence means text; at most {MAX_PROMPTS} in an array", sample="hi"),
        *_COMMON,
        Field("suffix", "mapped", note="vLLM answers 400 to it", sample="end"),
        Field("echo", "mapped", sample=True),
        Field("best_of", "refused", note="unless it equals n", sample=4),
        Field("logprobs", "mapped", sample=1),
    ),
}
KNOWN = body_members(FIELDS)
"""The names of the members of a body."""


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
"""The smallest valid requests."""
