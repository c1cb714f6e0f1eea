"""The field table: the handling of each field of a request to Ollama's API. The names are those of Ollama's reference
and of the recorded clients; see `gateway.dialects.ollama_native`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.core.fields import WORDS, Example, Examples, Field, body_members
from gateway.dialects._shared.rows import ignored_members, model_row, renamed, rows

_TOOLS = [{"type": "function", "function": {"name": "f"}}]
_RUNNER = "of the server that runs a model: here its workers decide"
_RUNNERS = (
    *("num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "use_mlock", "low_vram", "numa", "num_thread"),
    *("vocab_only", "logits_all", "num_keep", "draft_num_predict"),
)
_SAMPLERS = (
    *("typical_p", "mirostat", "mirostat_tau", "mirostat_eta", "tfs_z", "penalize_newline"),
    "repeat_last_n",
)
_OTHERS = "left out and named for workers without it"

_MODEL = model_row("names the pool; `m` and `m:latest` are one model")
_KEEP = Field("keep_alive", "ignored", note="workers keep their model", sample="5m")
_OPTIONS = (
    Field("options", "consumed", note="its members are the next rows", sample={}, probe={"temperature": 0.5}),
    renamed("options.num_predict", "max_tokens", 16, "0 and less: no limit"),
    renamed("options.temperature", "temperature", 0.7),
    renamed("options.top_p", "top_p", 0.9),
    renamed("options.top_k", "top_k", 40, _OTHERS),
    renamed("options.min_p", "min_p", 0.1, _OTHERS),
    renamed("options.seed", "seed", 7, "less than 0 is none"),
    renamed("options.stop", "stop", ["END"], "a list, or one text"),
    renamed(
        "options.repeat_penalty",
        "repetition_penalty",
        1.1,
        f"over the whole text, whatever repeat_last_n says; {_OTHERS}",
    ),
    renamed("options.presence_penalty", "presence_penalty", 0.5, _OTHERS),
    renamed("options.frequency_penalty", "frequency_penalty", 0.5, _OTHERS),
    *(Field(f"options.{name}", "ignored", note=_RUNNER, sample=1) for name in _RUNNERS),
    *(Field(f"options.{name}", "ignored", note="no engine behind us has it", sample=1) for name in _SAMPLERS),
)
_COMMON = (
    _MODEL,
    Field("stream", "mapped", note="true when absent", sample=False),
    Field("format", "renamed", to="response_format", note='"json" or a JSON schema', sample="json"),
    renamed(
        "think",
        "reasoning_effort",
        "low",
        "false: none, left out for a model that cannot think; true: medium; max: high",
    ),
    *_OPTIONS,
    _KEEP,
    Field("logprobs", "mapped", sample=True),
    Field("top_logprobs", "mapped", note="named as dropped without logprobs", sample=2, beside={"logprobs": True}),
    Field("truncate", "ignored", note="a prompt that does not fit is a 400", sample=True),
    Field("shift", "ignored", note="a prompt that does not fit is a 400", sample=True),
    Field("_debug_render_only", "refused", note="the template is the worker's", sample=True),
)

FIELDS: Mapping[str, Sequence[Field]] = {
    "chat": (
        *rows(
            "mapped",
            "also images, thinking, and results of tools that name no call",
            messages=[{"role": "user", "content": "hi"}],
        ),
        Field("tools", "mapped", note="an empty array is dropped", sample=_TOOLS),
        *_COMMON,
    ),
    "complete": (
        Field("prompt", "renamed", to="messages", note="one message of the user; as it is with `raw`", sample="hi"),
        Field("system", "renamed", to="messages", sample="be brief"),
        Field("images", "renamed", to="messages", note="base64, before the text", sample=["iVBORw0KGgo="]),
        Field(
            "raw",
            "emulated",
            to="messages, path, prompt, max_tokens",
            note="a text completion, no template",
            sample=True,
        ),
        Field(
            "suffix",
            "emulated",
            to="messages, path, prompt, max_tokens, suffix",
            note="a text completion; vLLM answers 400 to it",
            sample="end",
        ),
        *_COMMON,
        Field("template", "refused", note="unless it is empty: the template is the worker's", sample="{{ .Prompt }}"),
        Field("context", "refused", note="unless it is empty: no worker has the former turn's tokens", sample=[1]),
    ),
    "embed": (
        Field("input", "mapped", note="a text or texts", sample="hi"),
        Field("prompt", "renamed", to="input", note="of /api/embeddings", sample="hi", beside={"input": None}),
        _MODEL,
        Field(
            "truncate",
            "consumed",
            note="true when absent: truncate_prompt_tokens for vLLM; others refuse an input that is too long",
            sample=True,
            probe=False,
        ),
        Field("dimensions", "mapped", sample=8),
        Field("options", "ignored", note=_RUNNER, sample={"num_ctx": 5}),
        _KEEP,
    ),
}
KNOWN = body_members(FIELDS)
IGNORED = ignored_members(FIELDS)

OPTIONS = frozenset(
    field.name.removeprefix("options.") for field in FIELDS["chat"] if field.name.startswith("options.")
)
"""The names of the members of `options` that the table has."""

_TALK = [{"role": "user", "content": WORDS}]
_LAST = b'"eval_duration":'
EXAMPLES: Examples = {
    "chat": (Example("chat", {"messages": _TALK}, ends=_LAST),),
    "complete": (Example("generate", {"prompt": WORDS}, ends=_LAST),),
    "embed": (
        Example("embed", {"input": WORDS}, streams="never"),
        Example("embeddings", {"prompt": WORDS}, streams="never"),
    ),
}
"""The smallest valid requests."""
