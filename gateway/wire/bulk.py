"""Bounds on the number of JSON values in a body, checked before the body is parsed.

Each value costs memory, and time on the event loop: 32 MiB can hold 16 million values, which take seconds and
gigabytes. Within these bounds no dialect takes more than 50 ms, not counting text (about 2 ms a MiB, at worst 13 ms).
Ordinary requests are far below the bounds, so counting bytes is nearly always enough. Only a body with many commas and
brackets is checked further, to leave out those inside strings.
"""

from __future__ import annotations

from gateway.core.errors import GatewayError, Kind

MOST_NESTED = 1 << 15
"""Objects and arrays."""
MOST_MEMBERS = 1 << 16
"""Members of objects."""
MOST_STRINGS = 1 << 17
"""Strings, including the names of members."""
MOST_VALUES = 1 << 20
"""Values after a comma. Only a prompt of token ids has many. One for a context of a million tokens is allowed, although
it takes about 100 ms."""


# Text alone takes about 2 ms a MiB to read and write, and the same again to count its characters.
_LARGE = 1 << 18
_SMALL = 1 << 13
_LONG_US = 5000
# Microseconds to read a value, estimate its tokens and write it for a worker: the worst of all dialects and backends,
# measured by `make chaos ROWS=L9`.
_OBJECT_US, _ARRAY_US, _QUOTE_US, _COMMA_US = 12.0, 4.0, 1.2, 0.05
# So many of one kind (but commas) are heavy by themselves.
_FEW = int(_LONG_US / _QUOTE_US) + 1


def is_heavy(body: bytes) -> bool:
    """True if the request in `body` may take more than 5 ms, so that it must be read and written in a thread. The check
    itself takes at most 1 ms.

    Characters inside strings count too: leaving them out would take longer than an unneeded thread.
    """
    if len(body) <= _SMALL:
        return False
    if len(body) > _LARGE:
        return True
    cost = _count(body, b"{", _FEW) * _OBJECT_US + _count(body, b"[", _FEW) * _ARRAY_US
    return cost + _count(body, b'"', _FEW) * _QUOTE_US + body.count(b",") * _COMMA_US > _LONG_US


def is_large(body: bytes) -> bool:
    """Whether a worker's reply is so long that it may take more than 5 ms to read and to write."""
    return len(body) > _LARGE


def refuse_bulk(body: bytes) -> None:
    """Raises GatewayError(BAD_REQUEST) if `body` holds more than these bounds allow."""
    excess = excess_of(body)
    if excess is not None:
        raise GatewayError(Kind.BAD_REQUEST, f"the request body holds more than {excess}", code="too_many_values")


def excess_of(body: bytes, times: int = 1) -> str | None:
    """The bound that `body` exceeds, each taken `times` times, as text; None if it exceeds none."""
    # Each counted value follows a comma or a colon, except first ones. Decoders bound those by their depth limit.
    if len(body) <= MOST_NESTED * times:
        return None
    enough = MOST_NESTED * times // 2
    if _count(body, b",", enough + 1) + _count(body, b":", enough + 1) <= enough or _excess(body, times) is None:
        return None
    # Escaped quotes do not end a string. Any malformed JSON is found later, by the decoder.
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    if bare.count(b'"') > 2 * MOST_STRINGS * times:
        return f"{MOST_STRINGS * times} strings"
    return _excess(b"".join(bare.split(b'"')[::2]), times)


def _count(body: bytes, byte: bytes, most: int) -> int:
    """How often `byte` is in `body`, but no more than `most`. If it is rare, as in prompts, this is much
    cheaper than `bytes.count`, which looks at each byte by itself and not by `memchr`."""
    return len(body.replace(byte, byte + byte, most)) - len(body)


def _excess(text: bytes, times: int) -> str | None:
    """The name of what exceeds its bound, or None. Every bracket, quote and comma in `text` counts as structure."""
    for most, name, found in (
        (MOST_NESTED, "objects and arrays", text.count(b"{") + text.count(b"[")),
        (MOST_MEMBERS, "members of objects", text.count(b":")),
        (MOST_STRINGS, "strings", (text.count(b'"') + 1) // 2),
        (MOST_VALUES, "values", text.count(b",")),
    ):
        if found > most * times:
            return f"{most * times} {name}"
    return None
