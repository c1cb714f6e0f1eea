"""The interface of a dialect, and of the lanes between a worker's bytes and its client's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from gateway.core.continuation import NO_TEXT, Partial, SentText
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Event
from gateway.core.fields import Examples, ExtrasPolicy, Field
from gateway.core.http import Headers, Request, Response, Route
from gateway.core.lifecycle import WholeReply
from gateway.core.messages import (
    AnsweredFromStore,
    Citation,
    Embed,
    Generate,
    KindOfServerTool,
    ListModels,
    Media,
    Op,
    ServerCall,
)
from gateway.core.usage import Usage


class Settings(Struct, frozen=True):
    """The settings of a dialect that configuration may change. None leaves it as the dialect has it. runs: the tools
    that the gateway runs."""

    prefixes: tuple[str, ...] | None = None
    extras: ExtrasPolicy | None = None
    api_version: str | None = None
    runs: frozenset[KindOfServerTool] | None = None


class Lane(Protocol):
    """Turns one worker's streamed bytes into one client's bytes, without I/O. May return b"" when nothing is due.

    done       the worker's terminal mark was read: the reply is complete
    error      why the reply will never be complete; set at most once, after which nothing more is fed
    usage      the last usage the worker reported
    finishes   why choices ended, by index: stop | length | tool_calls | content_filter
    produced   output deltas read so far: a lower bound of output tokens when the stream is cut
    clean_end  whether this client's wire has an orderly end after an error; if not, the connection must be cut
    keeps_op   whether it refers to the operation, and so to the prompt, until its end
    """

    keeps_op: bool
    done: bool
    error: GatewayError | None
    usage: Usage | None
    finishes: dict[int, str]
    produced: int

    @property
    def clean_end(self) -> bool: ...
    @property
    def headers(self) -> Headers:
        """The headers of the streamed reply, its content type included."""

    def feed(self, block: bytes) -> bytes: ...
    def eof(self) -> bytes:
        """The worker's body has ended. Sets `error` unless `done`. Returns the last bytes for the client."""

    def fail(self, error: GatewayError) -> bytes:
        """A failure from elsewhere (deadline, lost connection, shutdown). Returns the error in the client's
        own form."""

    def keepalive(self) -> bytes:
        """Bytes that every reader of this wire ignores, or b"" where there are none."""

    def partial(self) -> Partial | str:
        """The part of the reply that the client was sent, if another worker can go on with it; else the reason why
        none can, as in the record of a request."""

    def splice(self, repeated: str) -> None:
        """The next bytes come from another worker, which goes on with `partial()`. `repeated` is the end of its text
        that the worker writes again."""

    def conclude(self, usage: Usage) -> bytes:
        """Ends the reply of which only the end is missing, or which has reached its limit of tokens. usage is for a
        worker that has not reported any. Returns the last bytes for the client."""


class StreamWriter(Protocol):
    """Canonical events to one client's stream.

    buffered_bytes  about how many bytes of the reply the writer keeps in memory, for a last event that repeats all of
                    it; the caller bounds them
    """

    headers: Headers
    clean_end: bool

    @property
    def buffered_bytes(self) -> int: ...
    def write(self, event: Event) -> bytes:
        """Raises GatewayError if the reply that ends by `event` is a failure in this dialect."""

    def keepalive(self) -> bytes: ...


class ServerToolWriter(StreamWriter, Protocol):
    """The writer of a dialect whose API has tools that its server runs."""

    def called(self, call: ServerCall) -> bytes:
        """The call begins."""

    def returned(self, call: ServerCall) -> bytes:
        """The same call has its result. No other one began in between."""

    def cite(self, index: int, citations: Sequence[Citation]) -> None:
        """The text of the open part `index`, which ends now, names these pages."""


class ServerTools(Protocol):
    """The tools that the gateway runs.

    most  how often each may be called for one request, by kind
    """

    @property
    def most(self) -> Mapping[KindOfServerTool, int]: ...
    async def run(self, call: ServerCall) -> None:
        """Gives the call its pages, or the error. Needs an asyncio task. Never raises."""


