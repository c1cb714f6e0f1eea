"""The interfaces between packages: what a dialect, a backend, a lane, a transport must offer.

The pipeline names only these. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Event
from gateway.core.fields import Examples, ExtrasPolicy, Field
from gateway.core.http import Headers, Request, Response, Route
from gateway.core.lifecycle import Embeddings, WholeReply
from gateway.core.messages import Embed, Generate, ListModels, Op
from gateway.core.usage import Usage


class Capabilities(Struct, frozen=True):
    """What one model's workers can do, as its configuration declares it or its workers advertise.

    upstream_model  the name the workers know it by
    max_context     tokens, or None when unknown
    features        optional abilities: tools, vision, audio, reasoning, json_schema, regex, beams, embeddings, ...;
                    None when nothing was declared (then nothing is refused beforehand)
    lacks           those that a worker says it has not, whatever was declared
    beyond          abilities that only some engines have, and that every worker says it has: nothing of the kind is
                    sent without
    version         the oldest of the workers' engines, its numbers; () when unknown
    """

    upstream_model: str
    max_context: int | None = None
    features: frozenset[str] | None = None
    lacks: frozenset[str] = frozenset()
    beyond: frozenset[str] = frozenset()
    version: tuple[int, ...] = ()


class Facts(Struct, frozen=True):
    """What a worker says of itself; None and absent keys are unknown. max_model_len is its context in tokens."""

    version: str | None = None
    max_model_len: int | None = None
    abilities: dict[str, bool] = {}


UNKNOWN = Facts()


class Settings(Struct, frozen=True):
    """What configuration may change about a dialect. None leaves it as the dialect has it."""

    prefixes: tuple[str, ...] | None = None
    extras: ExtrasPolicy | None = None
    api_version: str | None = None


class Lane(Protocol):
    """Turns one worker's streamed bytes into one client's bytes, without I/O. May return b"" when nothing is due.

    done       the worker's terminal mark was seen: the reply is complete
    error      why the reply will never be complete; set at most once, after which nothing more is fed
    usage      the last usage the worker reported
    produced   output deltas seen so far: a lower bound of output tokens when the stream is cut
    clean_end  whether this client's wire has an orderly end after an error; if not, the connection is to be cut
    """

    done: bool
    error: GatewayError | None
    usage: Usage | None
    produced: int

    @property
    def clean_end(self) -> bool: ...
    @property
    def headers(self) -> Headers:
        """Those of the streamed reply, its content type among them."""
        ...

    def feed(self, block: bytes) -> bytes: ...
    def eof(self) -> bytes:
        """The worker's body has ended. Sets `error` unless `done`. Returns what the client is still to be sent."""
        ...

    def fail(self, error: GatewayError) -> bytes:
        """A failure from elsewhere (deadline, lost connection, shutdown). Returns the error in the client's
        own form."""
        ...

    def keepalive(self) -> bytes:
        """Bytes that every reader of this wire ignores, or b"" where there are none."""
        ...


class StreamWriter(Protocol):
    """Canonical events to one client's stream.

    buffered_bytes  about how many bytes of the reply the writer keeps in memory, for a last event that repeats all of
                    it; the caller bounds them
    """

    headers: Headers
    clean_end: bool

    @property
    def buffered_bytes(self) -> int: ...
    def write(self, event: Event) -> bytes: ...
    def keepalive(self) -> bytes: ...


class StreamReader(Protocol):
    """One worker's stream to canonical events. After `eof()` the events have ended with End or Failed.

    buffered_bytes  as a StreamWriter's, without the frame that is being read, which has a bound of its own
    """

    @property
    def buffered_bytes(self) -> int: ...
    def feed(self, block: bytes) -> Iterable[Event]: ...
    def eof(self) -> Iterable[Event]: ...


