"""A head that comes again is not parsed again, and nobody can tell: each case runs on a connection that knows the head
and on a new one."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uvicorn import Config
from uvicorn.server import ServerState

from gateway.config import Listen
from gateway.core.http import HEAD_CACHE, HeadCache, Headers
from gateway.server import HttpError
from gateway.server.protocol import HttpProtocol, protocol_class

HEAD = b"POST /v1/x?a=%20b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
REST = b"\r\nX-Last: one\r\n\r\n"


def post(body: bytes, length: bytes | None = None, head: bytes = HEAD, rest: bytes = REST) -> bytes:
    return head + (b"%d" % len(body) if length is None else length) + rest + body


USUAL = post(b'{"a":1}')
USUAL_EDGE = Listen()


class Far:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, blocks: list[bytes]) -> None:
        self.written += b"".join(blocks)

    def get_extra_info(self, name: str) -> None: ...
    def set_write_buffer_limits(self, high: int | None = None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close


class Served:
    """A connection, and the requests that its application got: (scope, body)."""

    def __init__(self, listen: Listen = USUAL_EDGE) -> None:
        self.requests: list[tuple[dict[str, Any], bytes]] = []
        self.refusals: list[str] = []
        self.protocol_class = protocol_class(listen, self._refused)
        config = Config(self._app, http=self.protocol_class, interface="asgi3", log_config=None, proxy_headers=False)
        self.protocol: HttpProtocol = self.protocol_class(config, ServerState(), {})
        self.far = Far()
        self.protocol.connection_made(cast("asyncio.Transport", self.far))

    def _refused(self, refusal: HttpError, *_: object) -> Headers:
        self.refusals.append(refusal.code)
        return [(b"x-request-id", b"id")]

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            body, more = body + message["body"], message["more_body"]
        kept = {name: value for name, value in scope.items() if name not in ("extensions", HEAD_CACHE)}
        self.requests.append((kept, body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def get(self, *blocks: bytes) -> None:
        for block in blocks:
            self.protocol.data_received(block)
            for _ in range(8):
                await asyncio.sleep(0)

    def end(self) -> None:
        self.protocol.connection_lost(None)


async def compare(*blocks: bytes, listen: Listen = USUAL_EDGE, known: bool = True) -> None:
    """`blocks` mean the same after USUAL, also after a stream in answer to it, and on their own."""
    for streamed in (False, True):
        await compare_once(blocks, listen, known, streamed)


async def compare_once(blocks: tuple[bytes, ...], listen: Listen, known: bool, streamed: bool) -> None:
    again, new = Served(listen), Served(listen)
    await again.get(USUAL)
    if streamed:
        again.protocol.rest()
        assert again.protocol.parser is None
    assert (again.protocol._known is not None) == known  # without it this test compares nothing
    assert again.far.written.startswith(b"HTTP/1.1 200")
    again.requests.clear()
    again.far.written = b""
    await again.get(*blocks)
    await new.get(*blocks)
    assert again.requests == new.requests
    assert again.refusals == new.refusals
    assert again.far.closing == new.far.closing
    assert again.far.written.count(b"HTTP/1.1 ") == new.far.written.count(b"HTTP/1.1 ")
    again.end()
    new.end()


CASES = {
    "the same": [USUAL],
    "another length": [post(b'{"text": "longer"}')],
    "no body": [post(b"")],
    "a long body": [post(b"x" * 100_000)],
    "twice at once": [USUAL + USUAL],
    "and the beginning of another": [USUAL + b"POS", b"T / HTTP/1.1\r\nhost: x\r\n\r\n"],
    "in two blocks": [USUAL[:20], USUAL[20:]],
    "head and body apart": [USUAL[:-7], USUAL[-7:]],
    "a body that is cut": [post(b"0123456789")[:-3], b"789"],
    "too short a length": [post(b"0123456789", b"4")],
    "zeros before the length": [post(b"0123", b"004")],
    "ten digits": [post(b"0123", b"0000000004")],
    "no digits": [post(b"", b"")],
    "a sign": [post(b"0123", b"+4")],
    "a space behind": [post(b"0123", b"4 ")],
    "two lengths": [post(b"0123", b"4\r\nContent-Length: 4")],
    "another length after it": [post(b"0123", rest=b"\r\nX-Last: one\r\nContent-Length: 3\r\n\r\n")],
    "chunked": [b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n4\r\n0123\r\n0\r\n\r\n", USUAL],
    "another path": [USUAL.replace(b"/v1/x", b"/v1/y")],
    "another field": [USUAL.replace(b"X-Last: one", b"X-Last: two")],
    "a field more": [USUAL.replace(b"X-Last: one", b"X-Last: one\r\nX-More: 1")],
    "a field less": [USUAL.replace(b"X-Last: one\r\n", b"")],
    "closing": [USUAL.replace(b"X-Last: one", b"Connection: close"), USUAL],
    "empty lines before": [b"\r\n\r\n" + USUAL],
    "not HTTP": [b"\0" + USUAL],
    "a get between": [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", USUAL],
}


@pytest.mark.parametrize("case", CASES)
async def test_what_follows_a_known_head_means_what_it_means_alone(case: str) -> None:
    await compare(*CASES[case])


@given(st.binary(max_size=40), st.lists(st.integers(0, 200), max_size=4))
def test_so_does_anything_cut_anywhere(body: bytes, cuts: list[int]) -> None:
    message = post(body)
    places = sorted({0, len(message), *(cut for cut in cuts if cut < len(message))})
    blocks = [message[start:end] for start, end in pairwise(places)]
    asyncio.run(compare(*blocks))


@pytest.mark.parametrize("size", [1, 1000])
async def test_white_space_around_a_value_is_not_a_part_of_it(size: int) -> None:
    """RFC 9112, section 5. Where the head is known, too."""
    fields = [(b"host", b"x"), (b"expect", b"100-continue"), (b"content-length", b"4"), (b"a", b"b \t c"), (b"d", b"")]
    head = b"POST /v1/x HTTP/1.1\r\n%b\r\n" % b"".join(b"%b: \t%b \t \r\n" % field for field in fields)
    last = b"POST / HTTP/1.1\r\nHost: x\t\r\nTransfer-Encoding: Chunked \r\nConnection: close \r\n\r\n0\r\n\r\n"
    served = Served()
    for message in (head + b"0123", USUAL.replace(b"one", b"one "), USUAL.replace(b"one", b"one "), last):
        await served.get(*(message[at : at + size] for at in range(0, len(message), size)))
    assert served.refusals == []
    assert served.far.written.startswith(b"HTTP/1.1 100 Continue\r\n")
    assert [len(body) for _, body in served.requests] == [4, 7, 7, 0]
    assert served.requests[0][0]["headers"] == fields
    values = [value for scope, _ in served.requests for _, value in scope["headers"]]
    assert values == [value.strip(b" \t") for value in values]
    assert served.far.closing
    served.end()


async def test_a_known_head_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served()
    await served.get(USUAL)
    monkeypatch.setattr(served.protocol_class, "_parse", None)  # whoever parses fails
    await served.get(USUAL, post(b"another body"))
    assert [body for _, body in served.requests] == [b'{"a":1}', b'{"a":1}', b"another body"]
    served.end()


async def test_new_bounds_hold_for_a_known_head() -> None:
    served = Served()
    await served.get(USUAL)
    served.protocol_class.listen = Listen().model_copy(update={"max_header_count": 2})
    await served.get(USUAL)
    assert served.refusals == ["headers_too_large"]
    served.end()


async def test_a_head_that_one_more_digit_would_make_too_large_is_not_kept() -> None:
    head = USUAL.index(b"\r\n\r\n") + 4
    await compare(post(b"x" * 1000), listen=Listen().model_copy(update={"max_header_bytes": head + 2}), known=False)


async def test_the_last_answer_closes_though_the_head_is_known() -> None:
    served = Served()
    await served.get(USUAL)
    served.protocol_class.draining = True
    await served.get(USUAL)
    assert b"connection: close" in served.far.written
    served.end()


async def test_what_was_learnt_is_kept_as_long_as_the_head() -> None:
    memories = []

    class Watched(Served):
        async def _app(self, scope: Any, receive: Any, send: Any) -> None:
            memories.append(scope.get(HEAD_CACHE))
            await super()._app(scope, receive, send)

    served = Watched()
    other = USUAL.replace(b"X-Last: one", b"X-Last: two")
    await served.get(USUAL, USUAL, post(b"{}"), other, other)
    assert memories == [HeadCache()] * 5
    assert memories[0] is memories[1] is memories[2]
    assert memories[0] is not memories[3] is memories[4]
    served.end()
