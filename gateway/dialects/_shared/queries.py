"""The query of a request, and the page of a list that it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request
from gateway.dialects._shared.faults import wrong


def query(request: Request) -> dict[str, str]:
    """The members of the query; of several with one name the last. Raises GatewayError(BAD_REQUEST)."""
    try:
        found = parse_qs(request.query.decode("latin-1"), max_num_fields=64)
    except ValueError:
        raise GatewayError(Kind.BAD_REQUEST, "the query has too many fields", code="invalid_value") from None
    return {name: values[-1] for name, values in found.items()}


def read_page(asked: Mapping[str, str], size: str, token: str, usual: int, most: int) -> tuple[int, int]:
    """(the index of the page's first item, the items that it may have), by the members `size` and `token` of a query. A
    token is the index where a page before ended. Raises GatewayError(BAD_REQUEST)."""
    count, first = asked.get(size, ""), asked.get(token, "") or "0"
    if count and not _is_number(count):
        raise wrong(size, "must be a number")
    if not _is_number(first):
        raise wrong(token, "is not one of this list")
    return int(first), min(int(count or 0) or usual, most)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10
