"""Replies that come as one body: questions that a worker answers without its model, and how other answers are read."""

from __future__ import annotations

from typing import assert_never

from gateway.core.http import Response
from gateway.core.lifecycle import Detokenized, Embeddings, Reply, Scores, TokenCount, Tokens, fold
from gateway.core.messages import Chat, Complete, CountTokens, Embed, Generate, Question, Score
from gateway.core.ports import Ask, Backend, Capabilities


def ask(op: Question, backend: Backend, can: Capabilities) -> Ask[TokenCount | Tokens | Detokenized]:
    """The request for the answer to `op`. Raises GatewayError(UNSUPPORTED) if workers of `backend` cannot answer."""
    return backend.count(op.prompt_of, can) if isinstance(op, CountTokens) else backend.tokenize(op, can)


def read_whole(backend: Backend, response: Response, op: Generate | Embed | Score) -> Reply | Embeddings | Scores:
    """A buffered 2xx reply to an operation that is not a `Question`. Raises GatewayError if the reply is not whole, or
    not what `op` asks for."""
    if type(op) is Embed:
        return backend.read_embeddings(response, op)
    if type(op) is Score:
        return backend.read_scores(response, op)
    if type(op) is Chat or type(op) is Complete:
        return fold(backend.read(response, op))
    assert_never(op)
