"""The deadlines of one request: as configured, longer for a longer prompt, and by how long its client waits."""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from gateway.core.http import Headers
from gateway.core.ports import Deadlines

MARGIN_S = 5.0
"""Seconds that a request goes on beyond its client's own time-out. The client's timer then fires first, and its library
raises the error that its users catch; the gateway's answer at the same second would be another error, by chance. The
worker loses nothing: a client that leaves is noticed at once. The margin is for proxies that keep its connection."""
_REQUEST = b"x-request-timeout"
# OpenAI's libraries, Python and TypeScript: httpx's time-out for a read, and fetch's for the head.
_READ = frozenset((b"x-stainless-read-timeout", b"x-stainless-timeout"))
_NUMBER = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,9})?\Z")


class Waits(Struct, frozen=True):
    """How long a client announces that it waits, in seconds; None where it announces nothing.

    request  for the whole reply
    read     for the next byte of it
    """

    request: float | None
    read: float | None

    def outlasts(self, deadlines: Deadlines) -> bool:
        """The worker may not take as long anyway: nearly every client announces something, and most announce this."""
        return self.request is None and self.read is not None and self.read > deadlines.first_byte

    def whole(self, stream: bool, deadlines: Deadlines) -> float | None:
        """Seconds that the client waits for the end of its reply. A reply that is not streamed has its first byte at
        its end, so the wait for a byte counts too, where it is shorter than the worker may take anyway."""
        if stream or self.read is None or self.read + MARGIN_S >= deadlines.first_byte:
            return self.request
        return sooner(self.request, self.read)


def client_waits(headers: Headers) -> Waits | None:
    """The time-outs that these request headers announce; None without any. A value that is not a positive number counts
    as nothing."""
    request = read = None
    for name, value in headers:
        if name == _REQUEST:
            request = sooner(request, _seconds(value))
        elif name in _READ:
            read = sooner(read, _seconds(value))
    return None if request is None and read is None else Waits(request, read)


def for_request(deadlines: Deadlines, extra: float, waits: Waits | None, stream: bool, keepalive_s: float) -> Deadlines:
    """`deadlines` with `extra` seconds to the first byte and token, for the length of its prompt. If the client does
    not wait longer, and reads no keep-alive before, the worker has as long as the client waits, and a margin."""
    moves = deadlines.moves
    if extra and moves is not None and moves.first_token is not None:
        deadlines = replace(deadlines, moves=replace(moves, first_token=moves.first_token + extra))
    first_byte = deadlines.first_byte + extra
    keeps_alive = stream and waits is not None and waits.read is not None and 0 < keepalive_s < waits.read
    if waits is not None and waits.read is not None and waits.read <= first_byte and not keeps_alive:
        first_byte = waits.read + MARGIN_S
    return deadlines if first_byte == deadlines.first_byte else replace(deadlines, first_byte=first_byte)


def sooner(one: float | None, other: float | None) -> float | None:
    """The shorter of two times; None for none."""
    return other if one is None else one if other is None else min(one, other)


def _seconds(value: bytes) -> float | None:
    seconds = float(value) if _NUMBER.match(value) else 0.0
    return seconds or None
