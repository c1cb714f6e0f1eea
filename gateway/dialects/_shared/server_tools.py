"""Tools that an API's own server runs, as functions that a model may call."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw

from gateway.core.messages import ServerTool, Tool

Domains = Annotated[list[Annotated[str, Meta(max_length=1024)]], Meta(max_length=100)]
"""Hosts that bound a search. Each result is compared with each of them: no host name is longer than 253 characters, and
what may stand behind one has an end, too."""
_SEARCH = (
    "Searches the web, for what you do not know and what may have changed. Returns titles, URLs and texts of pages.",
    Raw(b'{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}'),
)
_FETCH = (
    "Fetches one page of the web, and returns its text. Only a URL that the user, a tool or a search has named can be "
    "fetched.",
    Raw(b'{"type":"object","properties":{"url":{"type":"string"}},"required":["url"]}'),
)


def as_function(tool: ServerTool) -> Tool:
    """The function for `tool`. Its arguments have the members that Anthropic's own calls have."""
    description, parameters = _SEARCH if tool.kind == "search" else _FETCH
    return Tool(tool.name, description, parameters)
