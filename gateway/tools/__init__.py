"""The tools of the web that the gateway runs for clients of APIs whose servers have some.

Each is an object with `run(call)`, which gives the call its result and never raises. The tools bound how much they
bring and what they reach; the kernel bounds how often they are called.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_network
from typing import Any

from gateway.config import Tools
from gateway.core.messages import KindOfServerTool, ServerCall
from gateway.tools.fetch import Fetch
from gateway.tools.search import Search


class WebTools:
    """The tools that a configuration turns on. Implements core.ports.ServerTools.

    most   how often each of them may be called for one request
    aside  see `fetch.Fetch`
    """

    def __init__(self, options: Tools, aside: Callable[..., Awaitable[Any]]) -> None:
        self.options = options
        self._run: dict[KindOfServerTool, Search | Fetch] = {}
        self.most: Mapping[KindOfServerTool, int] = {}
        if options.web_search is not None:
            self._run["search"] = Search(options.web_search)
            self.most = {"search": options.web_search.max_uses}
        if options.web_fetch is not None:
            allowed = [ip_network(one) for one in options.web_fetch.allow_networks]
            self._run["fetch"] = Fetch(options.web_fetch, allowed, aside)
            self.most = {**self.most, "fetch": options.web_fetch.max_uses}

    async def run(self, call: ServerCall) -> None:
        await self._run[call.tool.kind].run(call)

    async def close(self) -> None:
        for tool in self._run.values():
            await tool.close()
