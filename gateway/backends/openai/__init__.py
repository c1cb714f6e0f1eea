"""Backend for any server that speaks OpenAI's wire: chat, text completions, embeddings.

One mapping from choices to events serves streamed and buffered replies. Other backends of this wire use the same
modules: `compose` and `requests` write requests, `replies` and `errors` read answers.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.backends.openai.compose import PATHS, Words, outgoing
from gateway.backends.openai.errors import fault_of
from gateway.backends.openai.facts import PATH, facts_of
from gateway.backends.openai.replies import read_embeddings, reader_of
from gateway.backends.openai.requests import cannot_count
from gateway.core.errors import GatewayError
from gateway.core.events import Event
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.lifecycle import Embeddings
from gateway.core.messages import Chat, Complete, Embed, Generate, Op
from gateway.core.ports import Capabilities, Counting, Facts, StreamReader
from gateway.wire.json import encode
from gateway.wire.openai.defaults import DEFAULTS, ReplyDefaults

NAME = "openai"
_WORDS = Words(NAME)


class OpenAI:
    """The backend `openai`: remote endpoints, and servers that need no special handling."""

    name = NAME
    salts = False
    facts_path: str | None = PATH

    def __init__(self, defaults: ReplyDefaults = DEFAULTS) -> None:
        self._defaults = defaults

    def wire_of(self, op: Op) -> str:
        return "openai"

    def write(self, op: Op, can: Capabilities) -> Request:
        assert isinstance(op, (Chat, Complete, Embed))
        body, dropped = outgoing(op, can, _WORDS)
        return Request("POST", PATHS[type(op)], [JSON_TYPE], encode(body), dropped=dropped)

    def count(self, op: Generate, can: Capabilities) -> Counting:
        """Raises GatewayError(UNSUPPORTED): OpenAI's wire cannot count tokens."""
        raise cannot_count(op, NAME)

    def read(self, response: Response, op: Generate) -> Iterator[Event]:
        yield from reader_of(op, self._defaults).whole(response.body)

    def reader(self, op: Generate) -> StreamReader:
        return reader_of(op, self._defaults)

    def read_embeddings(self, response: Response, op: Embed) -> Embeddings:
        return read_embeddings(response, op)

    def fault(self, response: Response) -> GatewayError:
        return fault_of(response, self._defaults.now())

    def facts(self, body: bytes, model: str) -> Facts:
        return facts_of(body, model)
