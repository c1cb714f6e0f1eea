"""Backend for any server that speaks OpenAI's wire: chat, text completions, embeddings, and reranking as most have it.

`wire/openai` has what other backends of this wire share with it.
"""

from __future__ import annotations

from gateway.core.messages import Chat, Complete, Embed, Score
from gateway.core.ports import Capabilities
from gateway.wire.openai.backend import OpenAIBackend, Written
from gateway.wire.openai.requests.writing import PATHS, ParameterWriter, outgoing
from gateway.wire.openai.scores import RERANK, rerank_body

NAME = "openai"
_PARAMETERS = ParameterWriter(NAME)


class OpenAI(OpenAIBackend):
    """The backend `openai`: remote endpoints, and servers that need no special handling."""

    name = NAME
    adapters = True

    def _written(self, op: Chat | Complete | Embed | Score, can: Capabilities) -> Written:
        if type(op) is Score:
            return Written(RERANK, rerank_body(op, can, NAME))
        return Written(PATHS[type(op)], *outgoing(op, can, _PARAMETERS))
