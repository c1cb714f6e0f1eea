"""HTTP messages as plain values: what a dialect reads and writes, and what a backend writes and reads.

No framework and no socket. Header names are lower-case bytes, as ASGI and httptools give them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct, field

from gateway.core.sealing import Sealing
from gateway.core.upload import Body, Form

Headers = list[tuple[bytes, bytes]]

NO_PARAMS: Mapping[str, str] = MappingProxyType({})


def header_value(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """The first value of `name` (lower-case) in `headers`, or None."""
    for key, value in headers:
        if key == name:
            return value
    return None


def header_list(headers: Headers, name: bytes) -> bytes | None:
    """The value of `name` (lower-case), a list: all of its lines are one (RFC 9110, section 5.3). None without one."""
    lines = [value for key, value in headers if key == name]
    return b", ".join(lines) if lines else None


def path_parameter(value: str) -> str:
    """A path parameter as the server's paths have it, decoded to the end: they leave `%2F` and `%25` encoded."""
    return value.replace("%2F", "/").replace("%25", "%")


class HeadCache(Struct):
    """Facts that the head of a request alone gives. Requests whose heads are equal but for Content-Length share it.

    request_id  the client's own id of the request; None without one, and while `context` is None
    context     the headers of the client's trace; None before they were read
    caller      who calls, by the room that found it out
    uncoded     the body has no content coding
    json        the content type is JSON
    names       of its headers
    """

    request_id: str | None = None
    context: Headers | None = None
    caller: object = None
    uncoded: bool = False
    json: bool = False
    names: frozenset[bytes] = frozenset()


class Request(Struct):
    """One HTTP request, from a client or to a worker.

    path     decoded path, without the dialect's prefix on the client's side, absolute on the worker's
    route    on the client's side the name of the dialect's route that matched, else ""
    params   path parameters of that route, decoded
    query    raw query string without "?"
    body     the whole body; b"" where `form` or `upload` has it
    form     on the client's side the parts of an upload
    upload   on the worker's side a body that is too large to be in memory
    id       on the client's side the id that the gateway gave this request
    head     on the client's side what was learnt from the head alone
    reply    on the client's side the dialect's headers for any reply: whole, streamed or an error. Its `read` and
             `refuse` may set them
    stored on the client's side what is stored for this caller under the names that the dialect's `read` asked for
             (`NeedsStored`), None for a name that is not there; None where nothing is stored
    lasts    on the client's side what is stored outlasts the connection
    message  on the client's side it is a message of a web socket
    sealing  on the client's side gives what the caller's texts are sealed by; None while the caller is not known
    dropped  on the worker's side the names of what the client asked for and this request does not carry
    """

    method: str
    path: str
    headers: Headers = []
    body: bytes = b""
    query: bytes = b""
    route: str = ""
    params: Mapping[str, str] = NO_PARAMS
    id: str = ""
    head: HeadCache = field(default_factory=HeadCache)
    reply: Sequence[tuple[bytes, bytes]] = ()
    stored: Mapping[str, bytes | None] | None = None
    sealing: Callable[[], Sealing] | None = None
    dropped: tuple[str, ...] = ()
    lasts: bool = True
    message: bool = False
    form: Form | None = None
    upload: Body | None = None

    def header(self, name: bytes) -> bytes | None:
        """The first value of `name` (lower-case), or None."""
        return header_value(self.headers, name)


class NeedsStored(Exception):
    """Raised by a dialect's `read`: the request refers to stored texts of these names. Call `read`
    again with those texts in `stored`."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(len(names))
        self.names = names


class Response(Struct):
    """One whole HTTP response, from a worker or to a client."""

    status: int
    headers: Headers = []
    body: bytes = b""

    def header(self, name: bytes) -> bytes | None:
        """The first value of `name` (lower-case), or None."""
        return header_value(self.headers, name)


class HeaderTest(Struct, frozen=True):
    """Separates the requests of one dialect from those of another one at the same path.

    name    of a header, lower-case, that a request must have
    begins  what its value must begin with, lower-case; b"" for any value
    """

    name: bytes
    begins: bytes = b""

    def passes(self, headers: Headers) -> bool:
        """Whether a request with these headers passes."""
        return any(name == self.name and value.strip().lower().startswith(self.begins) for name, value in headers)

    def __str__(self) -> str:
        name = self.name.decode()
        return f"{name}: {self.begins.decode()}..." if self.begins else name


class Route(Struct, frozen=True):
    """One path of a dialect, relative to its prefix.

    path      Starlette's path syntax: `/v1/models/{model:path}`
    name      what the dialect's `read` switches on
    absolute  the path is served as it is, without the dialect's prefixes
    open      needs no key, so its answer may hold only what everybody may know
    socket    a web socket may be opened here, whose messages are requests of the POST at this path
    form      the body is multipart/form-data, with files: it becomes `Request.form`
    when      which requests are meant, where another dialect has the same method and path; None: all that pass no
              other one's test
    """

    method: str
    path: str
    name: str
    absolute: bool = False
    open: bool = False
    socket: bool = False
    when: HeaderTest | None = None
    form: bool = False


JSON_TYPE = (b"content-type", b"application/json")

HEAD_CACHE = "dragoman.head"
"""A key of an ASGI scope: a `HeadCache`. It may be absent."""

REPLY_HEADERS = "dragoman.reply_headers"
"""A key of an ASGI scope: `Headers` that every reply to this request carries, whatever it is. It may be absent."""
