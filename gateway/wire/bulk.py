"""How many values one body may hold, looked at before it is read.

Each value costs time in which nobody else is served, and memory: 32 MiB may hold 16 million of them, and take seconds
and gigabytes. Within these bounds no dialect takes more than 50 ms, text aside (some 2 ms a MiB, 13 ms at worst). What
an ordinary client sends is far below them, so that counting bytes is nearly always all there is to do; only where
commas and brackets are many are those inside of strings told apart.
"""

from __future__ import annotations

from gateway.core.errors import GatewayError, Kind

MOST_NESTED = 1 << 15
"""Objects and arrays."""
MOST_MEMBERS = 1 << 16
"""Members of objects."""
MOST_STRINGS = 1 << 17
"""Strings, names of members among them."""
MOST_VALUES = 1 << 20
"""Values that follow another. Only a prompt of token ids has many: one that fills a context of a million is let in,
though it takes about 100 ms."""


# Text alone takes some 2 ms a MiB to read and to write, and to count what is in it as long again.
_LARGE = 1 << 18
_SMALL = 1 << 13
_LONG_US = 5000
# Microseconds to read a thing, to estimate its tokens and to write it for a worker; measured at their worst, over all
# dialects and backends: `make chaos ROWS=L9`.
_OBJECT_US, _ARRAY_US, _QUOTE_US, _COMMA_US = 12.0, 4.0, 1.2, 0.05


def is_heavy(body: bytes) -> bool:
    """Whether the request in `body` may take more than 5 ms, so that it is to be read and written in a thread. To tell
    takes 1 ms at most.

    What stands inside of strings counts too: to tell it apart takes longer than to be wrong.
    """
    if len(body) <= _SMALL:
        return False
    if len(body) > _LARGE:
        return True
    cost = body.count(b"{") * _OBJECT_US + body.count(b"[") * _ARRAY_US + body.count(b'"') * _QUOTE_US
    return cost + body.count(b",") * _COMMA_US > _LONG_US


def refuse_bulk(body: bytes) -> None:
    """Raises GatewayError(BAD_REQUEST) if `body` holds more than these bounds allow."""
    # Whatever is counted follows a comma or a colon, but for what is first in what is around it: decoders bound that.
    if len(body) <= MOST_NESTED or body.count(b",") + body.count(b":") <= MOST_NESTED // 2 or _excess(body) is None:
        return
    # An escaped quote ends no string; whatever else is malformed is found by who reads it.
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    if bare.count(b'"') > 2 * MOST_STRINGS:
        excess: str | None = f"{MOST_STRINGS} strings"
    else:
        excess = _excess(b"".join(bare.split(b'"')[::2]))
    if excess is not None:
        raise GatewayError(Kind.BAD_REQUEST, f"the request body holds more than {excess}", code="too_many_values")


def _excess(text: bytes) -> str | None:
    """What there is too much of, if what looks like structure in `text` is structure."""
    if text.count(b"{") + text.count(b"[") > MOST_NESTED:
        return f"{MOST_NESTED} objects and arrays"
    if text.count(b":") > MOST_MEMBERS:
        return f"{MOST_MEMBERS} members of objects"
    if text.count(b'"') > 2 * MOST_STRINGS:
        return f"{MOST_STRINGS} strings"
    if text.count(b",") > MOST_VALUES:
        return f"{MOST_VALUES} values"
    return None
