"""The kinds of keys that gateways write to Redis. The code that makes the keys declares their kinds beside it, in
`KEY_KINDS`; `gateway/app/key_kinds.py` has all of them."""

from __future__ import annotations

import re
from typing import NamedTuple


class KeyKind(NamedTuple):
    """form: the key, with a word in capitals for each part that differs, of which NAMESPACE is `redis.namespace`.
    saved: it is in a backup, as gateways would not write it again."""

    form: str
    saved: bool = True

    def pattern(self, namespace: str, **words: str) -> str:
        """A regular expression for the whole key. words: other words of the form, as they are. The last part may be
        any text, each other one any without a colon."""
        known = {"NAMESPACE": namespace, **words}

        def part(word: re.Match[str]) -> str:
            if word[0] in known:
                return re.escape(known[word[0]])
            return ".*" if word.end() == len(word.string) else "[^:]*"

        return re.sub("[A-Z]+", part, re.escape(self.form))
