"""Images that clients send as bare base64, without a media type."""

from __future__ import annotations

import re

# The first bytes of each format in base64, without the last characters, which depend on later bytes.
_MAGIC = (
    ("iVBORw0KGg", "png"),
    ("/9j/", "jpeg"),
    ("R0lGOD", "gif"),
    ("UklGR", "webp"),
    ("Qk", "bmp"),
)
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]++\Z")  # possessive: long text that is not base64 costs one pass


def as_url(text: str) -> str | None:
    """`text` itself if it is an http(s): or data: URL; a data: URL if it is base64 of an image in a known format; else
    None."""
    if text.startswith(("http://", "https://", "data:")):
        return text
    found = next((name for magic, name in _MAGIC if text.startswith(magic)), None)
    if found is None or not _BASE64.match(text):
        return None
    return f"data:image/{found};base64,{text}"
