"""The base of all backends: it reads what OpenAI's wire defines. Each backend adds its differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from gateway.core.errors import GatewayError
from gateway.core.events import Event
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.lifecycle import Detokenized, Embeddings, Scores, Tokens
from gateway.core.messages import Complete, Detokenize, Embed, Generate, Op, Score, Tokenize
from gateway.core.ports import (
    Ask,
    Capabilities,
    Counting,
    Facts,
    Gauges,
    Handover,
    Partial,
    Resumption,
    StreamReader,
)
from gateway.wire.json import encode
from gateway.wire.openai.replies import views as wire
from gateway.wire.openai.replies.defaults import DEFAULTS, ReplyDefaults
from gateway.wire.openai.replies.facts import PATH, facts_of
from gateway.wire.openai.replies.reading import read_embeddings, reader_of
from gateway.wire.openai.replies.waits import fault_of
from gateway.wire.openai.requests.resuming import append_to_prompt, resumed
from gateway.wire.openai.requests.unsupported import cannot_count, cannot_tokenize
from gateway.wire.openai.requests.writing import PATHS
from gateway.wire.openai.scores import inability, read_scores

T = TypeVar("T")


class OpenAIBackend:
    """Reads all answers as OpenAI's wire has them, and can count no tokens. Subclasses write requests, and implement
    core.ports.Backend with that."""

    name: str
    salts = False
    gauges: Gauges | None = None
    handover: Handover | None = None
    adapters = False
    cache_events = False
    facts_path: str | None = PATH

    def __init__(self, defaults: ReplyDefaults = DEFAULTS) -> None:
        self._defaults = defaults

    def reply_wire(self, op: Op) -> str:
        return "openai"

    def count(self, op: Generate, can: Capabilities) -> Counting:
        raise cannot_count(op, self.name)

    def tokenize(self, op: Tokenize | Detokenize, can: Capabilities) -> Ask:
        raise cannot_tokenize(self.name)

    def resume(self, request: Request, partial: Partial) -> Resumption | str:
        """Any engine goes on with a text. Chats need an unfinished last message, which OpenAI's API has not."""
        if request.path != PATHS[Complete]:
            return "engine"
        return resumed(request, partial, append_to_prompt)

    def read(self, response: Response, op: Generate) -> Iterator[Event]:
        yield from reader_of(op, self._defaults).whole(response.body)

    def reader(self, op: Generate) -> StreamReader:
        return reader_of(op, self._defaults)

    def read_embeddings(self, response: Response, op: Embed) -> Embeddings:
        return read_embeddings(response, op)

    def read_scores(self, response: Response, op: Score) -> Scores:
        return read_scores(response, op)

    def fault(self, response: Response, op: Op | None = None) -> GatewayError:
        return inability(response, op, self.name) or self._fault(response)

    def facts(self, body: bytes, model: str) -> Facts:
        return facts_of(body, model)

    def _fault(self, response: Response) -> GatewayError:
        """The error for an answer with any status but 200."""
        return fault_of(response, self._defaults.now())

    def _counting(self, op: Generate, body: dict[str, Any], length: Callable[[bytes], int], path: str) -> Counting:
        """Counts the tokens of `op` by a request to the worker's `path`. `length` reads the answer, or raises msgspec's
        errors."""
        request = Request("POST", path, [JSON_TYPE], encode(body))
        return Counting(request, self._answered(lambda: cannot_count(op, self.name), length))

    def _ask(
        self,
        op: Tokenize | Detokenize,
        body: dict[str, Any],
        read: Callable[[bytes], Tokens | Detokenized],
        path: str,
    ) -> Ask:
        """Asks for tokens or their text. Members of `op` without a canonical name are passed on."""
        request = Request("POST", path, [JSON_TYPE], encode({**op.extra, **body}))
        return Ask(request, self._answered(lambda: cannot_tokenize(self.name), read))

    def _answered(self, unable: Callable[[], GatewayError], read: Callable[[bytes], T]) -> Callable[[Response], T]:
        """Reads an answer of any status: `read` takes the body of a 200, or raises msgspec's errors. `unable` is for a
        path that is switched off, or blocked by a proxy before the worker."""

        def reading(response: Response) -> T:
            if response.status in (404, 405):
                raise unable()
            if response.status != 200:
                raise self.fault(response)
            try:
                return read(response.body)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                raise wire.malformed() from None

        return reading
