"""Blocks of the tools that the server of this API runs: `web_search` and `web_fetch`.

Source: Anthropic's pages of both tools, and the types of anthropic-python 2.12.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gateway.core.messages import Citation, Page, ServerCall
from gateway.wire import clock

_NAMES = {"search": "web_search", "fetch": "web_fetch"}
_MARK = "dgp1."
# Characters of a page that its citation repeats, as in Anthropic's API.
_CITED = 150


def call_id(call: ServerCall) -> str:
    return f"srvtoolu_{call.id}"


def arguments(call: ServerCall) -> dict[str, Any]:
    """The input of a call; none if nothing was asked."""
    return {"query" if call.tool.kind == "search" else "url": call.asked} if call.asked else {}


def call_block(call: ServerCall) -> dict[str, Any]:
    name = _NAMES[call.tool.kind]
    return {"type": "server_tool_use", "id": call_id(call), "name": name, "input": arguments(call)}


def result_block(call: ServerCall) -> dict[str, Any]:
    kind = f"{_NAMES[call.tool.kind]}_tool_result"
    content: Any
    if call.error is not None:
        content = {"type": f"{kind}_error", "error_code": call.error}
    elif call.tool.kind == "search":
        content = [_found(page) for page in call.pages]
    else:
        content = _fetched(call.pages[0])
    return {"type": kind, "tool_use_id": call_id(call), "content": content}


def _found(page: Page) -> dict[str, Any]:
    """A result of a search. Its text comes back with the history, so it is coded and need not be secret."""
    coded = _MARK + urlsafe_b64encode(page.text.encode("utf-8", "surrogatepass")).decode()
    return {
        "type": "web_search_result",
        "url": page.url,
        "title": page.title,
        "encrypted_content": coded,
        "page_age": None,
    }


def _fetched(page: Page) -> dict[str, Any]:
    at = datetime.fromtimestamp(clock.seconds(), UTC).isoformat(timespec="seconds")
    source = {"type": "text", "media_type": "text/plain", "data": page.text}
    document = {"type": "document", "source": source, "title": page.title or None}
    return {"type": "web_fetch_result", "url": page.url, "content": document, "retrieved_at": at}


def citation(cited: Citation) -> dict[str, Any]:
    page = cited.page
    return {
        "type": "web_search_result_location",
        "url": page.url,
        "title": page.title,
        "encrypted_index": _MARK,
        "cited_text": page.text[:_CITED],
    }


def text_of(page: Mapping[str, Any]) -> str:
    """A result of a search, from a client's history, for the model. Only what was coded here can be read."""
    coded = page.get("encrypted_content")
    text = ""
    if isinstance(coded, str) and coded.startswith(_MARK):
        try:
            text = b64decode(coded.removeprefix(_MARK), b"-_", validate=True).decode()
        except ValueError:
            text = ""
    return "\n".join(one for one in (page.get("title"), page.get("url"), text) if isinstance(one, str) and one)


def server_usage(calls: Sequence[ServerCall]) -> dict[str, Any]:
    """The member of `usage` that counts calls; without calls it is left out. Calls that failed are not counted."""
    if not calls:
        return {}
    done = [call.tool.kind for call in calls if call.error is None]
    return {"server_tool_use": {"web_search_requests": done.count("search"), "web_fetch_requests": done.count("fetch")}}
