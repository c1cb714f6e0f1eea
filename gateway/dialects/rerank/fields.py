"""The handling of every field, under the names of Cohere, Jina, vLLM and TEI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.core.fields import WORDS, Example, Examples, Field, body_members
from gateway.dialects._shared.rows import model_row
from gateway.wire.openai.requests.fields import mapped

_MODEL = model_row("names the pool, else the default")
_TALK = {"messages": [{"role": "user", "content": "hi"}], "prompt": None}
_CONTINUED = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}], "prompt": None}

# vLLM's own, of a ranking and of scores alike.
_SCORING = (
    Field("max_tokens_per_doc", "mapped", note="llama.cpp cuts nothing: 400", sample=100),
    Field("max_tokens_per_query", "mapped", sample=100),
    Field("truncate_prompt_tokens", "mapped", sample=100),
    Field("truncation_side", "mapped", sample="left"),
    Field("padding", "mapped", sample=True),
    Field("use_activation", "mapped", note="false: the model's own numbers, not within 0 and 1", sample=False),
    Field("instruction", "mapped", sample="which is about cats?"),
    Field("chat_template_kwargs", "mapped", sample={"k": "v"}),
    Field("mm_processor_kwargs", "mapped", sample={"k": "v"}),
    Field("cache_salt", "mapped", sample="s"),
    *mapped("user"),
    Field("priority", "ignored", note="Cohere's is another than vLLM's", sample=1),
)

FIELDS: Mapping[str, Sequence[Field]] = {
    "rerank": (
        Field("query", "mapped", note="a text, or `{text}`", sample="hi"),
        Field("documents", "mapped", note="texts and objects with `text`; at most 10,000",
              sample=["hi", {"text": "ho"}]),
        Field("texts", "renamed", to="documents", note="TEI's, and then its list is the reply", sample=["hi"],
              beside={"documents": None}),
        _MODEL,
        Field("top_n", "emulated", note="at least 1; more than there are is all", sample=1),
        Field("return_documents", "emulated", note="absent: true, but false on /v2/rerank", sample=False),
        Field("return_text", "emulated", note="TEI's; absent: false", sample=True,
              beside={"texts": ["hi"], "documents": None}),
        Field("rank_fields", "emulated", to="documents", note="members of an object that are ranked, a line each",
              sample=["title"], beside={"documents": [{"title": "a", "text": "b"}]}),
        Field("raw_scores", "renamed", to="use_activation", note="TEI's", sample=True),
        Field("truncate", "renamed", to="truncate_prompt_tokens", note="TEI's; true: to the context", sample=True),
        Field("truncation_direction", "renamed", to="truncation_side", note="TEI's, of truncate", sample="Left",
              beside={"truncate": True}),
        *_SCORING,
        Field("max_chunks_per_doc", "ignored", note="Cohere's first API alone had it", sample=10),
        Field("relevant_spans", "ignored", note="no engine behind us tells them", sample=True),
    ),
    "score": (
        Field("queries", "renamed", to="query or text_1", note="one for all documents, or one for each", sample="hi"),
        Field("documents", "renamed", to="documents or text_2", note="at most 10,000", sample=["hi", "ho"]),
        Field("items", "renamed", to="documents or text_2", sample=["hi"], beside={"documents": None}),
        Field("data_1", "renamed", to="query or text_1", sample="hi", beside={"queries": None}),
        Field("data_2", "renamed", to="documents or text_2", sample=["hi"], beside={"documents": None}),
        Field("text_1", "renamed", to="query or text_1", sample="hi", beside={"queries": None}),
        Field("text_2", "renamed", to="documents or text_2", sample=["hi"], beside={"documents": None}),
        _MODEL,
        *_SCORING,
    ),
    "tokenize": (
        *mapped("prompt"),
        Field("messages", "renamed", to="messages, prompt, add_special_tokens", note="instead of prompt; vLLM alone",
              sample=_TALK["messages"], beside={"prompt": None}),
        Field("tools", "mapped", sample=[{"type": "function", "function": {"name": "f"}}], beside=_TALK),
        _MODEL,
        Field("add_special_tokens", "mapped", note="absent: true for a prompt, false for messages", sample=False),
        Field("return_token_strs", "mapped", sample=True),
        Field("add_generation_prompt", "mapped", note="of messages", sample=False, beside=_TALK),
        Field("continue_final_message", "renamed", to="continue_final_message, add_generation_prompt",
              note="of messages; 400 beside add_generation_prompt", sample=True, beside=_CONTINUED),
        Field("chat_template", "mapped", note="vLLM refuses it unless it trusts requests", sample="{{ x }}",
              beside=_TALK),
        Field("chat_template_kwargs", "mapped", sample={"k": "v"}, beside=_TALK),
        Field("media_io_kwargs", "mapped", sample={"image": {}}, beside=_TALK),
        Field("mm_processor_kwargs", "mapped", sample={"k": "v"}, beside=_TALK),
    ),
    "detokenize": (
        Field("tokens", "mapped", sample=[2, 1]),
        _MODEL,
    ),
}  # fmt: skip
KNOWN = body_members(FIELDS)

_RANKED = {"query": WORDS, "documents": [WORDS]}
EXAMPLES: Examples = {
    "rerank": tuple(Example(route, _RANKED, streams="never") for route in ("rerank", "rerank_v1", "rerank_v2")),
    "score": (Example("score", {"queries": WORDS, "documents": [WORDS]}, streams="never"),),
    "tokenize": (Example("tokenize", {"prompt": WORDS}, streams="never"),),
    "detokenize": (Example("detokenize", {"tokens": [1]}, streams="never"),),
}
"""The least requests that are read."""
