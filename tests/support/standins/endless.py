"""A web server that means harm: its answers have no end, and little in them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socket import SO_SNDBUF, SOL_SOCKET
from socketserver import BaseRequestHandler, ThreadingTCPServer

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
ENDLESS = {
    "chunks of one byte": (CHUNKED, b"1\r\nx\r\n"),
    "chunks with long extensions": (CHUNKED, b"1;" + b"e" * 200 + b"\r\nx\r\n"),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "interim answers with fields": (b"", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"),
    "fields": (HEAD, b"x-a: b\r\n"),
    "one field": (HEAD + b"x-a: ", b"b" * 100),
    "trailers": (CHUNKED + b"0\r\n", b"x-a: b\r\n"),
    "a status line": (b"HTTP/1.1 200 ", b"O" * 100),
}


@contextmanager
def writing(begin: bytes, again: bytes) -> Iterator[tuple[str, list[int]]]:
    """A server that answers each request with `begin` and then `again` without an end: (origin, bytes that each
    connection took)."""
    sent: list[int] = []

    class Endless(BaseRequestHandler):
        def handle(self) -> None:
            self.request.setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 14)
            self.request.recv(1 << 16)
            block, taken = again * (8192 // len(again) + 1), len(begin)
            with contextlib.suppress(OSError):
                self.request.sendall(begin)
                while taken < 64 << 20:
                    self.request.sendall(block)
                    taken += len(block)
            sent.append(taken)

    class Server(ThreadingTCPServer):
        daemon_threads, request_queue_size = True, 128

    with Server(("127.0.0.1", 0), Endless) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", sent
        finally:
            server.shutdown()
            thread.join()
