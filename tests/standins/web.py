"""A piece of the web: a search service with SearXNG's JSON API, and pages to fetch."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PAGE = (
    "<html><head><title>Oslo &amp; rain</title></head><body><h1>Weather</h1><p>It <b>rains</b> today.</p></body></html>"
)


class Web:
    """asked: the targets that were asked for. answers: path -> (status, content type, body), in place of its own."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.held = threading.Event()
        self.held.set()
        self.answers: dict[str, tuple[int, str, bytes]] = {
            "/page": (200, "text/html; charset=utf-8", PAGE.encode()),
        }

    @property
    def results(self) -> list[dict[str, Any]]:
        """As SearXNG tells results."""
        first = {
            "url": f"{self.url}/page",
            "title": "Weather in Oslo",
            "content": "It rains.",
            "engine": "x",
            "score": 1,
        }
        return [first, {"url": "https://two.example/b", "title": "Two", "content": "Sun."}]

    def answer(self, target: str) -> tuple[int, str, bytes]:
        parts = urlsplit(target)
        if parts.path in self.answers:
            return self.answers[parts.path]
        if parts.path == "/search" and parse_qs(parts.query).get("format") == ["json"]:
            told = {"query": parse_qs(parts.query)["q"][0], "results": self.results, "answers": [], "suggestions": []}
            return 200, "application/json", json.dumps(told).encode()
        return 404, "text/plain", b"nothing"


@contextmanager
def web(tls: ssl.SSLContext | None = None) -> Iterator[Web]:
    """Runs it, on a free port; by https with `tls`."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.held.wait(30)
            found.asked.append(self.path)
            found.headers.append({name.lower(): value for name, value in self.headers.items()})
            status, kind, body = found.answer(self.path)
            self.send_response(status)
            self.send_header("location" if status in (301, 302, 307) else "content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    found = Web(server.server_port)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        found.held.set()
        server.shutdown()
        thread.join()
        server.server_close()
