"""Bytes to requests: what is read of a client, under its limits, and the task that answers each request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from itertools import chain
from operator import itemgetter
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn import Config
from uvicorn.server import ServerState

from gateway.config import Listen
from gateway.core.ports import OpensSockets
from gateway.light_task import LightTask
from gateway.server.connection import BETWEEN, BODY, HEAD, LARGE_READ_BYTES, SKIPPED, ClientConnection, Turns
from gateway.server.cycle import RequestCycle
from gateway.server.known_head import LENGTH, KnownHead
from gateway.server.refusal import HttpError, RefusalHeaders
from gateway.server.slots import Slots

_NAME = itemgetter(0)
_ASGI = {"version": "3.0", "spec_version": "2.3"}
# Most bytes of heads and of chunked bodies that the parser gets at once: it cannot be stopped in between.
_PIECE_BYTES = 4096
# Pieces and body blocks that one connection has parsed in a turn of the loop, about a microsecond each.
_STEPS_A_TURN = 256
# Every head ends with this, and every chunked body, trailers or not.
_EMPTY_LINE = b"\r\n\r\n"
# A host and a port: no userinfo, and no way to write a path (RFC 9110, section 7.2). It may be empty in the header.
_AUTHORITY = rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]"
_HOST = re.compile(_AUTHORITY + rb"*")
_ABSOLUTE = re.compile(rb"https?://(" + _AUTHORITY + rb"+)(/[^?#]*)?(\?.*)?", re.IGNORECASE)
_LEFT_ENCODED = re.compile(r"(%2f|%25)", re.IGNORECASE)


class HttpProtocol(ClientConnection):
    """A connection that reads requests, with limits.

    The end of a message ends a parsed piece. So nothing of the next request is parsed while one is under way, however
    many requests a client sends at once. RFC 9112 says what is a request; the parser is llhttp's, strict.
    """

    __slots__ = ("_fruitless", "_known", "_line", "_resumed", "_socket", "_steps", "_tail", "_target", "parser")

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.parser: Any = None  # made when a head begins that is not known
        self._resumed = False  # the parser gets the framing again that is known
        self._target = b""
        self._line: bytes | None = None  # what has come of a request line that is not whole
        self._tail = b""  # the last bytes of a piece, which may begin an empty line
        self._fruitless = 0  # bytes since the parser last made something of them
        self._steps = 0
        self._known: KnownHead | None = None
        self._socket: Callable[[bytes], None] | None = None  # begins the web socket that the head asked for

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.parser = None  # it holds our bound methods: a cycle, which would wait for the collector

    def data_received(self, data: bytes) -> None:
        if len(data) >= LARGE_READ_BYTES:
            self._pause_a_turn()
        if self._discarding:
            self._ignore(len(data))
        elif self._unparsed:
            self._unparsed += data
        elif self._known is not None and self._begin_known(data, self._known):
            if self._reading and not self._pausing:
                return
        else:
            taken = self._parse(data)
            if taken < len(data):
                self._unparsed += data[taken:]
            elif self._part is BETWEEN and self._reading and not self._pausing:
                return
        self.steer_reading()

    def rest(self) -> None:
        if self._part is BETWEEN:
            self.parser = None  # a kilobyte
            self._unwatch()

    def take_turn(self) -> None:
        self._queued = False
        if not self._discarding and not self.transport.is_closing():
            taken = self._parse(self._unparsed)
            del self._unparsed[:taken]
            self.steer_reading()

    def _parse(self, data: bytes | bytearray) -> int:
        """Parses until the end of a message that must be answered first, or until this turn's share is used. Returns
        the number of bytes that need not be held."""
        at, size = 0, len(data)
        self._steps = 0
        try:
            while at < size and self._steps < _STEPS_A_TURN:
                self._steps += 1
                if self._part is BETWEEN:
                    if self.running is not None or self.write_paused:
                        break
                    at += self._skip_empty_lines(data, at)
                elif self._part is SKIPPED:
                    skipped = min(size - at, self._body_left)
                    at += skipped
                    self._body_left -= skipped
                    if not self._body_left:
                        self.parser = None  # it waits for that body
                        self._part = BETWEEN
                        self._deadline = self._body_since = 0.0
                else:
                    at += self._parse_piece(data, at)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, HttpError) else _not_http())
        except HttpError as refusal:
            self._refuse(refusal)
        except (httptools.HttpParserError, UnicodeDecodeError):
            self._refuse(_not_http())
        if self._discarding:
            self._ignore(size - at)
            return size
        if self._part is HEAD:
            if not self._deadline:
                self._watch(self.listen.header_timeout_s)
        elif self._part is not BETWEEN:
            self._watch_body(at)
        elif self.running is None and not self._deadline:
            self._become_idle()
        return at

    def _skip_empty_lines(self, data: bytes | bytearray, at: int) -> int:
        """Before a request line empty lines are ignored (RFC 9112, section 2.2). Returns how many bytes of them."""
        if data[at] not in b"\r\n":
            self._part = HEAD
            self._idle = False
            self._deadline = 0.0
            self._fruitless = 0
            self._line = b""
            self._tail = b""
            self._target = b""
            self.headers = []
            if self.parser is None:
                self.parser = httptools.HttpRequestParser(self)
            return 0
        piece = data[at : at + _PIECE_BYTES]
        skipped = len(piece) - len(piece.lstrip(b"\r\n"))
        self._fruitless += skipped
        if self._fruitless > self.listen.max_header_bytes:
            raise HttpError(400, "invalid_request", "there are only empty lines and no request")
        return skipped

    def _parse_piece(self, data: bytes | bytearray, at: int) -> int:
        """Parses some of a head or a body. Returns how many bytes."""
        one_message = False
        if self._part is BODY and not self._body_chunked:
            piece = bytes(data[at : at + self._body_left])
        elif not at and self._line == b"" and _is_one_message(data):
            one_message, piece = True, bytes(data)
        else:
            piece = self._piece(data, at)
        if self._line is not None:
            self._check_line(piece)
        self._fruitless += len(piece)
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as offer:
            end = int(offer.args[0])
            if self._socket is not None:
                self._hand_over(self._socket, bytes(data[at + end :]))
                return len(data) - at
            self._decline()
            return end
        if one_message and self._part is BETWEEN and self.running is not None:
            self._remember(piece, self.running)
        if self._part is HEAD and len(self.headers) > self.listen.max_header_count:
            raise HttpError(431, "headers_too_large", "the request has too many header fields")
        # A header field, a trailer and a chunk's extension are kept by the parser until they are whole.
        if self._fruitless > self.listen.max_header_bytes:
            raise HttpError(431, "headers_too_large", "the request head is too large")
        return len(piece)

    def _piece(self, data: bytes | bytearray, at: int) -> bytes:
        """The next bytes of a head or a chunked body, up to and with the first empty line."""
        piece = bytes(data[at : at + _PIECE_BYTES])
        tail = self._tail
        if tail:
            found = (tail + piece[:3]).find(_EMPTY_LINE)
            if found >= 0:
                self._tail = b""
                return piece[: found + 4 - len(tail)]
        found = piece.find(_EMPTY_LINE)
        if found >= 0:
            self._tail = b""
            return piece[: found + 4]
        self._tail = piece[-3:] if len(piece) >= 3 else (tail + piece)[-3:]
        return piece

    def _check_line(self, piece: bytes) -> None:
        """Refuses what the parser accepts in a request line: other protocols than HTTP, and more than one space."""
        line = self._line + piece if self._line else piece
        end = line.find(b"\r\n")
        if end < 0:
            self._line = line
            return
        self._line = None
        if line.count(b" ", 0, end) != 2 or not line.startswith(b" HTTP/", end - 9):
            raise HttpError(400, "invalid_request", "the request line is not a method, a target and an HTTP version")

    def _decline(self) -> None:
        """An offer to speak another protocol (WebSocket, HTTP/2) is not taken up: what follows is HTTP/1.1 as before.

        Java's HttpClient makes one with its first request to every server. The parser takes it for the end of all
        HTTP and hands out no body: that is left to another parser, which starts with the same framing.
        """
        framing = self._framing()
        self.parser = httptools.HttpRequestParser(self)
        if framing:
            self._resumed = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % framing)
            self._resumed = False

    def _take_up(self, scope: dict[str, Any]) -> bool:
        """Whether the request in `scope` opens a web socket: those of other paths are answered as HTTP, and so is what
        the application refuses."""
        if scope["method"] != "GET" or scope["http_version"] != "1.1" or self._framing():
            return False
        opened = self.opens(scope, self)
        if opened is None:
            return False
        from gateway.server.socket import SocketConnection, handshake

        protocol = handshake(self.headers, self.listen.max_body_bytes)
        if protocol is None:
            return False
        session, room = opened
        self._socket = lambda rest: SocketConnection(self, protocol, room).begin(session, rest)
        return True

    def _hand_over(self, begin: Callable[[bytes], None], rest: bytes) -> None:
        """This connection is a web socket's from now on. rest: what has come behind the handshake."""
        self._discarding = True
        self.connections.discard(self)
        for timer in (self._timer, self._stall):
            if timer is not None:
                timer.cancel()
        self.parser = self._socket = None
        begin(rest)
        self.leave_reading()

    def _framing(self) -> bytes:
        return b"".join(
            b"%b: %b\r\n" % field for field in self.headers if field[0] in (b"content-length", b"transfer-encoding")
        )

    # -- parser callbacks -------------------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        if not self._resumed:
            self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # Called for each field, so all that can wait is done for all of them at the end of the head.
        if self._part is HEAD:  # else a trailer: nothing here reads them, and a header they must not become
            self.headers.append((name.lower(), value.rstrip(b" \t")))  # RFC 9112, section 5

    def on_headers_complete(self) -> None:
        if self._resumed:
            return
        if self._part is not HEAD:
            raise HttpError(400, "invalid_request", "a request begins inside of another")
        version, headers, listen = self.parser.get_http_version(), self.headers, self.listen
        if len(headers) > listen.max_header_count:
            raise HttpError(431, "headers_too_large", "the request has too many header fields")
        if len(self._target) + sum(map(len, chain.from_iterable(headers))) + 4 * len(headers) > listen.max_header_bytes:
            raise HttpError(431, "headers_too_large", "the request head is too large")
        if version not in ("1.1", "1.0"):
            raise HttpError(400, "invalid_request", "only HTTP/1.1 and HTTP/1.0 are spoken here")
        names = list(map(_NAME, headers))
        hosts = names.count(b"host")
        if hosts != 1 and (hosts or version == "1.1"):
            raise HttpError(400, "invalid_request", "a request must have exactly one Host header")
        if hosts and not _HOST.fullmatch(headers[names.index(b"host")][1]):
            raise HttpError(400, "invalid_request", "the Host header must be a host, and a port if any")
        self._body_chunked = b"transfer-encoding" in names
        if self._body_chunked:
            if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in headers):
                raise HttpError(400, "invalid_request", "the only Transfer-Encoding spoken here is chunked")
            if version != "1.1":
                raise HttpError(400, "invalid_request", "Transfer-Encoding needs HTTP/1.1")
        # The parser has made sure that it is a number.
        self._body_left = int(headers[names.index(b"content-length")][1]) if b"content-length" in names else 0
        awaits_100 = (
            b"expect" in names
            and version == "1.1"
            and any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)
        )
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise HttpError(400, "invalid_request", "this is not a proxy")
        self._fruitless = 0
        self._begin(method.decode("ascii"), version, awaits_100)
        self._part = BODY

    def _begin(self, method: str, version: str, awaits_100: bool) -> None:
        target = self._target if self._target.startswith(b"/") else self._origin_form()
        raw, _, query = target.partition(b"?")
        path = raw.decode("ascii")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": method,
            "server": self.server,
            "client": self.client,
            "scheme": "http",
            "root_path": "",
            "path": decoded(path) if "%" in path else path,
            "raw_path": raw,
            "query_string": query,
            "headers": self.headers,
        }
        if self.parser.should_upgrade() and self._take_up(scope):
            return
        keep_alive = version != "1.0" and not self.draining and self.parser.should_keep_alive()
        self._start(RequestCycle(self, scope, keep_alive, awaits_100))

    def _start(self, cycle: RequestCycle) -> None:
        self.running = cycle
        self.tasks.add(LightTask(cycle.run(self.app), self.loop_round, self.tasks.discard))

    # -- heads that come again --------------------------------------------------------------------------------------

    def _remember(self, message: bytes, cycle: RequestCycle) -> None:
        """`message` was the whole of the request under way: from now on its head is known."""
        if cycle.keep_alive and not cycle.awaits_100:
            self._known = KnownHead.of(message, cycle.scope, self.listen)

    def _begin_known(self, data: bytes, known: KnownHead) -> bool:
        """Begins the request in `data` without parsing it, where that comes to the same: nothing is under way, and
        `data` is one whole request with the known head."""
        if self._part is not BETWEEN or self.running is not None or self.write_paused or self.draining:
            return False
        found = known.read(data) if known.listen is self.listen else None
        if found is None:
            return False
        scope, body = found
        self._idle = False
        self._deadline = 0.0
        self.headers = scope["headers"]
        self._start(RequestCycle(self, scope, True, False, body))
        return True

    def _origin_form(self) -> bytes:
        """Path and query of a target in absolute form, `http://host/path`. Its host takes the place of the Host header
        (RFC 9112, section 3.2.2)."""
        found = _ABSOLUTE.fullmatch(self._target)
        if found is None:
            raise HttpError(400, "invalid_request", "the request target must be a path or an http URL")
        host, path, query = found.groups()
        self.headers[:] = [(name, host if name == b"host" else value) for name, value in self.headers]
        return (path or b"/") + (query or b"")

    def on_body(self, body: bytes) -> None:
        self._fruitless = 0
        self._steps += 1
        self._body_left -= len(body)
        if self.running is not None:
            self.running.body_arrived(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade() and self._framing():
            return  # its body comes after `_decline`
        self._part = BETWEEN
        self._fruitless = 0
        self._deadline = self._body_since = 0.0
        running = self.running
        if running is not None:
            running.body_ended()
            if not running.keep_alive:
                self._discarding = True  # what may follow is not answered


def _is_one_message(data: bytes | bytearray) -> bool:
    """Whether `data`, which begins with a head, is one small message and nothing else, as most reads are: it need not
    be parsed in pieces. If another field contradicts, the parser refuses the message."""
    end = data.find(_EMPTY_LINE)
    if end < 0 or len(data) > _PIECE_BYTES:
        return False
    left = len(data) - end - 4
    if not left:
        return True
    length = LENGTH.search(data, 0, end + 2)
    return length is not None and int(length[1]) == left


def _not_http() -> HttpError:
    return HttpError(400, "invalid_request", "the request is not valid HTTP/1.1")


def decoded(path: str) -> str:
    """A path, percent-decoded but for `%2F` and `%25`: an encoded slash separates nothing. The application decodes the
    rest of path parameters, see `core.http.path_parameter`."""
    return "".join(
        part.upper() if number % 2 else unquote(part) for number, part in enumerate(_LEFT_ENCODED.split(path))
    )


def no_sockets(*_: object) -> None:
    """Opens none."""


def protocol_class(listen: Listen, refused: RefusalHeaders, opens: OpensSockets = no_sockets) -> type[HttpProtocol]:
    """The protocol for uvicorn's `http=` with these limits."""
    members = {"__slots__": (), "listen": listen, "refused": staticmethod(refused), "turns": Turns()}
    members["slots"] = Slots(listen)
    members["opens"] = staticmethod(opens)
    return type("Protocol", (HttpProtocol,), members)
