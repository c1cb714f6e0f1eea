"""Requests that the server refuses itself, before the application gets them."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.http import Headers


class HttpError(Exception):
    """A request that is refused before the application. Its answer has OpenAI's form: no dialect is chosen yet."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


RefusalHeaders = Callable[[HttpError, str, Headers, str], Headers]
"""Called for every refusal with (the refusal, the client's address, the headers received so far, the request id from a
handler or ""). Returns headers for the answer; the first is `x-request-id`."""
