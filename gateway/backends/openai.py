"""Backend for any server that speaks OpenAI's wire: chat, text completions, embeddings, and reranking as most have it.

`wire/openai` has what other backends of this wire share with it.
"""

from __future__ import annotations

from typing import assert_never

from gateway.core.http import JSON_TYPE, Request
from gateway.core.messages import Chat, Complete, CountTokens, Detokenize, Embed, Op, Score, Tokenize
from gateway.core.ports import Capabilities
from gateway.wire.json import encode
from gateway.wire.openai.backend import OpenAIBackend
from gateway.wire.openai.requests.unsupported import cannot_tokenize
from gateway.wire.openai.requests.writing import PATHS, ParameterWriter, outgoing
from gateway.wire.openai.scores import RERANK, rerank_body

NAME = "openai"
_PARAMETERS = ParameterWriter(NAME)


class OpenAI(OpenAIBackend):
    """The backend `openai`: remote endpoints, and servers that need no special handling."""

    name = NAME
    adapters = True

    def write(self, op: Op, can: Capabilities) -> Request:
        match op:
            case Chat() | Complete() | Embed():
                body, dropped = outgoing(op, can, _PARAMETERS)
                return Request("POST", PATHS[type(op)], [JSON_TYPE], encode(body), dropped=dropped)
            case Score():
                return Request("POST", RERANK, [JSON_TYPE], encode(rerank_body(op, can, NAME)))
            case CountTokens() | Tokenize() | Detokenize():
                raise cannot_tokenize(NAME)
            case _:
                assert_never(op)
