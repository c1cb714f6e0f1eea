"""A guard whose answers a test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ALLOW = {"action": "allow"}


class Guard:
    """asked: the questions so far. decide: a question -> the answer: JSON, or (status, body) as they are. held: answers
    wait for it."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/check"
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.decide: Callable[[dict[str, Any]], Any] = lambda question: ALLOW
        self.held = threading.Event()
        self.held.set()

    def texts(self, stage: str) -> list[list[str]]:
        return [[shown["text"] for shown in one["texts"]] for one in self.asked if one["stage"] == stage]


@contextmanager
def guard() -> Iterator[Guard]:
    """Runs it, on a free port."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["content-length"])))
            found.asked.append(question)
            found.headers.append({name.lower(): value for name, value in self.headers.items()})
            found.held.wait(30)
            answer = found.decide(question)
            status, body = answer if isinstance(answer, tuple) else (200, json.dumps(answer).encode())
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    found = Guard(server.server_port)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        found.held.set()
        server.shutdown()
        thread.join()
        server.server_close()
