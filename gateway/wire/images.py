"""Images that clients send as bare base64, without saying what they are."""

from __future__ import annotations

import re

# The first bytes of each format, in base64 without those characters that later bytes change.
_MAGIC = (
    ("iVBORw0KGg", "png"),
    ("/9j/", "jpeg"),
    ("R0lGOD", "gif"),
    ("UklGR", "webp"),
    ("Qk", "bmp"),
)
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]++\Z")  # possessive: a long text that is none costs one pass


def as_url(text: str) -> str | None:
    """`text` itself when it is an http(s): or data: URL, a data: URL when it is the base64 of an image of a known
    format, else None."""
    if text.startswith(("http://", "https://", "data:")):
        return text
    found = next((name for magic, name in _MAGIC if text.startswith(magic)), None)
    if found is None or not _BASE64.match(text):
        return None
    return f"data:image/{found};base64,{text}"
