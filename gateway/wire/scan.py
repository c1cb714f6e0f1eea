"""One look over a whole JSON text, in C where it is built (`_scan.pyx`).

`is_plain` is true of a text that certainly is strict JSON which every reader takes for the same: valid UTF-8 without
half a surrogate pair, no two members of one name in an object, finite numbers, integers within 64 bits, and no nesting,
object or name beyond bounds that ordinary texts are far below. Nearly every text is plain: checks that decode it to
find such faults find none. They are made for all other texts, and for every text where C is not built.

`without_nulls` makes a function that removes members of these names that are null from compact JSON, except the first
member of an object. A quote behind a comma and before a colon is in no text.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Raw

try:
    from gateway.wire._scan import is_plain, without_nulls
except ImportError:

    def is_plain(text: bytes | Raw) -> bool:
        return False

    def without_nulls(*names: bytes) -> Callable[[bytes], bytes]:
        member = re.compile(rb',"(?:%b)":null' % b"|".join(map(re.escape, names)))
        return lambda text: member.sub(b"", text)


__all__ = ["is_plain", "without_nulls"]
