"""The handling of every field, under the names of Cohere, Jina, vLLM and TEI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.fields import WORDS, Example, Examples, Field, Tables, model_row, rows
from gateway.wire.openai.requests.fields import mapped

_MODEL = model_row("names the pool, else the default")
_HI, _HO = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}
_TALK: Mapping[str, Any] = {"messages": [_HI], "prompt": None}
_CONTINUED = {"messages": [_HI, _HO], "prompt": None}
_TEXTS = {"texts": ["hi"], "documents": None}
_TITLED = {"documents": [{"title": "a", "text": "b"}]}
_FUNCTION = {"type": "function", "function": {"name": "f"}}
_QUERY, _DOCUMENTS = "query or text_1", "documents or text_2"
_INSTEAD: Mapping[str, Any] = {"documents": None}
_MESSAGES = "messages, prompt, add_special_tokens"
_CONTINUES = "of messages; 400 beside add_generation_prompt"
_CONTINUES_AS = "continue_final_message, add_generation_prompt"
_RANKED_BY = "members of an object that are ranked, a line each"
_CUT = {"truncate": True}

# vLLM's own, of a ranking and of scores alike.
_SCORING = (
    Field("max_tokens_per_doc", "mapped", 100, "llama.cpp cuts nothing: 400"),
    *rows("mapped", "", max_tokens_per_query=100, truncate_prompt_tokens=100, truncation_side="left", padding=True),
    Field("use_activation", "mapped", False, "false: the model's own numbers, not within 0 and 1"),
    Field("instruction", "mapped", "which is about cats?"),
    *rows("mapped", "", chat_template_kwargs={"k": "v"}, mm_processor_kwargs={"k": "v"}, cache_salt="s"),
    *mapped("user"),
    Field("priority", "ignored", 1, "Cohere's is another than vLLM's"),
)

FIELDS: Tables = {
    "rerank": (
        Field("query", "mapped", "hi", "a text, or `{text}`"),
        Field("documents", "mapped", ["hi", {"text": "ho"}], "texts and objects with `text`; at most 10,000"),
        Field("texts", "renamed", ["hi"], "TEI's, and then its list is the reply", "documents", beside=_INSTEAD),
        _MODEL,
        Field("top_n", "emulated", 1, "at least 1; more than there are is all"),
        Field("return_documents", "emulated", False, "absent: true, but false on /v2/rerank"),
        Field("return_text", "emulated", True, "TEI's; absent: false", beside=_TEXTS),
        Field("rank_fields", "emulated", ["title"], _RANKED_BY, "documents", beside=_TITLED),
        Field("raw_scores", "renamed", True, "TEI's", "use_activation"),
        Field("truncate", "renamed", True, "TEI's; true: to the context", "truncate_prompt_tokens"),
        Field("truncation_direction", "renamed", "Left", "TEI's, of truncate", "truncation_side", beside=_CUT),
        *_SCORING,
        Field("max_chunks_per_doc", "ignored", 10, "Cohere's first API alone had it"),
        Field("relevant_spans", "ignored", True, "no engine behind us returns them"),
    ),
    "score": (
        Field("queries", "renamed", "hi", "one for all documents, or one for each", _QUERY),
        Field("documents", "renamed", ["hi", "ho"], "at most 10,000", _DOCUMENTS),
        Field("items", "renamed", ["hi"], "", _DOCUMENTS, beside=_INSTEAD),
        Field("data_1", "renamed", "hi", "", _QUERY, beside={"queries": None}),
        Field("data_2", "renamed", ["hi"], "", _DOCUMENTS, beside=_INSTEAD),
        Field("text_1", "renamed", "hi", "", _QUERY, beside={"queries": None}),
        Field("text_2", "renamed", ["hi"], "", _DOCUMENTS, beside=_INSTEAD),
        _MODEL,
        *_SCORING,
    ),
    "tokenize": (
        *mapped("prompt"),
        Field("messages", "renamed", [_HI], "instead of prompt; vLLM alone", _MESSAGES, beside={"prompt": None}),
        Field("tools", "mapped", [_FUNCTION], beside=_TALK),
        _MODEL,
        Field("add_special_tokens", "mapped", False, "absent: true for a prompt, false for messages"),
        Field("return_token_strs", "mapped", True),
        Field("add_generation_prompt", "mapped", False, "of messages", beside=_TALK),
        Field("continue_final_message", "renamed", True, _CONTINUES, _CONTINUES_AS, beside=_CONTINUED),
        Field("chat_template", "mapped", "{{ x }}", "vLLM refuses it unless it trusts requests", beside=_TALK),
        Field("chat_template_kwargs", "mapped", {"k": "v"}, beside=_TALK),
        Field("media_io_kwargs", "mapped", {"image": {}}, beside=_TALK),
        Field("mm_processor_kwargs", "mapped", {"k": "v"}, beside=_TALK),
    ),
    "detokenize": (Field("tokens", "mapped", [2, 1]), _MODEL),
}

_RANKED = {"query": WORDS, "documents": [WORDS]}
EXAMPLES: Examples = {
    "rerank": tuple(Example(route, _RANKED, streams="never") for route in ("rerank", "rerank_v1", "rerank_v2")),
    "score": (Example("score", {"queries": WORDS, "documents": [WORDS]}, streams="never"),),
    "tokenize": (Example("tokenize", {"prompt": WORDS}, streams="never"),),
    "detokenize": (Example("detokenize", {"tokens": [1]}, streams="never"),),
}
