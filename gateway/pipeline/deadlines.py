"""The deadlines of one request: as configured, longer for a longer prompt, and no longer than its client waits."""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from gateway.core.http import Headers
from gateway.core.messages import Op
from gateway.core.ports import Deadlines

_REQUEST = b"x-request-timeout"
# OpenAI's libraries, Python and TypeScript: httpx's time-out for a read, and fetch's for the head.
_READ = frozenset((b"x-stainless-read-timeout", b"x-stainless-timeout"))
_NUMBER = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,9})?\Z")


class Waits(Struct, frozen=True):
    """How long a client says that it waits, in seconds; None where it does not say.

    request  for the whole reply
    read     for the next byte of it
    """

    request: float | None
    read: float | None

    def outlasts(self, deadlines: Deadlines) -> bool:
        """The worker may not take as long anyway: nearly every client says something, and most say this."""
        return self.request is None and self.read is not None and self.read >= deadlines.first_byte


def client_waits(headers: Headers) -> Waits | None:
    """What these request headers say; None where they say nothing. A value that is no positive number says nothing."""
    request = read = None
    for name, value in headers:
        if name == _REQUEST:
            request = _sooner(request, _seconds(value))
        elif name in _READ:
            read = _sooner(read, _seconds(value))
    return None if request is None and read is None else Waits(request, read)


def shorten(op: Op, waits: Waits, deadlines: Deadlines) -> None:
    """Limits `op.timeout` to what the client waits. A reply that is not streamed has its first byte at its end, so the
    wait for a byte limits it too, where it is shorter than the worker may take anyway."""
    limit = waits.request
    if not op.stream and waits.read is not None and waits.read < deadlines.first_byte:
        limit = _sooner(limit, waits.read)
    op.timeout = _sooner(op.timeout, limit)


def for_request(deadlines: Deadlines, extra: float, waits: Waits | None, stream: bool, keepalive_s: float) -> Deadlines:
    """`deadlines` with `extra` seconds to the first byte, for the length of its prompt. If the client of a stream waits
    less, and hears no keep-alive before, so much less."""
    first_byte = deadlines.first_byte + extra
    if stream and waits is not None and waits.read is not None and not 0 < keepalive_s < waits.read:
        first_byte = min(first_byte, waits.read)
    return deadlines if first_byte == deadlines.first_byte else replace(deadlines, first_byte=first_byte)


def _seconds(value: bytes) -> float | None:
    seconds = float(value) if _NUMBER.match(value) else 0.0
    return seconds or None


def _sooner(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else min(one, other)
