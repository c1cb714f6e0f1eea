"""A server of HTTP/2, by TLS or with prior knowledge, whose answers are scripted."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import h2.config
import h2.connection
import h2.events


class Http2Server(asyncio.Protocol):
    """One connection. answer: called with the stream's id, its head and its body, once the request is whole."""

    def __init__(self, answer: Answer, all_of: list[Http2Server]) -> None:
        self._answer = answer
        self._heads: dict[int, dict[str, str]] = {}
        self._bodies: dict[int, bytes] = {}
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self.lost = asyncio.Event()
        all_of.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's inherits from none of asyncio's
        self.h2.initiate_connection()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            match event:
                case h2.events.RequestReceived():
                    self._heads[event.stream_id] = {str(name): str(value) for name, value in event.headers}
                    self._bodies[event.stream_id] = b""
                case h2.events.DataReceived():
                    self._bodies[event.stream_id] += event.data
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case h2.events.StreamEnded():
                    self._answer(self, event.stream_id, self._heads[event.stream_id], self._bodies[event.stream_id])
                case _:
                    pass
        self.flush()

    def flush(self) -> None:
        self.transport.write(self.h2.data_to_send())

    def head(self, stream: int, status: str = "200", *headers: tuple[str, str]) -> None:
        self.h2.send_headers(stream, [(":status", status), *headers])
        self.flush()

    def send(self, stream: int, data: bytes, end: bool = False) -> None:
        self.h2.send_data(stream, data, end_stream=end)
        self.flush()


Answer = Callable[[Http2Server, int, dict[str, str], bytes], None]


@asynccontextmanager
async def serving_http2(
    answer: Answer, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, list[Http2Server]]]:
    """Yields the address, and the connections there have been."""
    if tls is not None:
        tls.set_alpn_protocols(["h2", "http/1.1"])
    connections: list[Http2Server] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Http2Server(answer, connections), "127.0.0.1", 0, ssl=tls)
    try:
        scheme = "http" if tls is None else "https"
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}", connections
    finally:
        server.close()
        for connection in connections:
            connection.transport.abort()
