"""The vectors of a reply in the form that the request asks for, whatever the worker made of it.

Servers of this wire exist that do not know `encoding_format` or `dimensions` and answer 200 all the same.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from binascii import Error, a2b_base64
from collections.abc import Sequence

import msgspec
from msgspec import Raw

from gateway.core.errors import GatewayError, Kind
from gateway.core.messages import Embed
from gateway.wire.json import encode
from gateway.wire.openai.replies import views as wire

_vector = msgspec.json.Decoder(list[float] | str)
# vLLM's members for other numbers in base64 than OpenAI's, which are four bytes each, the lowest first.
_OTHER_NUMBERS = frozenset({"embed_dtype", "endianness"})


def as_asked(found: Sequence[Raw], op: Embed) -> tuple[Raw, ...]:
    """The vectors as arrays of numbers, or in base64: those that are so already are the same objects.

    Raises GatewayError: UPSTREAM if one is not a vector, or they differ in length; UNSUPPORTED if their length is not
    the one that was asked for.
    """
    if not _OTHER_NUMBERS.isdisjoint(op.extra if op.raw is None else op.raw):
        return tuple([_unread(one, op) for one in found])
    read = [_read(one, op.encoding == "base64") for one in found]
    sizes = {size for _, size in read}
    if len(sizes) != 1 or 0 in sizes:
        raise wire.malformed()
    size = sizes.pop()
    if op.dimensions is not None and size != op.dimensions:
        why = f"'dimensions' cannot be {op.dimensions}: the vectors of this model have {size} numbers here"
        raise GatewayError(Kind.UNSUPPORTED, why, param="dimensions", value=op.dimensions)
    return tuple([one for one, _ in read])


def _read(found: Raw, base64: bool) -> tuple[Raw, int]:
    """(the vector, in base64 or as an array; how many numbers it has)."""
    given = wire.decoded(found, _vector)
    try:
        if isinstance(given, list):
            size = len(given)
            return (Raw(encode(b64encode(struct.pack(f"<{size}f", *given)).decode())) if base64 else found), size
        packed = a2b_base64(given, strict_mode=True)
        size, left = divmod(len(packed), 4)
        if left:
            raise wire.malformed()
        return (found if base64 else _array(packed, size)), size
    except (Error, ValueError, OverflowError, struct.error):
        raise wire.malformed() from None


def _array(packed: bytes, size: int) -> Raw:
    text = encode(struct.unpack(f"<{size}f", packed))
    if b"null" in text:  # what is not a finite number
        raise wire.malformed()
    return Raw(text)


def _unread(found: Raw, op: Embed) -> Raw:
    """A vector whose numbers have the engine's own form: only the form that was asked for can be passed on."""
    if isinstance(wire.decoded(found, _vector), str) is not (op.encoding == "base64"):
        raise wire.malformed()
    return found
