"""Templates of ordinary chunks: the bytes before and after the text, which are the same in chunk after chunk.

A lane (`core.ports.Lane`) learns the template from one chunk and need not parse the next ones. Parsing is most of the
cost of a streamed token. This is safe because a quote inside a JSON string is always escaped: an event with the
template's beginning and end, and the inside of one JSON string between them, is the same document with another text.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

# The most templates that one stream may learn. Without this bound, a worker whose chunks always differ outside the text
# would cause a new template for each token.
TRIES = 8
# The largest event that is made into a template. Finding the text in two megabytes takes 200 ms.
_MOST_BYTES = 8 * 1024

_HOLES = {
    name: re.compile(rb'"%b": ?"((?:[^"\\]|\\.)*)"' % name.encode())
    for name in ("content", "text", "reasoning", "reasoning_content", "refusal")
}
_ID = re.compile(rb'"token_ids": ?\[(\d+)\]')
# The two numbers that rise in vLLM's `continuous_usage_stats`.
_USAGE = re.compile(rb'"usage": ?\{"prompt_tokens": ?\d+, ?"total_tokens": ?(\d+), ?"completion_tokens": ?(\d+)')
# The most digits of a token's id or of a count in an ordinary chunk. A chunk with a longer one, which may be beyond the
# range of views.Count, is parsed.
_DIGITS, _ZERO = 9, ord("0")
# The placeholder for the text while a template is made. No reply contains it by chance.
MARK = rb"\u0001template\u0002"
_TOKEN = 1_000_003

Usual = tuple[bytes, bytes, list[bytes], int]
"""An ordinary chunk of a stream that is passed on: the bytes before and after the text, each with its quote, the bytes
that the client is sent around it, and its choice."""
# Bytes that are in no JSON text: they stand for text, id and time in what a cache keeps.
_TEXT, _NAME, _TIME = b"\0", b"\1", b"\2"
_MOST_STREAMS = 64
_MOST_TEMPLATES = 4

id_of = msgspec.json.Decoder(int).decode
"""A JSON integer -> a token id. Raises msgspec.DecodeError for anything else."""
text_of = msgspec.json.Decoder(str).decode
"""A JSON string with its quotes -> its text. Raises msgspec.DecodeError or UnicodeDecodeError for anything else."""


class ChunkTemplate(Struct, frozen=True):
    """One event without its text. `before` ends with the opening quote of the text, `after` begins with the closing
    quote. If every chunk also has one token id, `after` ends before it and `end` follows it; else `end` is b"".

    If every chunk also has its usage so far, `after` ends before the total and `end` follows the tokens of the reply.
    `middle` is between the two, else b""."""

    before: bytes
    after: bytes
    end: bytes = b""
    middle: bytes = b""

    def number(self, block: bytes) -> tuple[int, bytes] | None:
        """(where the text's closing quote stands in `block`, the token id or the tokens of the reply or b""), if
        `block` ends as the template does; else None."""
        if not self.end:
            return (len(block) - len(self.after), b"") if block.endswith(self.after) else None
        close = block.rfind(self.after)
        digits = block[close + len(self.after) : -len(self.end)]
        if self.middle:
            total, _, digits = digits.partition(self.middle)
            if not _is_number(total):
                return None
        return (close, digits) if _is_number(digits) and block.endswith(self.end) else None

    def filled(self, literal: bytes, token: int) -> bytes:
        """The event with the text `literal` (the inside of a JSON string) and the id `token`."""
        if self.middle:
            return self.before + literal + self.after + b"%d" % token + self.middle + b"%d" % token + self.end
        return self.before + literal + self.after + (b"%d" % token + self.end if self.end else b"")


class TemplateCache:
    """Ordinary chunks of streams that have ended, for the next streams of the same model that ask for the same: a
    server writes the chunks of all of them alike, but for the stream's id and time. `identity`: these two, as JSON."""

    def __init__(self) -> None:
        self._templates: dict[bytes, list[Usual]] = {}

    def keep(self, asked: bytes, identity: tuple[bytes, bytes], usual: Usual) -> None:
        """Keeps `usual`, if id and time stand in it once. `asked`: all that decides how a chunk is rewritten."""
        before, after, pieces, index = usual
        sent = _TEXT.join(pieces)
        for value, mark in zip(identity, (_NAME, _TIME), strict=True):
            if before.count(value) != 1 or sent.count(value) != 1:
                return
            before, sent = before.replace(value, mark), sent.replace(value, mark)
        others = [one for one in self._templates.pop(asked, ()) if one[0] != before or one[1] != after]
        self._templates[asked] = [*others, (before, after, [sent], index)][-_MOST_TEMPLATES:]
        if len(self._templates) > _MOST_STREAMS:
            del self._templates[next(iter(self._templates))]

    def recall(self, asked: bytes, identity: tuple[bytes, bytes]) -> list[Usual]:
        """The ordinary chunks of a stream with this identity, as streams before it let expect."""
        name, time = identity
        found = []
        for before, after, (sent,), index in self._templates.get(asked, ()):
            before = before.replace(_NAME, name).replace(_TIME, time)
            sent = sent.replace(_NAME, name).replace(_TIME, time)
            found.append(usual_of(before, after, sent.split(_TEXT), index))
        return found


def usual_of(before: bytes, after: bytes, pieces: list[bytes], index: int) -> Usual:
    """Mostly the client is sent what came: then it is the same objects."""
    own = {before: before, after: after}
    return before, after, [own.get(piece, piece) for piece in pieces], index


def _is_number(digits: bytes) -> bool:
    return digits.isdigit() and len(digits) <= _DIGITS and (digits[0] != _ZERO or len(digits) == 1)


def cut(
    data: bytes, holder: tuple[str | int, ...], name: str, *, token: bool = False, usage: bool = False
) -> ChunkTemplate | None:
    """The template of the event `data`, which is JSON on one line. Its text is the member `name` of the object at the
    path `holder`. token: the choice has `token_ids` with one id; usage: the event has its usage so far. Returns None,
    and never raises, if the text cannot be separated from the rest or `data` is unusual in any other way, such as its
    length."""
    if len(data) > _MOST_BYTES:
        return None
    holes = list(_HOLES[name].finditer(data))
    if len(holes) != 1 or 10 in data:
        return None
    before, after = b"data: " + data[: holes[0].start(1)], data[holes[0].end(1) :] + b"\n\n"
    end = middle = b""
    if usage:
        counts = _USAGE.search(after)
        if counts is None or token:
            return None
        (start, first), (second, last) = counts.span(1), counts.span(2)
        after, middle, end = after[:start], after[first:second], after[last:]
    if token:
        ids = list(_ID.finditer(after))
        if len(ids) != 1:
            return None
        after, end = after[: ids[0].start(1)], after[ids[0].end(1) :]
    template = ChunkTemplate(before, after, end, middle)
    try:
        expected, filled = msgspec.json.decode(data), msgspec.json.decode(template.filled(MARK, _TOKEN)[6:])
        _at(expected, holder)[name] = text_of(b'"%b"' % MARK)
        if token:
            expected["choices"][0]["token_ids"] = [_TOKEN]
        if usage:
            expected["usage"] |= {"total_tokens": _TOKEN, "completion_tokens": _TOKEN}
    except (msgspec.MsgspecError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return template if filled == expected else None


def _at(document: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        document = document[step]
    return document
