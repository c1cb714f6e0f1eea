"""A piece of the web: a search service with SearXNG's JSON API, and pages to fetch."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.standins.serving import Answering, serving

PAGE = (
    "<html><head><title>Oslo &amp; rain</title></head><body><h1>Weather</h1><p>It <b>rains</b> today.</p></body></html>"
)


class Web:
    """asked: the targets that were asked for. answers: path -> (status, content type, body), in place of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
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

    class Answers(Answering):
        def do_GET(self) -> None:
            found.held.wait(30)
            found.asked.append(self.path)
            found.headers.append(self.named())
            status, kind, body = found.answer(self.path)
            self.answer(status, body, **{"location" if status in (301, 302, 307) else "content-type": kind})

    with serving(Answers, tls) as origin:
        found = Web(origin)
        try:
            yield found
        finally:
            found.held.set()
