"""Cohere: its chat API, streamed and whole, and its list of models. Rankings and tokens are the dialect `rerank`.

Sources: Cohere's reference; cohere 7.3 and 5.21 (`ClientV2`), langchain-cohere 0.6 and LiteLLM 1.106 as recorded
clients (docs/dialects/cohere.md).
"""

from __future__ import annotations

from gateway.core.http import HeaderTest, Request, Route
from gateway.core.messages import Extra, Op
from gateway.dialects._shared.api import Api, listing
from gateway.dialects.cohere import models, replies
from gateway.dialects.cohere.errors import refuse
from gateway.dialects.cohere.fields import EXAMPLES, FIELDS
from gateway.dialects.cohere.requests import read

# OpenAI's list of models is at the same path.
_OURS = HeaderTest(b"x-fern-sdk-name", b"cohere")


class Cohere(Api):
    """The dialect `cohere`. No passthrough lane: no backend's workers speak this wire."""

    name = "cohere"
    prefixes = ("",)
    routes = (
        Route("POST", "/v2/chat", "chat"),
        Route("GET", "/v1/models", "models", when=_OURS),
        Route("GET", "/v1/models/{model:path}", "model", when=_OURS),
    )
    fields, examples = FIELDS, EXAMPLES
    answered = {"models": models.read_list, "model": listing(models.write_one)}
    refusal = staticmethod(refuse)
    write_reply = staticmethod(replies.write)
    writer = staticmethod(replies.StreamWriter)

    def read_body(self, request: Request, raw: Extra) -> Op:
        return read(request, raw, self)
