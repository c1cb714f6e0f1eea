"""Bounds on the lists in a worker's reply, checked before the reply is decoded.

A list of empty objects takes three bytes an entry. Decoded, copied and sent one by one, two megabytes of them hold the
event loop for two seconds. So the lists whose entries are looked at one by one have bounds, and a first pass over a
large frame or body stops at the first entry too many, before anything is kept.
"""

from __future__ import annotations

from contextvars import ContextVar

import msgspec
from msgspec import Struct

from gateway.wire.bulk import excess_of, is_large
from gateway.wire.openai.replies import views as wire

ORDINARY_BYTES = 8 * 1024
"""The largest frame or body that is decoded without a first pass. Chunks of a stream are far smaller."""
MOST_CALLS = 1024
"""The most tool calls of one choice, and pieces of them in one chunk."""

MOST_TOKENS = 4096
"""The most tokens whose logprobs one chunk of a text may have, beside those of an echoed prompt."""

# A token with 20 alternatives is 43 objects and arrays. So 6,000 of them fit into one chunk.
_LOGPROBS_FACTOR = 8
# The least bound. An inexact server may send a choice of one chunk in several pieces.
_FEW = 64


class _Left(Struct):
    """How many more entries, and tool calls of the present entry, a pass may meet."""

    entries: int
    calls: int = MOST_CALLS


# Each thread has its own.
_left: ContextVar[_Left] = ContextVar("left")


# msgspec calls `__post_init__` as soon as an entry has ended, but checks the length of a list at the list's end only.
class _Call(Struct, gc=False):
    def __post_init__(self) -> None:
        left = _left.get()
        left.calls -= 1
        if left.calls < 0:
            raise ValueError("too many tool calls")


class _Holder(Struct, gc=False):
    tool_calls: list[_Call] | None = None


class _Entry(Struct, gc=False):
    """A choice, a vector or a score."""

    delta: _Holder | None = None
    message: _Holder | None = None

    def __post_init__(self) -> None:
        left = _left.get()
        left.calls = MOST_CALLS
        left.entries -= 1
        if left.entries < 0:
            raise ValueError("too many entries")


class _Choices(Struct):
    choices: list[_Entry] | None = None


class _Rows(Struct):
    data: list[_Entry] | None = None
    results: list[_Entry] | None = None


_choices = msgspec.json.Decoder(_Choices)
_rows = msgspec.json.Decoder(_Rows | list[_Entry])


def refuse_bulky(frame: bytes, choices: int, logprobs: bool) -> None:
    """Raises GatewayError(UPSTREAM, upstream_malformed) if `frame`, a chunk of a stream, lists more than
    `refuse_excess` allows, or holds more values than a client's request may. logprobs: the client asked for them, so
    there may be more values."""
    refuse_excess(frame, choices)
    if excess_of(frame, _LOGPROBS_FACTOR if logprobs else 1) is not None:
        raise wire.malformed()


def refuse_excess(data: bytes, choices: int) -> None:
    """Raises GatewayError(UPSTREAM, upstream_malformed) if `data`, a chunk or a whole reply, lists more than twice as
    many choices as the request allows (`choices`), or more tool calls in one of them than MOST_CALLS."""
    # The decoder refuses a lone surrogate even in text that it skips, and the passthrough lane passes it on. So the
    # first pass reads other characters in the place of all surrogates.
    data = data.replace(rb"\ud", rb"\u0").replace(rb"\uD", rb"\u0")
    _left.set(_Left(max(_FEW, 2 * choices)))
    wire.decoded(data, _choices)


def refuse_longer(body: bytes, entries: int) -> None:
    """Raises GatewayError(UPSTREAM, upstream_malformed) if the array `body`, or the `data` or the `results` of the
    object `body`, is large and has more than twice as many entries as the request allows."""
    if is_large(body):
        _left.set(_Left(max(_FEW, 2 * entries)))
        wire.decoded(body, _rows)
