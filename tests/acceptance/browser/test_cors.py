"""Pages in a real Chromium call the gateway from another origin: `make test-browser`."""

from __future__ import annotations

import json
import queue
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.acceptance.browser.chromium import FLAGS, chromium
from tests.support.clients import REQUESTS, usual
from tests.support.harness import Stack
from tests.support.standins.serving import Answering, serving
from tests.unit.app.asking import key

pytestmark = pytest.mark.browser

PAGE = (Path(__file__).parent / "page.html").read_bytes()
SECRET, ENTRY = key("browser")
KEYED = {"authorization": f"Bearer {SECRET}", "api-key": SECRET}


class Site:
    """Serves the page, and takes what it reports."""

    def __init__(self, origin: str, results: queue.Queue[Any]) -> None:
        self.origin, self.results = origin, results

    def calls(self, folder: Path, base: str, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What a page of this site sees of the replies to `calls`."""
        task = quote(json.dumps({"base": base, "calls": calls}))
        words = [chromium(), *FLAGS, f"--user-data-dir={folder}"]
        browser = subprocess.Popen(
            [*words, f"{self.origin}/page.html#{task}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            found: list[dict[str, Any]] = self.results.get(timeout=60)
            return found
        finally:
            browser.kill()
            browser.wait()


@pytest.fixture
def site() -> Iterator[Site]:
    results: queue.Queue[Any] = queue.Queue()

    class Handler(Answering):
        def do_GET(self) -> None:
            self.answer(200, PAGE, **{"content-type": "text/html; charset=utf-8"})

        def do_POST(self) -> None:
            results.put(json.loads(self.posted()))
            self.answer(200)

    with serving(Handler) as origin:
        yield Site(origin, results)


def post(dialect: str, headers: dict[str, str], *, stream: bool = False) -> dict[str, Any]:
    way = usual(dialect, stream=stream)
    body = way.body("hello", stream=stream, max_tokens=10)
    return {"path": way.path("m"), "body": {**body, "model": "m"}, "headers": headers}


@pytest.mark.parametrize("dialect", sorted(REQUESTS))
def test_a_listed_page_calls_with_a_key_and_reads_replies_streams_and_errors(
    site: Site, tmp_path: Path, dialect: str
) -> None:
    with Stack(config={"cors": {"origins": [site.origin]}, "keys": ENTRY}) as stack:
        plain, stream, refused = site.calls(
            tmp_path,
            stack.url,
            [post(dialect, KEYED), post(dialect, KEYED, stream=True), post(dialect, {"authorization": "Bearer x"})],
        )
    assert plain["status"] == 200
    assert json.loads(plain["text"])
    assert plain["headers"]["x-request-id"]
    assert stream["status"] == 200
    assert stream["headers"]["x-request-id"]
    assert len(stream["text"].splitlines()) > 2
    assert refused["status"] in (401, 403)
    assert refused["text"]


def test_the_lines_of_the_ollama_style_are_read(site: Site, tmp_path: Path) -> None:
    """As docs/dialects/ollama_style.md shows it."""
    with Stack(config={"cors": {"origins": [site.origin]}, "keys": ENTRY}) as stack:
        (seen,) = site.calls(tmp_path, stack.url, [post("ollama_style", KEYED, stream=True)])
    lines = [json.loads(line) for line in seen["text"].splitlines()]
    assert lines[-1]["done"] is True
    assert "".join(line["message"]["content"] for line in lines)


def test_a_page_that_is_not_listed_sees_nothing(site: Site, tmp_path: Path) -> None:
    with Stack(config={"cors": {"origins": ["https://chat.example.com"]}, "keys": ENTRY}) as stack:
        (seen,) = site.calls(tmp_path, stack.url, [post("openai", KEYED)])
        assert seen == {"error": "TypeError"}
        assert stack.records() == [], "the browser asked first, and was refused"


def test_any_page_may_call_where_every_origin_is_allowed(site: Site, tmp_path: Path) -> None:
    with Stack(config={"cors": {"origins": ["*"]}, "keys": ENTRY}) as stack:
        (seen,) = site.calls(tmp_path, stack.url, [post("openai", KEYED)])
    assert seen["status"] == 200
    assert seen["headers"]["x-request-id"]
