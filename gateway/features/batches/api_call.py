"""The calls of the APIs of files and batches: requests that no model answers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, BinaryIO, TypeVar
from urllib.parse import parse_qs

import msgspec

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import JSON_TYPE, Headers, Response, Route
from gateway.core.ports import Dialect
from gateway.features.batches.state import Full
from gateway.features.batches.storage import aside, blocks
from gateway.kernel import Endpoint, Runtime
from gateway.kernel.bodies import Blocks
from gateway.kernel.call import Call
from gateway.kernel.reading import coding_of_body, identify, no_route
from gateway.kernel.way import OWN, Way
from gateway.light_task import become_task

T = TypeVar("T")

_MOST_BODY = 1 << 20
_encode = msgspec.json.Encoder().encode
_FULL = {
    "files": ("too_many_files", "there are as many files as you may have: delete some"),
    "bytes": ("too_many_bytes", "your files and running batches have as many bytes as they may have: delete files"),
    "kept": ("too_many_kept_batches", "there are as many batches as are kept for you, with those that have ended"),
    "batches": ("too_many_batches", "as many batches as you may have at once have not ended"),
}
_ID = re.compile(r"(file-|batch_|msgbatch_)[0-9a-f]{28}\Z")

Answer = Callable[["ApiCall"], Awaitable[None]]


class ApiCall:
    """One call of these APIs. call: the request; principal: who calls."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.principal = call.principal
        self.request = call.request
        self.runtime = call.runtime

    @property
    def token_models(self) -> tuple[str, ...] | None:
        """The models that a token names, if the caller has shown one: keys are looked up again."""
        models = self.principal.models
        return tuple(sorted(models)) if models is not None and self.principal.key.startswith("jwt:") else None

    # -- what is asked ----------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The id in the path. Raises GatewayError(NO_ROUTE) for one that nothing can have."""
        found = next(iter(self.request.params.values()))
        if not _ID.match(found):
            raise self.missing()
        return found

    def missing(self) -> GatewayError:
        """There is nothing of this id, or it belongs to another tenant."""
        found = next(iter(self.request.params.values()))[:80]
        return GatewayError(Kind.NO_ROUTE, f"there is nothing with the id '{found}'", param="id", code="not_found")

    def asked(self, name: str) -> str | None:
        """A parameter of the query."""
        found = parse_qs(self.request.query.decode("latin-1")).get(name)
        return found[-1] if found else None

    def asked_count(self, name: str, most: int, default: int) -> int:
        text = self.asked(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= most or len(text) > 9:
            raise GatewayError(Kind.BAD_REQUEST, f"'{name}' must be a number from 1 to {most}", param=name)
        return int(text)

    @property
    def announced(self) -> int:
        """The bytes that the body has by its head, 0 if that does not say so."""
        return 0 if coding_of_body(self.call) is not None else int(self.request.header(b"content-length") or 0)

    async def body(self, most: int) -> AsyncIterator[bytes]:
        """The body as it comes, expanded. Raises GatewayError: TOO_LARGE beyond `most` bytes, CLIENT_GONE, and others
        for one that is compressed."""
        call = self.call
        body = Blocks(call.client, call.request.headers, coding_of_body(call), most, call.hold_expanded)
        while (block := await body.next()) is not None:
            yield block
        call.client.watch(call.left)

    async def json(self, type_: type[T]) -> T:
        """The body. Raises GatewayError for another one than `type_` describes."""
        found = b"".join([block async for block in self.body(_MOST_BODY)])
        try:
            return msgspec.json.decode(found, type=type_)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise GatewayError(Kind.BAD_REQUEST, f"the request body is not valid: {error}") from None

    # -- what is answered -------------------------------------------------------------------------------------------

    async def respond(self, value: Any) -> None:
        await self.call.reply.respond(Response(200, [JSON_TYPE], _encode(value)))

    async def respond_file(self, file: BinaryIO, size: int, headers: Headers) -> None:
        """Sends what is left of `file`, `size` bytes, as fast as the client reads."""
        call = self.call
        call.client.watch(call.left)
        call.record.status = 200
        length = (b"content-length", b"%d" % size)
        await call.client.start(200, [*headers, length, *call.reply.headers, *self.request.reply])
        reading, more = blocks(file), True
        while more:
            block = await aside(next, reading, b"")
            size -= len(block)
            more = size > 0 and block != b""  # said with the last byte, on which a client may leave
            await call.client.send_block(block, more)


class ApiEndpoint(Endpoint):
    """One path of such an API. answers: by the names of its routes."""

    def __init__(
        self, runtime: Runtime, dialect: Dialect, routes: Mapping[str, Route], answers: Mapping[str, Answer]
    ) -> None:
        super().__init__(runtime, dialect, routes, None)
        self.answers = answers
        self.way = Way(runtime.way.features, {**OWN, "read": self._read, "receive": _nothing})

    async def _read(self, call: Call) -> None:
        """The innermost `read`."""
        call.pending = pending = identify(call)
        if call.route is None:
            raise no_route(call)
        call.record.operation = call.route.name
        if pending.prove is not None:  # the signature covers a body that is never whole in memory
            message = "files and batches need an API key: a signed request cannot ask for them"
            raise GatewayError(Kind.FORBIDDEN, message, code="signature_not_allowed")
        call.principal = pending.principal
        await become_task()
        await call.way.receive(call)
        await call.admit_early()
        try:
            await self.answers[call.request.route](ApiCall(call))
        except Full as full:
            code, message = _FULL[full.what]
            raise GatewayError(Kind.LIMITED, message, code=code) from None
        except OSError as error:
            message = "the store of files cannot be used now"
            refusal = GatewayError(Kind.OVERLOADED, message, code="store_unavailable", retry_after=5.0)
            raise refusal from error


async def _nothing(call: Call) -> None:
    """The innermost `receive`: answers read the body themselves."""
