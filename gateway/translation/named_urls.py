"""Whether a text names a URL, and not only a longer one of which it is a part: a model that may choose how much of an
address it asks for can tell a stranger something by its choice."""

from __future__ import annotations

import re

_SEARCHED_BEFORE = 2048
_MOST_MATCHES = 1000
# Characters that no URL has (RFC 3986, section 2) end one wherever they stand. Other marks are the text's, not the
# URL's, where nothing of a URL follows them. A fragment is not sent.
_END = re.compile(
    r"""(?:\#[^\s<>"{}|\\^`]*)?
    (?:$|[\s<>"{}|\\^`]|[.,;:!?*_~')\]\uff0c\u3002\u3001\uff1b\uff1a\uff01\uff1f\uff09\u3011\u300d\u300f\u300b]+(?:$|[\s<>"{}|\\^`])|[,;]https?://)""",
    re.VERBOSE,
)
_PARTS = re.compile(r"[\s<>\"{}|\\^`]")
_CLOSED = {"(": ")", "[": "]", "'": "'", "*": "*", "\uff08": "\uff09", "\u300c": "\u300d", "\u3010": "\u3011"}


def is_named(url: str, text: str) -> bool:
    """Whether `text` has `url` as a whole."""
    forms = (url,) if url.count("/") > 2 else (url, url + "/")
    return any(_is_at(form, text) for form in forms)


def _is_at(url: str, text: str) -> bool:
    at = text.find(url)
    for _ in range(_MOST_MATCHES):
        if at < 0:
            return False
        if _begins(text, at) and _ends(url, text, at):
            return True
        at = text.find(url, at + 1)
    return False


def _begins(text: str, at: int) -> bool:
    """Whether no other URL is under way before `at`."""
    if text[at - 1 : at] in _CLOSED or text[at - 1 : at] in (",", ";"):
        return True
    before = text[max(0, at - _SEARCHED_BEFORE) : at]
    return "://" not in _PARTS.split(before)[-1]


def _ends(url: str, text: str, at: int) -> bool:
    """Whether the URL at `at` does not go on."""
    end, opened = at + len(url), text[at - 1 : at] if at else ""
    if _END.match(text, end):
        return True
    # A bracket that is open in the URL is closed in it.
    closed = _CLOSED.get(opened)
    return closed is not None and text.startswith(closed, end) and url.count(opened) == url.count(closed)
