"""Backend for any server that speaks OpenAI's wire: chat, text completions, embeddings, and reranking as most have it.

One mapping from choices to events serves streamed and buffered replies. Other backends of this wire use the same
modules: `compose` and `requests` write requests; `replies`, `errors` and `facts` read answers, and `reads` joins these
three.
"""

from __future__ import annotations

from gateway.backends.openai.reads import ReadsReplies
from gateway.core.http import JSON_TYPE, Request
from gateway.core.messages import Chat, Complete, Detokenize, Embed, Generate, Op, Score, Tokenize
from gateway.core.ports import Ask, Capabilities, Counting, Gauges, Handover
from gateway.wire.json import encode
from gateway.wire.openai.requests.parts import cannot_count
from gateway.wire.openai.requests.writing import PATHS, Words, outgoing
from gateway.wire.openai.scores import RERANK, rerank_body
from gateway.wire.openai.tokens import cannot_tokenize

NAME = "openai"
_WORDS = Words(NAME)


class OpenAI(ReadsReplies):
    """The backend `openai`: remote endpoints, and servers that need no special handling."""

    name = NAME
    salts = False
    gauges: Gauges | None = None
    handover: Handover | None = None
    adapters = True
    cache_events = False

    def write(self, op: Op, can: Capabilities) -> Request:
        if isinstance(op, Score):
            return Request("POST", RERANK, [JSON_TYPE], encode(rerank_body(op, can, NAME)))
        assert isinstance(op, (Chat, Complete, Embed))
        body, dropped = outgoing(op, can, _WORDS)
        return Request("POST", PATHS[type(op)], [JSON_TYPE], encode(body), dropped=dropped)

    def count(self, op: Generate, can: Capabilities) -> Counting:
        """Raises GatewayError(UNSUPPORTED): OpenAI's wire cannot count tokens."""
        raise cannot_count(op, NAME)

    def tokenize(self, op: Tokenize | Detokenize, can: Capabilities) -> Ask:
        """Raises GatewayError(UNSUPPORTED): OpenAI's wire does not tell tokens."""
        raise cannot_tokenize(NAME)
