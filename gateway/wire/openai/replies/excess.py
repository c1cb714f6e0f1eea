"""Bounds on the lists in a worker's reply, checked before the reply is decoded.

A list of empty objects takes three bytes an entry. Decoded, copied and told one by one, two megabytes of them hold the
event loop for two seconds. So the lists whose entries are looked at one by one have bounds, and a first pass over a
large frame or body stops at the first entry too many, before anything is kept.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.wire.bulk import excess_of
from gateway.wire.json import NULL
from gateway.wire.openai.replies import views as wire

ORDINARY_BYTES = 8 * 1024
"""The largest frame or body that is decoded without a first pass. Chunks of a stream are far smaller."""
MOST_CALLS = 1024
"""The most tool calls of one choice, and pieces of them in one chunk."""

MOST_TOKENS = 4096
"""The most tokens of which one chunk of a text tells logprobs, beside those of an echoed prompt."""

# A token with 20 alternatives is 43 objects and arrays. So 6,000 of them fit into one chunk.
_TOLD_TIMES = 8
# The least bound of choices. An inexact server may send a choice of one chunk in several pieces.
_FEW_CHOICES = 64
# An array with so many places takes 2 ms to make, once. Where a client asked for half as many choices, they are not
# counted here.
_MOST_PLACES = 1024
# The same for vectors and scores. Their replies are read in a thread, where 8 ms are nothing.
_MOST_ROWS = 4096


def refuse_bulky(frame: bytes, choices: int, logprobs: bool) -> None:
    """Raises GatewayError(UPSTREAM, upstream_malformed) if `frame`, a chunk of a stream, lists more than
    `refuse_excess` allows, or holds more values than a client's request may. logprobs: the client asked for them, so
    there may be more values."""
    refuse_excess(frame, choices)
    if excess_of(frame, _TOLD_TIMES if logprobs else 1) is not None:
        raise wire.malformed()


def refuse_excess(data: bytes, choices: int) -> None:
    """Raises GatewayError(UPSTREAM, upstream_malformed) if `data`, a chunk or a whole reply, lists more than twice as
    many choices as the request allows (`choices`), or more tool calls in one of them than MOST_CALLS."""
    # The decoder refuses a lone surrogate even in text that it skips, and the passthrough lane passes it on. So the
    # first pass reads other characters in the place of all surrogates.
    data = data.replace(rb"\ud", rb"\u0").replace(rb"\uD", rb"\u0")
    wire.decoded(data, _lists(max(_FEW_CHOICES, 1 << (2 * choices - 1).bit_length())))


def refuse_longer(body: bytes, entries: int) -> None:
    """Raises GatewayError(UPSTREAM, upstream_malformed) if the array `body`, or the `data` or the `results` of the
    object `body`, has far more entries than the request allows."""
    places = max(_FEW_CHOICES, 1 << (entries - 1).bit_length())
    if places <= _MOST_ROWS:
        wire.decoded(body, _rows(places, body.lstrip()[:1] == b"["))


def _at_most(places: int, entry: Any, missing: Any) -> type[Struct]:
    """An array of at most so many entries. Unlike a list with a maximum length, which msgspec checks at its end, it is
    refused at its first entry too many."""
    members = [(f"_{place}", entry, missing) for place in range(places)]
    return msgspec.defstruct("AtMost", members, array_like=True, forbid_unknown_fields=True, gc=False)


@cache
def _choice() -> type[Struct]:
    calls: Any = _at_most(MOST_CALLS, Raw, NULL)
    holder: Any = msgspec.defstruct("Holder", [("tool_calls", calls | None, None)])
    return msgspec.defstruct("Choice", [("delta", holder | None, None), ("message", holder | None, None)])


@lru_cache(maxsize=8)
def _lists(choices: int) -> msgspec.json.Decoder[Any]:
    """The decoder of a reply's lists, for at most so many choices."""
    choice: Any = _choice()
    several: Any = _at_most(choices, choice, None) if choices <= _MOST_PLACES else list[choice]
    return msgspec.json.Decoder(msgspec.defstruct("Lists", [("choices", several | None, None)]))


@lru_cache(maxsize=8)
def _rows(places: int, bare: bool) -> msgspec.json.Decoder[Any]:
    """The decoder of replies with at most so many rows, in a bare array or in an object."""
    rows: Any = _at_most(places, Raw, NULL)
    several = [("data", rows | None, None), ("results", rows | None, None)]
    return msgspec.json.Decoder(rows if bare else msgspec.defstruct("Rows", several))
