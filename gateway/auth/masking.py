"""Recognises keys where none belongs: in ids, in names of fields, in error texts. All of those reach logs and replies.

Three kinds are recognised: the keys of the request itself; those that authenticated somebody in this process, now or
lately, and the secrets of the configuration; and whatever has a form in which vendors issue keys. The second kind
is kept as SHA-256 sums, lengths and first characters only. A key that was replaced stays known until many others came.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator
from hashlib import sha256

from gateway.auth.headers import shown_keys
from gateway.core.http import Headers

_MOST = 4096
# A shorter text protects nothing, and would be found in texts by chance.
_SHORTEST = 8
# A message may have cut what it quotes, so a part of this many characters is enough to recognise a request's own key.
# That key need not be valid: clients without one send words such as `not-needed`, which are shorter.
_PART, _STEP = 16, 8
_FIRST = 3
# Longer texts are searched up to here, which bounds the time.
_MOST_TEXT = 16384
_MASK = "***"

_VENDORS = (
    r"(?i:dgm_)"  # our own
    r"|(?:sk|rk|pk)[_-]"  # OpenAI, Anthropic (sk-ant-), DeepSeek, OpenRouter (sk-or-), LiteLLM, Stripe
    r"|(?:hf|flp|gsk|fw|r8|jina|lsv2|pcsk|vck|tgp_v1|nvapi|xai|pplx|tvly|glpat|github_pat|gh[opsur]|xox[abeoprs])[_-]"
)
_FORMS = (
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12}"  # AWS access key ids
    r"|AIza[A-Za-z0-9_-]{30}|ya29\."  # Google
    r"|eyJ[A-Za-z0-9_-]{8}"  # JSON in base64: a JWT
)
# An unbroken run that mixes capitals, small letters and digits: AWS secret keys (40), Azure OpenAI keys (84), 30 bytes
# or more in base64url. `chatcmpl-` and its 29 characters are shorter.
_MIXED = (
    r"(?<![A-Za-z0-9_-])(?=[A-Za-z0-9_-]{0,127}[A-Z])(?=[A-Za-z0-9_-]{0,127}[a-z])(?=[A-Za-z0-9_-]{0,127}[0-9])"
    r"[A-Za-z0-9_-]{40}"
)
# An id may be any text, so the beginning of a key is enough. It may stand behind a word: `key:sk-...`.
_IN_ID = re.compile(rf"(?:\A|[._:-])(?:{_VENDORS}|{_FORMS}|(?i:bearer)[._:-])|{_MIXED}")
# A name of 128 bits in hex is a key; an id may have that form.
_IN_NAME = re.compile(rf"{_IN_ID.pattern}|(?<![0-9A-Fa-f])[0-9A-Fa-f]{{32,}}")
# Names and sentences hold words such as `sk_id`, so a key must look whole.
_IN_TEXT = re.compile(rf"(?<![A-Za-z0-9])(?:(?:{_VENDORS})[A-Za-z0-9_-]{{12,}}|(?:{_FORMS})[A-Za-z0-9_.-]*)")


# The words of a text that may hold a configured key: only the sum of such a key is known.
_WORD = re.compile(r"[A-Za-z0-9_.+/=~-]{8,}")
# Marks that may glue a key to other words, and the most of them that are tried from either end. Most ids are UUIDs.
_GLUE, _MOST_GLUED = re.compile(r"[-_.+/=~]"), 5
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class KnownKeys:
    """The keys that one gateway knows, over all its configurations.

    configured  the SHA-256 sums of the keys that are configured now
    admins      those of the admins' keys
    """

    def __init__(self) -> None:
        self.configured: Container[bytes] = ()
        self.admins: Container[bytes] = ()
        # SHA-256 -> first characters and length, the longest known first.
        self._sums: dict[bytes, tuple[str, int]] = {}
        self._lengths: dict[str, Counter[int]] = {}
        self._shortest = _MOST_TEXT

    def __repr__(self) -> str:
        return f"KnownKeys({len(self._sums)})"

    def add(self, key: bytes, digest: bytes | None = None) -> None:
        """`key` authenticates somebody. digest: its SHA-256 if that is at hand."""
        digest = digest or sha256(key).digest()
        if digest in self._sums or len(key) < _SHORTEST:
            return
        text = key.decode("latin-1")
        if len(self._sums) >= _MOST:
            first, length = self._sums.pop(next(iter(self._sums)))
            self._lengths[first] -= Counter([length])
        self._sums[digest] = text[:_FIRST], len(text)
        self._shortest = min(self._shortest, len(text))
        self._lengths.setdefault(text[:_FIRST], Counter())[len(text)] += 1

    def in_id(self, text: str, headers: Headers) -> bool:
        """Whether `text`, an id that a client has chosen, holds a key. headers: those of its request."""
        return _IN_ID.search(text) is not None or bool(self._spans(text, headers))

    def masked_name(self, text: str, headers: Headers) -> str:
        """`text`, the name of a model that nothing here has; `***` if it may be a key, of whatever kind."""
        return _MASK if _IN_NAME.search(text) is not None else self.masked(text, headers)

    def masked(self, text: str, headers: Headers) -> str:
        """`text`, with `***` for each key in it. headers: those of the request that it is about."""
        for begin, end in sorted(self._spans(text, headers), reverse=True):
            text = text[:begin] + _MASK + text[end:]
        return _IN_TEXT.sub(_MASK, text)

    def _spans(self, text: str, headers: Headers) -> list[tuple[int, int]]:
        """The spans of known keys in `text`: (begin, end), none overlapping another one."""
        if len(text) < _SHORTEST:
            return []
        text = text[:_MOST_TEXT]
        found: list[tuple[int, int]] = []
        if len(text) >= _PART:
            for key in shown_keys(headers):
                found += _parts(text, key.decode("latin-1"))
        found += self._configured(text)
        if len(text) >= self._shortest:
            found += self._used(text)
        apart: list[tuple[int, int]] = []
        for begin, end in sorted(found):
            if apart and begin <= apart[-1][1]:
                begin, end = apart[-1][0], max(end, apart.pop()[1])
            apart.append((begin, end))
        return apart

    def _configured(self, text: str) -> Iterator[tuple[int, int]]:
        for word in _WORD.finditer(text):
            at = word.start()
            for begin, end in pieces(word[0]):
                sum_ = _sum(word[0][begin:end])
                if sum_ in self.configured or sum_ in self.admins:
                    yield at + begin, at + end

    def _used(self, text: str) -> Iterator[tuple[int, int]]:
        for begin in range(len(text) - self._shortest + 1):
            lengths = self._lengths.get(text[begin : begin + _FIRST])
            for length in lengths or ():
                if begin + length <= len(text) and _sum(text[begin : begin + length]) in self._sums:
                    yield begin, begin + length


def pieces(word: str) -> Iterator[tuple[int, int]]:
    """The spans of `word` that may be a key: all of it, and what marks set apart."""
    yield 0, len(word)
    marks = [mark.start() for mark in _GLUE.finditer(word)]
    if not marks or _UUID.fullmatch(word):
        return
    if len(marks) > 2 * _MOST_GLUED:
        marks = [*marks[:_MOST_GLUED], *marks[-_MOST_GLUED:]]
    ends = [*marks, len(word)]
    for index, begin in enumerate((0, *[mark + 1 for mark in marks])):
        for end in ends[index:]:
            if _SHORTEST <= end - begin < len(word):
                yield begin, end


def _sum(text: str) -> bytes:
    # As the bytes of a header: what is beyond Latin-1 is in no key.
    return sha256(text.encode("latin-1", "replace")).digest()


def _parts(text: str, key: str) -> Iterator[tuple[int, int]]:
    """The spans in `text` of `key`, or of _PART or more of its characters. A shorter key stands nowhere."""
    for start in {*range(0, len(key) - _PART, _STEP), len(key) - _PART} if len(key) >= _PART else ():
        begin = text.find(key[start : start + _PART])
        while begin >= 0:
            end, after = begin + _PART, start + _PART
            while end < len(text) and after < len(key) and text[end] == key[after]:
                end, after = end + 1, after + 1
            before = start
            while begin and before and text[begin - 1] == key[before - 1]:
                begin, before = begin - 1, before - 1
            yield begin, end
            begin = text.find(key[start : start + _PART], end)
