"""The reading half of a backend whose workers answer every operation in OpenAI's wire."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.core.errors import GatewayError
from gateway.core.events import Event
from gateway.core.http import Response
from gateway.core.lifecycle import Embeddings, Scores
from gateway.core.messages import Embed, Generate, Op, Score
from gateway.core.ports import Facts, StreamReader
from gateway.wire.openai.replies.defaults import DEFAULTS, ReplyDefaults
from gateway.wire.openai.replies.facts import PATH, facts_of
from gateway.wire.openai.replies.reading import read_embeddings, reader_of
from gateway.wire.openai.replies.waits import fault_of
from gateway.wire.openai.scores import inability, read_scores


class ReadsReplies:
    """Reads replies, embeddings, scores, errors and facts for core.ports.Backend. Its subclasses write requests."""

    name: str
    facts_path: str | None = PATH

    def __init__(self, defaults: ReplyDefaults = DEFAULTS) -> None:
        self._defaults = defaults

    def wire_of(self, op: Op) -> str:
        return "openai"

    def read(self, response: Response, op: Generate) -> Iterator[Event]:
        yield from reader_of(op, self._defaults).whole(response.body)

    def reader(self, op: Generate) -> StreamReader:
        return reader_of(op, self._defaults)

    def read_embeddings(self, response: Response, op: Embed) -> Embeddings:
        return read_embeddings(response, op)

    def read_scores(self, response: Response, op: Score) -> Scores:
        return read_scores(response, op)

    def fault(self, response: Response, op: Op | None = None) -> GatewayError:
        return inability(response, op, self.name) or fault_of(response, self._defaults.now())

    def facts(self, body: bytes, model: str) -> Facts:
        return facts_of(body, model)
