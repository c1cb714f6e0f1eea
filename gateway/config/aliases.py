"""Names that mean a model, written out or by pattern. A pattern is the begin of names and a `*` at its end."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.config.kinds import is_name, is_pattern


class Aliases:
    """Names and patterns -> what they mean. A name that is written out wins over patterns, and among patterns the
    longest.

    Clients choose the names, so a look-up keeps nothing and takes at most one dictionary look-up for each length of a
    pattern: 200 at most, however long the name and however many the patterns.
    """

    def __init__(self, meanings: Mapping[str, str]) -> None:
        self._names = {name: model for name, model in meanings.items() if not is_pattern(name)}
        self._begins = {name[:-1]: model for name, model in meanings.items() if is_pattern(name)}
        self._lengths = sorted({len(begin) for begin in self._begins}, reverse=True)

    def find(self, name: str) -> str | None:
        """The meaning of `name`; None if it has none. A pattern takes only what could be a name in a configuration."""
        found = self._names.get(name)
        if found is None and (begin := self._begin(name)) is not None:
            return self._begins[begin]
        return found

    def pattern(self, name: str) -> str | None:
        """The pattern that covers `name`; None if none does."""
        begin = self._begin(name)
        return None if begin is None else f"{begin}*"

    def _begin(self, name: str) -> str | None:
        if self._lengths and is_name(name):
            for length in self._lengths:
                if self._begins.get(name[:length]) is not None:
                    return name[:length]
        return None
