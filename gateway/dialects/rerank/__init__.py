"""Ranking documents, scoring pairs, and tokens: Cohere's, Jina's, vLLM's and TEI's requests at one place.

Sources: cohere 7.3 (`Client`, `ClientV2`) and LiteLLM 1.106 as recorded clients; vLLM 0.33
(`entrypoints/pooling/scoring`, `entrypoints/serve/tokenize`); the references of Cohere, Jina and
text-embeddings-inference (docs/dialects/rerank.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import ExtrasPolicy
from gateway.core.http import Request, Response, Route
from gateway.core.lifecycle import WholeReply
from gateway.core.messages import Generate, ListModels, Op
from gateway.core.ports import Passthrough, StreamWriter
from gateway.dialects.rerank.errors import ERRORS, refuse
from gateway.dialects.rerank.fields import EXAMPLES, FIELDS
from gateway.dialects.rerank.replies import write
from gateway.dialects.rerank.requests import read
from gateway.wire.json import whole_numbers


class Rerank:
    """The dialect `rerank`. It generates nothing, so it has no streams."""

    name = "rerank"
    prefixes: tuple[str, ...] = ("",)
    extras: ExtrasPolicy = "pass"
    routes: tuple[Route, ...] = (
        Route("POST", "/rerank", "rerank"),
        Route("POST", "/v1/rerank", "rerank_v1"),
        Route("POST", "/v2/rerank", "rerank_v2"),
        Route("POST", "/score", "score"),
        Route("POST", "/v1/score", "score"),
        Route("POST", "/tokenize", "tokenize"),
        Route("POST", "/detokenize", "detokenize"),
    )
    fields = FIELDS
    examples = EXAMPLES
    errors: Mapping[Kind, tuple[int, str, str]] = ERRORS
    key_header = b"authorization"
    passthrough: Mapping[str, Passthrough] = {}

    @whole_numbers
    def read(self, request: Request) -> Op | ListModels:
        return read(request, self.extras)

    def write(self, reply: WholeReply, op: Op) -> Response:
        return write(reply, op)

    def writer(self, op: Generate) -> StreamWriter:
        raise TypeError("nothing here is streamed")

    def refuse(self, error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
        return refuse(error, request)