class StreamReader(Protocol):
    """One worker's stream to canonical events. After `eof()` the events have ended with End or Failed.

    buffered_bytes  as in StreamWriter; the incomplete frame is not counted, because it has a bound of its own
    """

    @property
    def buffered_bytes(self) -> int: ...
    def feed(self, block: bytes) -> Iterable[Event]: ...
    def eof(self) -> Iterable[Event]: ...


class SocketWire(Protocol):
    """The messages of a dialect's web sockets.

    A client's message is a request, read as the body of a POST whose reply is streamed. Requests of one lane, by the
    client's name for it ("" without one), are answered one after the other.
    """

    def lane(self, message: bytes) -> str:
        """The lane of a message, whatever else is wrong with that. Takes time for a large one."""

    def events(self, frames: list[bytes], lane: str) -> list[bytes]:
        """The messages for whole frames of the streamed reply."""

    def refusal(self, status: int, headers: Headers, body: bytes, lane: str) -> bytes:
        """The message for a reply that is not streamed: an error."""


class Passthrough(Protocol):
    """The passthrough lane of a dialect, for backends that answer in its clients' own wire."""

    def lane(self, op: Generate, text: SentText = NO_TEXT) -> Lane: ...
    def whole(self, response: Response, op: Generate | Embed) -> tuple[Response, Usage | None]:
        """A buffered reply and its usage. Raises GatewayError when the worker's body is not what it should be."""

    def media_lane(self, op: Media, headers: Headers) -> Lane | None:
        """The lane for a worker's 200 with these headers; None if it must be read whole. Raises GatewayError(UPSTREAM)
        if it is not what was asked for."""

    def media_whole(self, response: Response, op: Media) -> tuple[Response, Usage]:
        """As `whole`."""

    def media_events(self, response: Response, op: Media) -> bytes:
        """A reply of `media_whole` as the events that end a stream."""

    def finishes(self, response: Response) -> list[str]:
        """Why the choices of a buffered reply that `whole` returned ended, in their order."""


class Dialect(Protocol):
    """One client-side API.

    name      as in configuration
    prefixes  path prefixes; configuration may replace them
    extras    the handling of fields that are not in `fields`; configuration may replace it
    routes    relative to each prefix
    fields    the handling of each field, per operation ("chat", "complete", "embed", "count", "rerank", "score",
              "tokenize", "detokenize", and those of `core.messages.Work`)
    examples  the smallest requests that it accepts, per operation
    errors    Kind -> (status, type, code), for every Kind
    key_header  where its clients send their key: in `authorization` behind `Bearer`, in any other alone
    key_query   the parameter of the query in which they may send it instead, or b""
    limit_headers  the beginning of the names of its own headers about limits, whose resets are moments; b"" without any
    socket    the messages of its web sockets, None without any
    lists     the name of the route that lists the models, if it has one
    lone_errors  its clients see the error of a failed stream only if no text comes with it in one read
    passthrough  its passthrough lanes, by the wire (`Backend.reply_wire`) that each relays; most dialects have none
    """

    name: str
    prefixes: tuple[str, ...]
    extras: ExtrasPolicy
    routes: tuple[Route, ...]
    fields: Mapping[str, Sequence[Field]]
    examples: Examples
    errors: Mapping[Kind, tuple[int, str, str]]
    key_header: bytes = b"authorization"
    key_query: bytes = b""
    limit_headers: bytes = b""
    socket: SocketWire | None = None
    lists: str = "models"
    lone_errors: bool = False
    passthrough: Mapping[str, Passthrough] = {}

    def read(self, request: Request) -> Op | ListModels | AnsweredFromStore:
        """Raises GatewayError (blame CLIENT) for whatever is wrong with the request."""

    def write(self, reply: WholeReply, op: Op) -> Response: ...
    def writer(self, op: Generate) -> StreamWriter: ...
    def refuse(self, error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
        """(the reply to the client, the code for the record). The code is this API's own if it has a finer one than
        `error`. Does not change `error`."""
