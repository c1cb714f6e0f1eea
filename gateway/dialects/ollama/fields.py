"""The field table: the handling of each field of a request to Ollama's API. The names are those of Ollama's reference
and of the recorded clients; see `gateway.dialects.ollama`."""

from __future__ import annotations

from gateway.core.fields import WORDS, Example, Examples, Field, Tables, model_row, renamed, rows
from gateway.dialects._shared.ollama import OPTIONS as _ENGINES
from gateway.dialects._shared.ollama import option_rows
from gateway.wire.openai.requests.fields import TOOLS, mapped

_RUNNER = "of the server that runs a model: here its workers decide"
_RUNNERS = (
    *("num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "use_mlock", "low_vram", "numa", "num_thread"),
    *("vocab_only", "logits_all", "num_keep", "draft_num_predict"),
)
_SAMPLERS = ("typical_p", "mirostat", "mirostat_tau", "mirostat_eta", "tfs_z", "penalize_newline", "repeat_last_n")
_NEW = ("top_k", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty")
OPTIONAL = {_ENGINES[name]: f"options.{name}" for name in _NEW}
"""Parameters that clients send to every model: vLLM's name -> this API's."""
_OTHERS = "left out and named for workers without it"
_NOTES = {
    **dict.fromkeys(_NEW, _OTHERS),
    "repeat_penalty": f"over the whole text, whatever repeat_last_n says; {_OTHERS}",
    "num_predict": "0 and less: no limit",
    "seed": "less than 0 is none",
    "stop": "a list, or one text",
}

_MODEL = model_row("names the pool; `m` and `m:latest` are one model")
_KEEP = Field("keep_alive", "ignored", "5m", "workers keep their model")
_TEMPLATE = "the template is the worker's"
_TURNS = "also images, thinking, and results of tools that name no call"
_THINK = "false: none, left out for a model that cannot think; true: medium; max: high"
_TRUNCATE = "true when absent: truncate_prompt_tokens for vLLM; others refuse an input that is too long"
_RAW = "messages, path, prompt, max_tokens"
_COMMON = (
    _MODEL,
    Field("stream", "mapped", False, "true when absent"),
    renamed("format", "response_format", "json", '"json" or a JSON schema'),
    renamed("think", "reasoning_effort", "low", _THINK),
    Field("options", "consumed", {}, "its members are the next rows", probe={"temperature": 0.5}),
    *option_rows(_NOTES),
    *(Field(f"options.{name}", "ignored", 1, _RUNNER) for name in _RUNNERS),
    *(Field(f"options.{name}", "ignored", 1, "no engine behind us has it") for name in _SAMPLERS),
    _KEEP,
    Field("logprobs", "mapped", True),
    Field("top_logprobs", "mapped", 2, "named as dropped without logprobs", beside={"logprobs": True}),
    *rows("ignored", "a prompt that does not fit is a 400", truncate=True, shift=True),
    Field("_debug_render_only", "refused", True, _TEMPLATE),
)

FIELDS: Tables = {
    "chat": (*mapped("messages", note=_TURNS), TOOLS[0], *_COMMON),
    "complete": (
        renamed("prompt", "messages", "hi", "one message of the user; as it is with `raw`"),
        renamed("system", "messages", "be brief"),
        renamed("images", "messages", ["iVBORw0KGgo="], "base64, before the text"),
        Field("raw", "emulated", True, "a text completion, no template", _RAW),
        Field("suffix", "emulated", "end", "a text completion; vLLM answers 400 to it", f"{_RAW}, suffix"),
        *_COMMON,
        Field("template", "refused", "{{ .Prompt }}", f"unless it is empty: {_TEMPLATE}"),
        Field("context", "refused", [1], "unless it is empty: no worker has the former turn's tokens"),
    ),
    "embed": (
        Field("input", "mapped", "hi", "a text or texts"),
        Field("prompt", "renamed", "hi", "of /api/embeddings", "input", beside={"input": None}),
        _MODEL,
        Field("truncate", "consumed", True, _TRUNCATE, probe=False),
        Field("dimensions", "mapped", 8),
        Field("options", "ignored", {"num_ctx": 5}, _RUNNER),
        _KEEP,
    ),
}
OPTIONS = frozenset({*_ENGINES, *_RUNNERS, *_SAMPLERS})
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
