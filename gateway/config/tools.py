"""Options of the tools that the gateway itself runs for clients: a search of the web, the fetch of a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from pydantic import Field

from gateway.config.kinds import Bytes, Network, SearchPath, Seconds, ServiceUrl, Whole
from gateway.config.section import Section
from gateway.core.messages import KindOfServerTool

_MEMBER_PATH = r"^[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64}){0,8}$"


class SearchApi(NamedTuple):
    """How a search service is asked and answers. path: with `{query}`. The others are names of members in its answer:
    of the list of results, with dots between them, and in each result."""

    path: str
    results: str
    title: str
    link: str
    text: str


_APIS: Mapping[str, SearchApi] = {
    "searxng": SearchApi("/search?q={query}&format=json", "results", "title", "url", "content"),
    "brave": SearchApi("/res/v1/web/search?q={query}", "web.results", "title", "url", "description"),
}


class WebSearch(Section):
    """A search service, for Anthropic's `web_search` and that of the Responses API; see docs/web-tools.md."""

    kind: Literal["searxng", "brave"] = "searxng"
    """Whose API it has. For another service, the options from `path` to `text` say what is different."""
    url: ServiceUrl
    """Its base address."""
    headers: dict[str, str] = Field(default={}, repr=False)
    """Extra headers to it, such as one with a key."""
    path: SearchPath | None = None
    """Path and query of a search, with `{query}`; answered with JSON. Absent: that of its kind, as in the next four."""
    results: str | None = Field(default=None, pattern=_MEMBER_PATH)
    """The member of its answer that lists the results, with dots between names."""
    title: str | None = Field(default=None, min_length=1, max_length=64)
    """The member of a result that is its title."""
    link: str | None = Field(default=None, min_length=1, max_length=64)
    """The member that is its URL."""
    text: str | None = Field(default=None, min_length=1, max_length=64)
    """The member that is some of its text."""
    most_results: Whole = Field(default=8, ge=1, le=50)
    """Most results of one search."""
    max_uses: Whole = Field(default=5, ge=1, le=50)
    """Most searches for one request. Clients may ask for fewer."""
    timeout_s: Seconds = Field(default=10.0, gt=0, le=600)
    """How long one search may take."""

    @property
    def api(self) -> SearchApi:
        """That of its kind, with what is different."""
        own = {name: value for name in SearchApi._fields if (value := getattr(self, name)) is not None}
        return _APIS[self.kind]._replace(**own)


class WebFetch(Section):
    """Fetching pages for models; see docs/web-tools.md. The section alone turns it on."""

    max_uses: Whole = Field(default=5, ge=1, le=50)
    """Most pages for one request. Clients may ask for fewer."""
    max_bytes: Bytes = Field(default=1048576, ge=1024, le=1 << 26)
    """Most bytes that are read of a page."""
    max_text: Whole = Field(default=40000, ge=100, le=10000000)
    """Most characters of a page that the model gets."""
    timeout_s: Seconds = Field(default=10.0, gt=0, le=600)
    """How long one page may take, redirects included."""
    max_connections: Whole = Field(default=100, ge=1, le=10000)
    """Most pages at once."""
    allow_networks: tuple[Network, ...] = ()
    """Networks whose pages may be fetched although they are not public."""


class Tools(Section):
    """Tools that the gateway runs for clients of APIs whose servers have some."""

    web_search: WebSearch | None = None
    """A search of the web. Absent: none; see docs/web-tools.md."""
    web_fetch: WebFetch | None = None
    """The fetch of a page. Absent: none."""

    @property
    def runs(self) -> frozenset[KindOfServerTool]:
        """The kinds of tools that are turned on."""
        found: dict[KindOfServerTool, Section | None] = {"search": self.web_search, "fetch": self.web_fetch}
        return frozenset(kind for kind, options in found.items() if options is not None)
