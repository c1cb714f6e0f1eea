"""The base of all backends: it writes and reads what OpenAI's wire defines. Each backend adds its differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

from gateway.core.errors import GatewayError
from gateway.core.events import Event
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.lifecycle import Detokenized, Embeddings, Scores, TokenCount, Tokens
from gateway.core.messages import Chat, Complete, CountTokens, Detokenize, Embed, Generate, Media, Op, Score, Tokenize
from gateway.core.ports import Ask, Backend, Capabilities, Facts, Partial, Resumption, StreamReader
from gateway.wire import clock
from gateway.wire.json import encode
from gateway.wire.openai.media import requests as media
from gateway.wire.openai.replies import views as wire
from gateway.wire.openai.replies.facts import PATH, facts_of
from gateway.wire.openai.replies.inability import inability
from gateway.wire.openai.replies.reading import read_embeddings, reader_of
from gateway.wire.openai.replies.waits import fault_of
from gateway.wire.openai.requests.resuming import TEXT_DEFAULT, append_to_prompt, resumed
from gateway.wire.openai.requests.unsupported import beyond, cannot_count
from gateway.wire.openai.requests.writing import PATHS
from gateway.wire.openai.scores import read_scores

Answer = TypeVar("Answer", bound=TokenCount | Tokens | Detokenized)
CANNOT_TOKENIZE = "cannot tokenize"


class Written(NamedTuple):
    """The path of a request, the members of its body, and the names of what is left out."""

    path: str
    body: dict[str, Any]
    dropped: tuple[str, ...] = ()


class OpenAIBackend(Backend):
    """Reads all answers as OpenAI's wire has them, and can count no tokens. Subclasses say what requests hold
    (`_written`)."""

    facts_path: str | None = PATH
    # Whether a text completion without `max_tokens` is known to end as OpenAI's API has it.
    bounds_texts = False

    def reply_wire(self, op: Op) -> str:
        return "openai"

    def write(self, op: Op, can: Capabilities) -> Request:
        if type(op) is CountTokens or type(op) is Tokenize or type(op) is Detokenize:
            raise beyond(self.name, CANNOT_TOKENIZE)  # `count` and `tokenize` write these
        if type(op) is Media:
            return self._media(op, can)
        path, body, dropped = self._written(op, can)
        return Request("POST", path, [JSON_TYPE], encode(body), dropped=dropped)

    def _media(self, op: Media, can: Capabilities) -> Request:
        """The request for sound or images. Raises GatewayError(UNSUPPORTED)."""
        return media.written(op, can, self.name)

    def _written(self, op: Chat | Complete | Embed | Score, can: Capabilities) -> Written:
        """The request for `op`. Raises GatewayError(UNSUPPORTED), which names the parameter, for what the engine cannot
        do."""
        raise NotImplementedError

    def count(self, op: Generate, can: Capabilities) -> Ask[TokenCount]:
        raise cannot_count(op, self.name)

    def tokenize(self, op: Tokenize | Detokenize, can: Capabilities) -> Ask[Tokens | Detokenized]:
        raise beyond(self.name, CANNOT_TOKENIZE)

    def resume(self, request: Request, partial: Partial) -> Resumption | str:
        """Any engine goes on with a text. Chats need an unfinished last message, which OpenAI's API has not."""
        if request.path != PATHS[Complete]:
            return "engine"
        return resumed(request, partial, append_to_prompt, default=TEXT_DEFAULT, sure=self.bounds_texts)

    def read(self, response: Response, op: Generate) -> Iterator[Event]:
        yield from reader_of(op).whole(response.body)

    def reader(self, op: Generate) -> StreamReader:
        return reader_of(op)

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
        return fault_of(response, clock.seconds())

    def _ask(
        self, op: Generate | Tokenize | Detokenize, path: str, body: dict[str, Any], read: Callable[[bytes], Answer]
    ) -> Ask[Answer]:
        """Asks for the number of tokens, for tokens or for their text. `read` takes the body of a 200, or raises
        msgspec's errors. For the latter two, members of `op` without a canonical name are passed on."""

        def reading(response: Response) -> Answer:
            if response.status in (404, 405):  # the path is switched off, or blocked by a proxy before the worker
                if isinstance(op, (Chat, Complete)):
                    raise cannot_count(op, self.name)
                raise beyond(self.name, CANNOT_TOKENIZE)
            if response.status != 200:
                raise self.fault(response)
            try:
                return read(response.body)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                raise wire.malformed() from None

        if isinstance(op, (Tokenize, Detokenize)):
            body = {**op.extra, **body}
        return Ask(Request("POST", path, [JSON_TYPE], encode(body)), reading)
