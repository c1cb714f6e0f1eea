"""Ranking documents, scoring pairs, and tokens: Cohere's, Jina's, vLLM's and TEI's requests at one place.

Sources: cohere 7.3 (`Client`, `ClientV2`) and LiteLLM 1.106 as recorded clients; vLLM 0.33
(`entrypoints/pooling/scoring`, `entrypoints/serve/tokenize`); the references of Cohere, Jina and
text-embeddings-inference (docs/dialects/rerank.md).
"""

from __future__ import annotations

from gateway.core.fields import ExtrasPolicy
from gateway.core.http import Request, Route
from gateway.core.messages import Extra, Op
from gateway.dialects._shared.api import Api
from gateway.dialects.rerank import replies
from gateway.dialects.rerank.fields import EXAMPLES, FIELDS
from gateway.dialects.rerank.replies import refuse
from gateway.dialects.rerank.requests import read


class Rerank(Api):
    """The dialect `rerank`. It generates nothing, so it has no streams."""

    name = "rerank"
    prefixes = ("",)
    extras: ExtrasPolicy = "pass"
    routes = (
        Route("POST", "/rerank", "rerank"),
        Route("POST", "/v1/rerank", "rerank_v1"),
        Route("POST", "/v2/rerank", "rerank_v2"),
        Route("POST", "/score", "score"),
        Route("POST", "/v1/score", "score"),
        Route("POST", "/tokenize", "tokenize"),
        Route("POST", "/detokenize", "detokenize"),
    )
    fields, examples = FIELDS, EXAMPLES
    refusal = staticmethod(refuse)
    write_scores = staticmethod(replies.write_scores)
    write_tokens = staticmethod(replies.write_tokens)
    write_text = staticmethod(replies.write_text)

    def read_body(self, request: Request, raw: Extra) -> Op:
        return read(request, raw, self)
