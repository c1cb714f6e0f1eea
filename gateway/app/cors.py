"""Browsers: which pages of other origins may call the gateway (CORS, the CORS protocol of https://fetch.spec.whatwg.org).

A browser sends `Origin` with every request of a page to another origin, and hides the reply from that page unless the
reply allows it. Before most requests it asks first, without any key: that is a preflight.
"""

from __future__ import annotations

import re

from gateway.auth import KnownKeys
from gateway.config import Cors as CorsOptions
from gateway.core.http import REPLY_HEADERS, Headers, header_list, header_value
from gateway.kernel import Application, Receive, Scope, Send, send_whole

METHODS = b"GET, HEAD, POST"
EXPOSED = (
    *("x-request-id", "request-id", "x-dragoman-dropped", "retry-after", "retry-after-ms", "x-should-retry"),
    *("www-authenticate", "x-dragoman-model", "x-dragoman-routed", "x-dragoman-policy", "x-dragoman-cache"),
    *(f"x-ratelimit-{what}-{kind}" for what in ("limit", "remaining", "reset") for kind in ("requests", "tokens")),
    *(
        f"anthropic-ratelimit-{kind}-{what}"
        for what in ("limit", "remaining", "reset")
        for kind in ("requests", "tokens")
    ),
    *("ratelimit", "ratelimit-policy"),
    *("x-ms-error-code", "azureml-model-deployment", "apim-request-id", "x-ms-client-request-id"),
    *("x-amzn-requestid", "x-amzn-errortype", "x-amzn-invoked-production-variant", "x-amz-retry-after"),
    *("x-amzn-sagemaker-content-type", "x-amzn-sagemaker-custom-attributes"),
)
"""Reply headers that a page may read, beside those that it always may, such as Content-Type."""

_VARY = (b"vary", b"origin")
_EXPOSE = (b"access-control-expose-headers", ", ".join(EXPOSED).encode())
# The list of header names that a preflight may ask for.
_NAMES = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z, -]{1,8192}\Z")


class Cors:
    """Wraps endpoints, if there are origins. A request without `Origin` is not a page's request to another origin: it
    passes through."""

    def __init__(self, options: CorsOptions, known: KnownKeys) -> None:
        self._known = known
        self._any = "*" in options.origins
        self._origins = frozenset(origin.encode() for origin in options.origins)
        self._headers = ", ".join(options.headers).lower().encode() if options.headers is not None else None
        self._max_age = b"%d" % options.max_age

    def wrap(self, endpoint: Application) -> Application:
        """`endpoint`, with preflights answered before it and the headers for browsers on all of its replies."""
        if not self._origins:
            return endpoint

        async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
            headers = scope["headers"]
            origin = header_value(headers, b"origin")
            asks = scope["method"] == "OPTIONS" and header_value(headers, b"access-control-request-method") is not None
            if origin is not None and asks:
                await self._preflight(origin, headers, send)
                return
            if found := self._reply_headers(origin):
                scope[REPLY_HEADERS] = found
            await endpoint(scope, receive, send)

        return wrapped

    def reply_headers(self, headers: Headers) -> Headers:
        """The headers for browsers on the reply to a request with `headers`."""
        return self._reply_headers(header_value(headers, b"origin")) if self._origins else []

    def allows(self, origin: bytes | None) -> bool:
        """Whether a page of `origin` may read replies. None: the caller is not a page."""
        return origin is None or self._any or origin in self._origins

    def _reply_headers(self, origin: bytes | None) -> Headers:
        if origin is None:
            return [] if self._any else [_VARY]  # a cache must not give this reply to a page
        return self._allowed(origin, _EXPOSE)

    def _allowed(self, origin: bytes, *more: tuple[bytes, bytes]) -> Headers:
        """Headers that let pages of `origin` read a reply; only `Vary` for an origin that is not listed."""
        if self._any:
            return [(b"access-control-allow-origin", b"*"), *more]
        if origin not in self._origins:
            return [_VARY]
        # A page may ask its browser to send what it knows for this host. Keys in headers need no such permission.
        credentials = (b"access-control-allow-credentials", b"true")
        return [(b"access-control-allow-origin", origin), credentials, _VARY, *more]

    async def _preflight(self, origin: bytes, headers: Headers, send: Send) -> None:
        wanted = header_list(headers, b"access-control-request-headers") or b""
        if not _NAMES.match(wanted) or self._known.masked(wanted.decode(), headers) != wanted.decode():
            wanted = b""
        names = self._headers if self._headers is not None else wanted
        answer: Headers = [
            (b"access-control-allow-methods", METHODS),
            *([(b"access-control-allow-headers", names)] if names else []),
            (b"access-control-max-age", self._max_age),
        ]
        found = self._allowed(origin, *answer)
        status, body = 204, b""
        if found == [_VARY]:
            status, body = 403, b"the gateway's cors.origins does not list this origin\n"
            found += [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]
        await send_whole(send, status, found, body)
