"""A search of the web by a search service: SearXNG, or any that answers a GET with JSON."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import msgspec

from gateway.config import WebSearch
from gateway.core.messages import Page, ServerCall
from gateway.tools.bounded import Refused, get

_MOST_BYTES = 4 << 20
_LONGEST_QUERY = 1000
_LONGEST_TEXT = 2000
_LONGEST_URL = 2048
_decode = msgspec.json.Decoder().decode


class Search:
    """Runs searches. One client, and so one pool of connections, for all requests."""

    def __init__(self, options: WebSearch) -> None:
        self._options = options
        self._api = options.api
        self._client = httpx.AsyncClient(trust_env=False, headers=options.headers, timeout=options.timeout_s)

    async def run(self, call: ServerCall) -> None:
        """Gives the call its pages, or the word for what went wrong."""
        query = call.asked.strip()
        if not query:
            call.error = "invalid_tool_input"
        elif len(query) > _LONGEST_QUERY:
            call.error = "query_too_long"
        else:
            url = self._options.url + self._api.path.replace("{query}", quote(query, ""))
            try:
                async with asyncio.timeout(self._options.timeout_s):
                    body = await get(self._client, url, _MOST_BYTES)
                call.pages = self._pages(_decode(body), call)
            except Refused as refused:
                call.error = refused.word
            except (httpx.HTTPError, OSError, TimeoutError, ValueError, msgspec.MsgspecError, RecursionError):
                call.error = "unavailable"

    def _pages(self, found: Any, call: ServerCall) -> tuple[Page, ...]:
        """The pages in the service's answer. Raises ValueError if there is no list of them at the configured place."""
        most = self._options.most_results
        for name in self._api.results.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        if not isinstance(found, list):
            raise ValueError("no list of results")
        pages: list[Page] = []
        for one in found:
            if len(pages) == most:
                break
            if isinstance(one, dict) and (page := self._page(one)) is not None and call.tool.permits(page.url):
                pages.append(page)
        return tuple(pages)

    def _page(self, one: dict[str, Any]) -> Page | None:
        url, title, text = (one.get(name) for name in (self._api.link, self._api.title, self._api.text))
        if not isinstance(url, str) or len(url) > _LONGEST_URL or not _is_of_the_web(url):
            return None
        title = title if isinstance(title, str) and title.strip() else url
        return Page(url, title[:_LONGEST_TEXT].strip(), text[:_LONGEST_TEXT].strip() if isinstance(text, str) else "")

    async def close(self) -> None:
        await self._client.aclose()


def _is_of_the_web(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
