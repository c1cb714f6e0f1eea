"""Replies that come as one body: questions that a worker answers without its model, and how other answers are read."""

from __future__ import annotations

from typing import assert_never

from gateway.core.http import Response
from gateway.core.lifecycle import Embeddings, Reply, Scores, TokenCount, fold
from gateway.core.messages import Chat, Complete, CountTokens, Embed, Generate, Question, Score
from gateway.core.ports import Ask, Backend, Capabilities


def ask(op: Question, backend: Backend, can: Capabilities) -> Ask:
    """The request for the answer to `op`. Raises GatewayError(UNSUPPORTED) if workers of `backend` cannot answer."""
    if not isinstance(op, CountTokens):
        return backend.tokenize(op, can)
    counting = backend.count(op.prompt_of, can)
    return Ask(counting.request, lambda response: TokenCount(counting.read(response)))


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
