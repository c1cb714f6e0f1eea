"""The ASGI application in front of llama.cpp's server, which cannot drain: it either serves on or cuts replies."""

from __future__ import annotations

import httpx

from workers.serving import Message, Receive, Send, TooLarge, answered, received, whole

# The largest request. The context of the small model has a few KiB, and a request is buffered until it is complete.
_MOST_BYTES = 64 << 20
# Fields of one connection, not of the message (RFC 9110 7.6.1), and fields that the other connection sets itself.
_OF_CONNECTION = frozenset(
    (b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade", b"host", b"content-length", b"expect")
)


class Front:
    """Sends each request to `address`, with the same method, target, fields and body, and passes the reply on as it
    comes. If the client leaves, the request to llama.cpp ends."""

    def __init__(self, address: str) -> None:
        self._address = httpx.URL(address)
        # llama.cpp closes connections without announcing it, so each request has its own.
        self._client = httpx.AsyncClient(
            timeout=None, trust_env=False, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
        )
        self._client.headers.clear()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            body = await received(receive, _MOST_BYTES)
        except ConnectionError:
            return
        except TooLarge:
            await whole(send, 413, b"")
            return
        await answered(receive, self._pass(scope, body, send))

    async def _pass(self, scope: Message, body: bytes, send: Send) -> None:
        """Passes a reply on. Raises httpx.HTTPError if llama.cpp breaks off; uvicorn then cuts the connection, too."""
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        asked = self._client.build_request(
            scope["method"],
            self._address.copy_with(raw_path=target),
            headers=[(name, value) for name, value in scope["headers"] if name not in _OF_CONNECTION],
            content=body or None,
        )
        reply = await self._client.send(asked, stream=True)
        try:
            headers = [(name.lower(), value) for name, value in reply.headers.raw]
            fields = [field for field in headers if field[0] not in _OF_CONNECTION - {b"content-length"}]
            await send({"type": "http.response.start", "status": reply.status_code, "headers": fields})
            async for block in reply.aiter_raw():
                await send({"type": "http.response.body", "body": block, "more_body": True})
            await send({"type": "http.response.body"})
        finally:
            await reply.aclose()
