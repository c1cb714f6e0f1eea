"""The field table: the handling of each field of a request to Ollama's API. The names are those of Ollama's reference
and of the recorded clients; see `gateway.dialects.ollama_native`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.core.fields import WORDS, Example, Examples, Field, body_members

_TOOLS = [{"type": "function", "function": {"name": "f"}}]
_NO_PLACE = "nothing behind us has a place for it"
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

_MODEL = Field(
    "model", "consumed", note="names the pool; `m` and `m:latest` are one model", sample="m", names_model=True
)
_KEEP = Field("keep_alive", "ignored", note="workers keep their model", sample="5m")
_OPTIONS = (
    Field(
        "options",
        "consumed",
        note="its members are the next rows",
        sample={},
        probe={"temperature": 0.5},
    ),
    Field("options.num_predict", "renamed", to="max_tokens", note="0 and less are no limit", sample=16),
    Field("options.temperature", "renamed", to="temperature", sample=0.7),
    Field("options.top_p", "renamed", to="top_p", sample=0.9),
    Field("options.top_k", "renamed", to="top_k", note=_OTHERS, sample=40),
    Field("options.min_p", "renamed", to="min_p", note=_OTHERS, sample=0.1),
    Field("options.seed", "renamed", to="seed", note="less than 0 is none", sample=7),
    Field("options.stop", "renamed", to="stop", note="a list, or one text", sample=["END"]),
    Field(
        "options.repeat_penalty",
        "renamed",
        to="repetition_penalty",
        note=f"over the whole text, whatever repeat_last_n says; {_OTHERS}",
        sample=1.1,
    ),
    Field("options.presence_penalty", "renamed", to="presence_penalty", note=_OTHERS, sample=0.5),
    Field("options.frequency_penalty", "renamed", to="frequency_penalty", note=_OTHERS, sample=0.5),
    *(Field(f"options.{name}", "ignored", note=_RUNNER, sample=1) for name in _RUNNERS),
    *(Field(f"options.{name}", "ignored", note="no engine behind us has it", sample=1) for name in _SAMPLERS),
)
_COMMON = (
    _MODEL,
    Field("stream", "mapped", note="true when absent", sample=False),
    Field("format", "renamed", to="response_format", note='"json" or a JSON schema', sample="json"),
    Field(
        "think",
        "renamed",
        to="reasoning_effort",
        note="false: none, left out for a model that cannot think; true: medium; max: high",
        sample="low",
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
        Field(
            "messages",
            "mapped",
            note="also images, thinking, and results of tools that name no call",
            sample=[{"role": "user", "content": "hi"}],
        ),
        Field("tools", "mapped", note="an empty array is dropped", sample=_TOOLS),
        *_COMMON,
    ),
    "complete": (
        Field("prompt", "renamed", to="messages", note="one message of the user; as it is with `raw`", sample="hi"),
        Field("system", "renamed", to="messages", sample="be brief"),
        Field(
            "images",
            "renamed",
            to="messages",
            note="base64, before the text",
            sample=["iVBORw0KGgo="],
        ),
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
"""The names of the top-level members that each operation's table has."""
IGNORED = {
    operation: tuple(field.name for field in found if field.handling == "ignored" and "." not in field.name)
    for operation, found in FIELDS.items()
}
"""The names of the fields that each operation accepts and names as dropped."""

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
