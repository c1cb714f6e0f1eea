"""One request of an operator, through the gateway's own kernel, with the wire of both sides shown.

The request runs in this process as if a client had sent it: the same routes, keys, limits, retries, log record and
metrics. Only the transport to the workers is wrapped, so that what really goes there and comes back can be shown. A
request may also be only translated, as `dragoman translate` does it: then no worker is sent anything.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gateway.auth import ANONYMOUS
from gateway.core.errors import GatewayError
from gateway.core.fields import WORDS
from gateway.core.http import JSON_TYPE, Headers, Request, header_value
from gateway.core.messages import Op
from gateway.core.ports import BodySink, Deadlines, Dialect, Exchange, Transport
from gateway.features import Police
from gateway.features.console.guard import Denied
from gateway.features.console.transcript import Transcript
from gateway.kernel import Application, Runtime, ServedModel
from gateway.kernel.internal_request import InternalRequest, scope_of
from gateway.kernel.outgoing import Finish
from gateway.kernel.runtime import Callers
from gateway.translation import offline

MOST_BYTES = 262144
"""Most bytes that the page sends for one request: its body and the JSON around it."""
LONGEST_S = 600.0
"""After this long the request ends as if its client had left."""
_LONGEST_TEXT = 2048
# An encoded slash separates nothing: the server leaves these as they are, too (core.http.path_parameter).
_LEFT_ENCODED = re.compile(r"(%2[Ff]|%25)")


class Asked(Struct, forbid_unknown_fields=True):
    """A request of the page.

    path    as clients call it, percent-encoded
    query   without "?"
    key     the client's key, "" for none
    model   whose workers a translation is for; a request that is sent names its model itself
    send    False to translate only
    """

    path: str
    body: str
    query: str = ""
    key: str = ""
    model: str = ""
    send: bool = True

    def headers(self, key_header: bytes) -> Headers:
        """Those that a client of the request would send; key_header is where its API's clients send their key."""
        if not self.key:
            return [JSON_TYPE]
        key = self.key.encode()
        return [JSON_TYPE, (key_header, b"Bearer " + key if key_header == b"authorization" else key)]

    def __post_init__(self) -> None:
        if not self.path.startswith("/") or not _is_line(self.path) or set(self.path) & set("?#"):
            raise ValueError("path must begin with / and hold no ? or #")
        if not _is_line(self.query) or "#" in self.query:
            raise ValueError("query must be printable ASCII")
        if not _is_line(self.key):
            raise ValueError("key must be printable ASCII")


_PARAMETER = re.compile(r"\{\w+(:path)?\}")


def _is_line(text: str) -> bool:
    return len(text) <= _LONGEST_TEXT and text.isascii() and (not text or text.isprintable()) and " " not in text


class Way(Struct, frozen=True):
    """How clients send one operation: a start for the page.

    path     `{model}` stands for the model's name, where the path holds it
    body     the least body; `words` stands for the prompt in it
    streams  when the reply is a stream: "asked" by the member `stream`, "always" or "never"
    model    the body's member that names the model, "" where the body has none
    key_header  as in core.ports.Dialect
    """

    dialect: str
    operation: str
    path: str
    query: str
    body: Mapping[str, Any]
    words: str
    streams: str
    model: str
    key_header: str


def ways(dialects: Mapping[str, tuple[Dialect, str]]) -> Iterator[Way]:
    """Every way to call `dialects`, which come by path: the dialect there and its route's name."""
    for path, (dialect, route) in dialects.items():
        for operation, examples in dialect.examples.items():
            named = [one.name for one in dialect.fields[operation] if one.names_model and one.where == "body"]
            for example in examples:
                if example.route == route and not example.files:
                    yield Way(
                        dialect.name,
                        operation,
                        _with_model(path),
                        example.query.decode(),
                        example.body,
                        WORDS,
                        example.streams,
                        named[0] if named else "",
                        dialect.key_header.decode(),
                    )


def _with_model(path: str) -> str:
    """Starlette's path with a model's name for each of its parameters: for the others any text will do."""
    return _PARAMETER.sub("{model}", path)


def at(path: str, dialects: Mapping[str, tuple[Dialect, str]]) -> tuple[Dialect, str] | None:
    """The dialect and route at `path`, which a client calls; None where there is none."""
    if path in dialects:
        return dialects[path]
    for known, found in dialects.items():
        before, model, more = _with_model(known).partition("{model}")
        after = more.rpartition("{model}")[2]
        if model and path.startswith(before) and path.endswith(after) and len(path) > len(before) + len(after):
            return found
    return None


async def play(
    asked: Asked,
    key_header: bytes,
    runtime: Runtime,
    application: Callable[[Runtime], Application],
    client: Any,
    transcript: Transcript,
    request: InternalRequest,
) -> None:
    """Runs the request as a client's, and fills `transcript`. client: as in the scope of the page's request. request
    has the body."""
    watched = _watched(runtime, transcript)
    whole = begun = False

    async def send(message: Mapping[str, Any]) -> None:
        nonlocal whole, begun
        if message["type"] == "http.response.start":
            begun = True
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
            transcript.head("client", message["status"], headers)
        else:
            transcript.data("client", message["body"])
            whole = not message.get("more_body", False)

    path = "".join(part.upper() if at % 2 else unquote(part) for at, part in enumerate(_LEFT_ENCODED.split(asked.path)))
    scope = scope_of(path, asked.headers(key_header), asked.path.encode(), asked.query.encode(), client)
    await application(watched)(scope, request.receive, send)
    if begun:
        transcript.end("client", "" if whole else "cut off: the reply is not whole")
    else:
        transcript.end("client", "ended without a reply")


