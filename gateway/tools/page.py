"""The text of a page in HTML, in time that grows with its length alone.

A model reads it, so it need not be exact: marks are taken out, what is never shown too, and blocks become lines. A page
with more marks than pages have is read from its beginning to that number.
"""

from __future__ import annotations

import re
from html import unescape

_NAME = re.compile(r"/?([a-zA-Z][a-zA-Z0-9]{0,15})")
_HIDDEN = frozenset({"script", "style", "noscript", "template", "svg", "title"})
_INLINE = frozenset(
    "a abbr b bdi bdo cite code em font i img kbd mark q s small span strong sub sup time u var wbr".split()  # noqa: SIM905
)
_MOST_MARKS = 1 << 16
"""Each costs about 2 us. A megabyte of ordinary HTML has some 40,000."""
_SPACES = re.compile(r"[ \t\r\f\v\xa0]+")


def text_of(html: str) -> tuple[str, str]:
    """(title, text) of a page."""
    pieces: list[str] = []
    lowered = html.lower()
    title = _title(html, lowered)
    at, end, marks = 0, len(html), 0
    while at < end:
        mark = html.find("<", at)
        marks += 1
        if marks > _MOST_MARKS:
            break
        if mark < 0:
            pieces.append(html[at:])
            break
        pieces.append(html[at:mark])
        close = "-->" if html.startswith("<!--", mark) else ">"
        ends = html.find(close, mark)
        if ends < 0:
            break  # an open mark at the end
        at = ends + len(close)
        name = _NAME.match(html, mark + 1)
        word = name[1].lower() if name is not None else ""
        if word in _HIDDEN and html[mark + 1] != "/":
            after = lowered.find(f"</{word}", at)
            if after < 0:
                break
            at = after
        pieces.append("" if word in _INLINE else "\n")
    return title, _tidy("".join(pieces))


def _title(html: str, lowered: str) -> str:
    start = lowered.find("<title")
    begins = lowered.find(">", start) + 1 if start >= 0 else 0
    ends = lowered.find("</title", begins) if begins else -1
    return _tidy(html[begins:ends])[:500].replace("\n", " ") if ends >= 0 else ""


def _tidy(text: str) -> str:
    lines = (line.strip() for line in _SPACES.sub(" ", unescape(text)).split("\n"))
    return "\n".join(filter(None, lines))
