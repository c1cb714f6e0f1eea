"""Searches: what services answer, and how they fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import WebSearch
from gateway.core.messages import ServerCall, ServerTool
from gateway.tools.search import Search
from tests.support.standins.web import Web, web

SEARCH = ServerTool("search", "s")


@pytest.fixture
def service() -> Iterator[Web]:
    with web() as running:
        yield running


def searched(query: str, tool: ServerTool = SEARCH, **options: Any) -> ServerCall:
    call = ServerCall("1", tool, query)

    async def run() -> None:
        search = Search(WebSearch(**options))
        await search.run(call)
        await search.close()

    asyncio.run(run())
    return call


def test_the_api_of_searxng(service: Web) -> None:
    call = searched("rain & sun?", url=service.url, headers={"x-key": "k"})
    assert service.asked == ["/search?q=rain%20%26%20sun%3F&format=json"]
    assert service.headers[0]["x-key"] == "k"
    assert call.error is None
    assert [(page.url, page.title, page.text) for page in call.pages] == [
        (f"{service.url}/page", "Weather in Oslo", "It rains."),
        ("https://two.example/b", "Two", "Sun."),
    ]


def test_another_service(service: Web) -> None:
    found = {"web": {"results": [{"name": "N", "url": "https://a.example", "description": "D"}]}}
    service.answers["/res/v1/web/search"] = (200, "application/json", json.dumps(found).encode())
    (page,) = searched("q", url=service.url, kind="brave", title="name").pages
    assert (page.title, page.text) == ("N", "D")


def test_results_that_are_no_pages_are_left_out(service: Web) -> None:
    odd: list[Any] = [1, {}, {"url": "javascript:x"}, {"url": 5}, {"url": "https://a.example/" + "x" * 5000}]
    good = [{"url": f"https://{n}.example"} for n in range(20)]
    service.answers["/search"] = (200, "application/json", json.dumps({"results": [*odd, *good]}).encode())
    call = searched("q", url=service.url, most_results=3)
    assert [page.url for page in call.pages] == [f"https://{n}.example" for n in range(3)]
    blocked = searched("q", ServerTool("search", "s", blocked=("example",)), url=service.url)
    assert (blocked.pages, blocked.error) == ((), None)
    allowed = searched("q", ServerTool("search", "s", allowed=("7.example",)), url=service.url)
    assert [page.url for page in allowed.pages] == ["https://7.example"]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((500, "text/plain", b""), "unavailable"),
        ((429, "text/plain", b""), "too_many_requests"),
        ((302, "http://10.0.0.1/", b""), "unavailable"),
        ((200, "application/json", b"{"), "unavailable"),
        ((200, "application/json", b'{"results":{}}'), "unavailable"),
        ((200, "application/json", b"[" * 100_000), "unavailable"),
        ((200, "application/json", b" " * (5 << 20)), "unavailable"),
    ],
)
def test_a_service_that_fails(service: Web, answer: tuple[int, str, bytes], error: str) -> None:
    service.answers["/search"] = answer
    call = searched("q", url=service.url)
    assert (call.error, call.pages) == (error, ())


def test_a_service_that_is_slow_or_away(service: Web) -> None:
    service.held.clear()
    assert searched("q", url=service.url, timeout_s=0.2).error == "unavailable"
    assert searched("q", url="http://127.0.0.1:1").error == "unavailable"


def test_queries_have_a_bound(service: Web) -> None:
    assert searched("q" * 1001, url=service.url).error == "query_too_long"
    assert searched(" ", url=service.url).error == "invalid_tool_input"
    assert service.asked == []


@pytest.mark.parametrize(
    ("domain", "found"),
    [
        ("example.com", True),
        ("example.com/blog", True),
        ("Example.com/", True),
        ("example.com/shop", False),
        ("ample.com", False),
    ],
)
def test_a_domain_may_have_a_path(domain: str, found: bool) -> None:
    page = "https://www.example.com/blog/one"
    assert ServerTool("search", "s", allowed=(domain,)).permits(page) is found
    assert ServerTool("search", "s", blocked=(domain,)).permits(page) is not found


WORDS = ("results", "web", "url", "title", "content", "description", "name")
URLS = (
    "https://a.example/b",
    "http://[",
    "http://[::1]/x",
    "https://\u2100.example",
    "javascript:x",
    "http://a:b@c/",
    "//x",
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.sampled_from(URLS),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
    max_leaves=30,
)
PAGES = st.lists(st.dictionaries(st.sampled_from(WORDS), VALUES, max_size=5), max_size=12)
BODIES = (
    st.binary(max_size=200)
    | VALUES.map(lambda value: json.dumps(value).encode())
    | PAGES.map(lambda pages: json.dumps({"results": pages}).encode())
    | PAGES.map(lambda pages: json.dumps({"results": pages}, ensure_ascii=False).encode("utf-8", "surrogatepass"))
)


@given(body=BODIES, status=st.sampled_from((200, 200, 200, 204, 302, 404, 429, 503)), narrow=st.booleans())
def test_whatever_a_service_answers(body: bytes, status: int, narrow: bool) -> None:
    """The call has pages within the bounds, or a word for what went wrong. Texts can be written as JSON."""
    tool = ServerTool("search", "s", allowed=("a.example", "b.example/[")) if narrow else SEARCH
    call = ServerCall("1", tool, "q")

    async def run() -> None:
        search = Search(WebSearch(url="http://service", most_results=3))
        await search.close()
        answered = httpx.MockTransport(lambda _: httpx.Response(status, stream=httpx.ByteStream(body)))
        search._client = httpx.AsyncClient(transport=answered)  # a service that gives this answer
        await search.run(call)
        await search.close()

    asyncio.run(run())
    assert call.error in (None, "unavailable", "too_many_requests")
    assert not (call.error and call.pages)
    assert len(call.pages) <= 3
    for page in call.pages:
        assert page.url.startswith(("http://", "https://"))
        assert len(page.url) <= 2048
        assert page.title
        assert tool.permits(page.url)
    msgspec.json.encode(call.pages)


def test_one_odd_address_spoils_no_other(service: Web) -> None:
    found = {"results": [{"url": "http://["}, {"url": "http://[x]/"}, {"url": "https://a.example"}]}
    service.answers["/search"] = (200, "application/json", json.dumps(found).encode())
    call = searched("q", url=service.url)
    assert ([page.url for page in call.pages], call.error) == (["https://a.example"], None)