def translated(
    asked: Asked,
    dialect: Dialect,
    route: str,
    served: ServedModel,
    callers: Callers,
    police: Police | None,
    transcript: Transcript,
) -> None:
    """Shows the request that the model's workers would get, or the dialect's refusal. police: the policies on requests
    for the model, which hold for the key that is named, or for nobody's."""
    headers = asked.headers(dialect.key_header)
    finish: Finish | None = None

    def change(op: Op) -> None:
        nonlocal finish
        if police is not None:
            caller = callers.identify(headers, dialect.name, None).principal if asked.key else ANONYMOUS
            finish = police(op, caller, headers)

    try:
        request, op = offline.read(dialect, asked.body.encode(), route=route, query=asked.query.encode())
        crossing = offline.cross(dialect, request, op, served.backend, served.can, change)
    except offline.Refused as refused:
        response = refused.response
        transcript.head("client", response.status, _shown(response.headers))
        transcript.data("client", response.body)
        transcript.end("client")
        return
    for written in (crossing.first, crossing.outgoing):
        if written is not None:
            if finish is not None:
                finish(written)
            transcript.request("", written.method, written.path, written.body)
    transcript.end("worker")


# -- the transport, watched -------------------------------------------------------------------------------------------


def _watched(runtime: Runtime, transcript: Transcript) -> Runtime:
    """`runtime`, with transports that note in `transcript` what passes. The salt of the caller's cache is not shown."""
    copies: dict[int, ServedModel] = {}
    for served in runtime.models.values():
        if id(served) not in copies:
            copies[id(served)] = replace(served, transport=_Watched(served.transport, transcript))

    def identify(headers: Headers, dialect: str, scope: Any) -> Any:
        pending = runtime.callers.identify(headers, dialect, None)  # no key by the operator's network
        if pending.principal.salt is not None:
            transcript.secrets.append(pending.principal.salt.encode())
        return replace(pending, lasting=False)  # keys change in `runtime` alone

    def confirm(caller: Any, headers: Headers, dialect: str) -> Any:
        return runtime.callers.confirm(caller, headers, dialect)

    def may_use(caller: Any, model: str) -> bool:
        return runtime.callers.may_use(caller, model)

    models = {name: copies[id(served)] for name, served in runtime.models.items()}
    return replace(runtime, models=models, callers=Callers(identify, confirm, may_use))


class _Watched:
    """A transport. Implements core.ports.Transport. Headers to workers are not shown: they may hold their keys."""

    def __init__(self, transport: Transport, transcript: Transcript) -> None:
        self._transport = transport
        self._transcript = transcript

    async def send(self, request: Request, address: str, deadlines: Deadlines) -> Exchange:
        transcript = self._transcript
        transcript.request(address, request.method, request.path, request.body)
        try:
            exchange = await self._transport.send(request, address, deadlines)
        except GatewayError as error:
            transcript.end("worker", error.message)
            raise
        transcript.head("worker", exchange.status, _shown(exchange.headers))
        return _WatchedExchange(exchange, transcript)

    async def close(self) -> None:
        """The transport is the gateway's and stays open."""


def _shown(headers: Headers) -> list[tuple[str, str]]:
    kind = header_value(headers, b"content-type")
    return [("content-type", kind.decode("latin-1"))] if kind is not None else []


class _WatchedExchange:
    """Implements core.ports.Exchange, and BodySink between the exchange and the kernel's own sink."""

    _sink: BodySink

    def __init__(self, exchange: Exchange, transcript: Transcript) -> None:
        self._exchange = exchange
        self._transcript = transcript
        self.status = exchange.status
        self.headers = exchange.headers
        self.pause = exchange.pause
        self.resume = exchange.resume
        self._ended = False

    async def read(self) -> bytes:
        block = await self._noted(self._exchange.read())
        if not block:
            self._end()
        return block

    async def body(self, limit: int) -> bytes:
        body = await self._noted(self._exchange.body(limit))
        self._end()
        return body

    async def _noted(self, reading: Awaitable[bytes]) -> bytes:
        try:
            data = await reading
        except GatewayError as error:
            self._end(error.message)
            raise
        if data:
            self._transcript.data("worker", data)
        return data

    def pipe(self, sink: BodySink) -> None:
        self._sink = sink
        self._exchange.pipe(self)

    def block(self, data: bytes) -> None:
        self._transcript.data("worker", data)
        self._sink.block(data)

    def finished(self, error: GatewayError | None) -> None:
        self._end(error.message if error is not None else "")
        self._sink.finished(error)

    def close(self) -> None:
        self._exchange.close()
        self._end("closed by the gateway")

    def _end(self, why: str = "") -> None:
        if not self._ended:
            self._ended = True
            self._transcript.end("worker", why)


def asked_for(body: bytes) -> Asked:
    """The request in the page's body. Raises Denied if it is not one."""
    try:
        return msgspec.json.decode(body, type=Asked)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Denied(400, str(error)) from None