class Passthrough(Protocol):
    """The bytes lane of a dialect, for backends that answer in its clients' own wire."""

    def lane(self, op: Generate) -> Lane: ...
    def whole(self, response: Response, op: Generate | Embed) -> tuple[Response, Usage | None]:
        """A buffered reply and its usage. Raises GatewayError when the worker's body is not what it should be."""
        ...


class Dialect(Protocol):
    """One client-side API.

    name      as in configuration
    prefixes  path prefixes: its own, unless configuration has others
    extras    what becomes of fields that `fields` does not have: its own, unless configuration says otherwise
    routes    relative to each prefix
    fields    what becomes of each field, per operation ("chat", "complete", "embed", "count")
    examples  the least requests that it reads, per operation
    errors    Kind -> (status, type, code); total
    passthrough  the bytes lanes it has, by the wire (`Backend.wire_of`) that each relays; mostly none
    """

    name: str
    prefixes: tuple[str, ...]
    extras: ExtrasPolicy
    routes: tuple[Route, ...]
    fields: Mapping[str, Sequence[Field]]
    examples: Examples
    errors: Mapping[Kind, tuple[int, str, str]]
    passthrough: Mapping[str, Passthrough]

    def read(self, request: Request) -> Op | ListModels:
        """Raises GatewayError (blame CLIENT) for whatever is wrong with the request."""
        ...

    def write(self, reply: WholeReply, op: Op) -> Response: ...
    def writer(self, op: Generate) -> StreamWriter: ...
    def refuse(self, error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
        """The answer, and the code of what happened, as it is recorded: this API's own where it knows better than
        `error`, which stays as it is."""
        ...


class Counting(Struct, frozen=True):
    """The question to a worker how many tokens a prompt has. `read` finds the number in the answer, whatever its
    status, or raises GatewayError: UNSUPPORTED where this worker, against expectation, cannot tell."""

    request: Request
    read: Callable[[Response], int]


class Backend(Protocol):
    """One worker-side API.

    name        as in configuration
    salts       its workers can be told `op.salt`
    facts_path  where a worker says what it can do (`facts` reads the answer); None where it does not
    """

    name: str
    salts: bool
    facts_path: str | None

    def wire_of(self, op: Op) -> str:
        """The wire that `op` is answered in. A dialect with a bytes lane for it passes those bytes on."""
        ...

    def write(self, op: Op, can: Capabilities) -> Request:
        """The worker's request. Its `dropped` names what it leaves out, such as `op.unnamed`. Raises GatewayError
        (UNSUPPORTED), naming what the worker cannot do."""
        ...

    def count(self, op: Generate, can: Capabilities) -> Counting:
        """The question how long the one prompt of `op` is, as the worker will read it. Raises GatewayError
        (UNSUPPORTED), naming the total if `op` has one, where this worker cannot tell or cannot obey it."""
        ...

    def read(self, response: Response, op: Generate) -> Iterator[Event]:
        """A buffered 2xx reply. Ends with End or Failed."""
        ...

    def read_embeddings(self, response: Response, op: Embed) -> Embeddings: ...
    def reader(self, op: Generate) -> StreamReader: ...
    def fault(self, response: Response) -> GatewayError:
        """What a non-2xx answer means."""
        ...

    def facts(self, body: bytes, model: str) -> Facts:
        """What the answer at `facts_path` says of the model that the worker calls `model`.

        Raises GatewayError(UPSTREAM) when it is no such answer."""
        ...


class Deadlines(Struct, frozen=True):
    """Seconds that may pass: until connected, until the first byte of the response head, between blocks of the body."""

    connect: float = 2.0
    first_byte: float = 600.0
    idle: float = 300.0


class BodySink(Protocol):
    """Receives a response body as it arrives."""

    def block(self, data: bytes) -> None: ...
    def finished(self, error: GatewayError | None) -> None:
        """Called exactly once, after the last block. error is None when the body was whole by its own framing."""
        ...


class Exchange(Protocol):
    """One response under way. Read it by `read`/`body` (pull) or by `pipe` (push), never both."""

    status: int
    headers: Headers

    async def read(self) -> bytes:
        """The next block; b"" once the body is whole. Raises GatewayError (UPSTREAM, TRUNCATED, TIMEOUT)."""
        ...

    async def body(self, limit: int) -> bytes:
        """The whole body; raises GatewayError(UPSTREAM) over `limit` bytes."""
        ...

    def pipe(self, sink: BodySink) -> None:
        """From now on every block goes to `sink`, those already buffered first. It is called in the event loop."""
        ...

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None:
        """Gives the connection back if the response is whole, else closes it at once. Idempotent."""
        ...


class Transport(Protocol):
    async def send(self, request: Request, address: str, deadlines: Deadlines) -> Exchange:
        """Sends to the worker at `address` (scheme://host:port[/base]) and waits for the response head.

        Raises GatewayError: UPSTREAM (refused, reset, malformed), TIMEOUT. Cancelling it closes the connection.
        """
        ...

    async def close(self) -> None: ...


class WorkerHandle(Protocol):
    """One worker, as the pipeline sees it.

    generation  of the worker's breaker: to be noted when a request begins, and told to the pool with what became of it
    half_open   the worker was ejected and may return: the pool is to be told (`answered`) when the reply begins
    """

    address: str

    @property
    def generation(self) -> int: ...
    @property
    def half_open(self) -> bool: ...


class Pool(Protocol):
    """The workers of one model; `gateway.fleet` has the one implementation."""

    @property
    def ready(self) -> bool: ...
    async def acquire(self, exclude: Sequence[Any], priority: int) -> Any:
        """A `WorkerHandle` that is not in `exclude`, to be given back by `release`. Higher priority waits less. Raises
        GatewayError (NO_WORKER, OVERLOADED)."""
        ...

    def lend(self, exclude: Sequence[Any]) -> Any:
        """A `WorkerHandle` that is not in `exclude`, for a question that generates nothing: nobody waits for it, and it
        takes no generation's place. It is not given back. Raises GatewayError (NO_WORKER)."""
        ...

    def release(self, worker: Any) -> None: ...
    def answered(self, worker: Any, generation: int) -> None:
        """The reply has begun. Only to be told of a worker that is half open."""
        ...

    def succeeded(self, worker: Any, generation: int) -> None:
        """The reply is whole."""
        ...

    def failed(self, worker: Any, generation: int, error: GatewayError) -> None:
        """The attempt ended with `error`. The pool decides by its blame whether it counts against the worker."""
        ...

    def abandoned(self, worker: Any, generation: int) -> None:
        """The request ended in a way that says nothing about the worker: its client left, or a bug of ours."""
        ...


class Downstream(Protocol):
    """One client connection while one request runs on it: what a handler may do with it beyond plain ASGI.

    The gateway's own server puts it into the request's ASGI scope. It is for HTTP/1.1 connections. A handler that
    ignores it gets plain ASGI.

    gone       the client has left, or the server has ended the connection
    id         the handler's id of the request, for the server's own refusals; set by the handler
    refused    (status, code) if the server itself answered, because the body was malformed or late; else None
    on_gone    set by the handler; called at most once, when the client leaves before the response is complete
    on_pause   set by the handler; called when the client reads more slowly than the handler writes
    on_resume  set by the handler; called when the client has caught up
    """

    gone: bool
    id: str
    refused: tuple[int, str] | None
    on_gone: Callable[[], None] | None
    on_pause: Callable[[], None] | None
    on_resume: Callable[[], None] | None

    @property
    def paused(self) -> bool:
        """Whether the client reads too slowly now: `on_pause` was due and `on_resume` is not yet."""
        ...

    def body(self) -> bytes | None:
        """The whole request body if all of it is here, else None: then receive it by ASGI. Call it once."""
        ...

    def write(self, data: bytes) -> None:
        """Sends one block, not empty, of a chunked response whose head was sent by ASGI, at the end of this turn of the
        event loop."""
        ...

    def flush(self) -> None:
        """Sends what was written now, instead of at the end of the turn."""
        ...

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Sends a whole response. Its content-length is added. Raises ValueError when a header holds a line ending."""
        ...

    def cut(self) -> None:
        """Sends what was written, then ends the connection so that the client can tell that the reply is not whole."""
        ...

    def release(self) -> None:
        """The handler is done with it. To be called once, at the end."""
        ...


class RequestRecord(Struct):
    """What became of one request: for the log, the metrics and accounting. Never holds text of a prompt or a reply.

    status    that the client saw; 0 for none
    outcome   ok | refused (a 4xx, ours or the worker's) | failed | cancelled (the client left)
    ms        milliseconds from begin to end
    queue_ms  of these, the wait for a worker
    upstream_ms  of these, the time with workers: from sending until the reply, or the attempt, had ended
    ttft_ms   milliseconds to the first output of a stream
    attempts  how many times a worker was picked for it
    limit     the name of the limit that refused it
    phase     what a client that left was waiting for: reading | queued | first_output | streaming; else None
    trace     the id of its trace, if it is sampled
    time      Unix seconds at the end
    """

    id: str
    dialect: str
    operation: str = ""
    model: str = ""
    key: str = ""
    team: str | None = None
    stream: bool = False
    status: int = 0
    outcome: str = "ok"
    code: str | None = None
    ms: float = 0.0
    queue_ms: float = 0.0
    upstream_ms: float = 0.0
    ttft_ms: float | None = None
    attempts: int = 0
    worker: str | None = None
    usage: Usage | None = None
    limit: str | None = None
    dropped: tuple[str, ...] = ()
    phase: str | None = None
    trace: str | None = None
    time: float = 0.0
    level: str = "info"
    event: str = "request"


class Permit(Protocol):
    """What an admitted request has charged on its limits."""

    def settle(self, record: RequestRecord) -> None:
        """Corrects the charge to what `record` says became of the request, and gives its slots back. To be called on
        every exit. Only the first call counts."""
        ...


class Gate(Protocol):
    """The limits that a request must pass before it is sent to a worker."""

    async def admit(
        self, record: RequestRecord, op: Op, max_context: int | None, scope: Any, headers: Headers
    ) -> Permit | None:
        """Admits the request of the key, team and model in `record`, and charges it. Raises GatewayError, and charges
        nothing, if a limit refuses it.

        In both cases it adds the reply's headers about limits to `headers`. scope is the request's ASGI scope.
        """
        ...


class RequestTrace(Protocol):
    """The spans of one request under way, in a trace as W3C's Trace Context has it.

    id  the trace's, 32 hexadecimal digits, if the request is sampled; else None
    """

    @property
    def id(self) -> str | None: ...
    def waiting(self) -> None:
        """It begins to wait for a worker."""
        ...

    def sending(self, worker: str, attempt: int) -> Headers:
        """It goes to `worker` now. Returns the headers that tell the worker of the trace."""
        ...

    def first_output(self, ago_s: float) -> None:
        """The attempt's first output came `ago_s` seconds ago."""
        ...

    def attempt_ended(self, error: GatewayError | None) -> None: ...
    def finished(self, record: RequestRecord) -> None:
        """The request is over. To be called once, on every exit."""
        ...


class Tracer(Protocol):
    """Makes the spans of requests."""

    def begin(self, context: Headers) -> RequestTrace:
        """A request begins; `context` is what `core.trace_context` found in its headers."""
        ...


class Observer(Protocol):
    """Is told of every request's begin and end, of retries, and of bugs."""

    def begun(self, dialect: str) -> None: ...
    def finished(self, record: RequestRecord) -> None: ...
    def retried(self, model: str, worker: str, error: GatewayError) -> None: ...
    def bug(self, record: RequestRecord, error: BaseException) -> None: ...
