"""A configuration that is being written from another program's: its values, and comments for what was left out."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from math import isfinite
from typing import Any

import yaml

from gateway.app import KNOWN
from gateway.cli import CommandError
from gateway.config import faults_of
from gateway.config.faults import Path, masked, shown

_NESTED = 3
"""Levels of mappings whose members have lines of their own: section, entry, option."""
_WIDTH = 100
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*\Z")
_WITHOUT_BOUND = ("expires", "models")
"""Options of a key or a team without which it could do more than before."""


class Draft:
    """values are those of gateway.yaml. todo: what a person has to do, a sentence each. mapped and commented count
    options of the other program."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.todo: dict[str, None] = {}
        self.mapped = self.commented = 0
        self._comments: list[tuple[Path, str]] = []

    def section(self, name: str) -> Any:
        return self.values.setdefault(name, {})

    def item(self, name: str, entry: Mapping[str, Any]) -> None:
        self.values.setdefault(name, []).append(dict(entry))

    def note(self, text: str, at: Path = ()) -> None:
        """A comment above the value at `at`, or above what would hold it."""
        self._comments.append((at, masked(text)))

    def left_out(self, where: str, why: str, at: Path = ()) -> None:
        """A comment for an option of the other program. Its value may be a secret, and stays out of it."""
        self.commented += 1
        self.note(f"{where}: {why}", at)

    def settle(self) -> None:
        """Takes out what `dragoman check` would refuse, with a comment each, until nothing is left to refuse."""
        while faults := faults_of(self.values, KNOWN):
            visited: set[Path] = set()
            for path, message in faults:
                entry = path[:1] if isinstance(self.values.get(str(path[0])), list) else path[:2]
                if entry not in visited:  # others of the same entry may be gone with this one
                    visited.add(entry)
                    self._take_out(path, str(message))

    def _take_out(self, path: Path, why: str) -> None:
        while path and not _holds(self.values, path):
            path = path[:-1]
        if not path:
            notes = "".join(f"\n# {text}" for _, text in self._comments)
            raise CommandError(f"there is nothing to write: {why}{notes}", 1)
        where = shown(path)
        if _in_list(self.values, path):  # without a part of its own, a limit would be one for others, too
            path = path[:2]
            where += f" of {_flow(_at(self.values, path))}"
        holder = _at(self.values, path[:-1])
        del holder[path[-1]]
        section = str(path[0])
        if not holder and holder is self.values.get(section):
            del self.values[section]
        if path[0] in ("keys", "teams") and len(path) == 3 and path[2] in _WITHOUT_BOUND:
            holder["disabled"] = True
            why += f"; the {path[0][:-1]} is disabled"
        self.left_out(where, why, path)

    def lines(self) -> Iterator[str]:
        """gateway.yaml."""
        above: dict[Path, list[str]] = {}
        for path, text in self._comments:
            while path and (len(path) > _NESTED or not _holds(self.values, path) or _in_list(self.values, path)):
                path = path[:-1]
            above.setdefault(path, []).append(text)
        yield from (f"# {text}" for text in above.pop((), ()))
        holders = {path[:length] for path in above for length in range(1, len(path))}
        yield from _lines(self.values, (), above, holders)


def _holds(values: Any, path: Path) -> bool:
    try:
        _at(values, path)
    except (LookupError, TypeError):
        return False
    return True


def _in_list(values: Any, path: Path) -> bool:
    return len(path) > 1 and isinstance(values.get(path[0]), list)


def _at(values: Any, path: Path) -> Any:
    for part in path:
        values = values[part]
    return values


def _lines(
    values: Mapping[str, Any], at: Path, above: Mapping[Path, list[str]], holders: Collection[Path]
) -> Iterator[str]:
    """holders: the mappings with comments inside."""
    indent = "  " * len(at)
    for name, value in values.items():
        here = (*at, name)
        yield from (f"{indent}# {text}" for text in above.get(here, ()))
        line = f"{indent}{_flow(name)}:"
        whole = f"{line} {_flow(value)}"
        long = len(whole) > _WIDTH and len(here) < _NESTED
        if isinstance(value, dict) and value and (long or here in holders):
            yield line
            yield from _lines(value, here, above, holders)
        elif isinstance(value, list) and any(isinstance(one, dict) for one in value):
            yield line
            yield from (f"{indent}  - {_flow(one)}" for one in value)
        else:
            yield whole


class _Dumper(yaml.SafeDumper):
    """Quotes all text that is more than a plain word: readers of YAML 1.1 and 1.2 differ in what is a number."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if _WORD.match(text) else "'")


_Dumper.add_representer(str, _text)


def _flow(value: object) -> str:
    """On one line."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=True, width=1 << 30, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


class Options:
    """The options of a section of the other program, each of which is taken or gets a comment. `where` names it."""

    def __init__(self, draft: Draft, where: str, values: object) -> None:
        self.draft, self.where = draft, where
        if values is not None and not isinstance(values, dict):
            draft.left_out(where, "is not a mapping of options")
        given = values if isinstance(values, dict) else {}
        self._left = {str(name): value for name, value in given.items() if value not in (None, "", [], {})}

    def take(self, name: str, *kinds: type) -> Any:
        """The value, which then has a counterpart; None if there is none, or if it is of another kind."""
        value = self._left.get(name)
        if value is None or (
            kinds and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds))
        ):
            return None
        self.draft.mapped += 1
        return self._left.pop(name)

    def number(self, name: str) -> Any:
        """As `take`; text that is a number counts. The configuration has none of 19 digits."""
        value = self._left.get(name)
        if not isinstance(value, (int, float, str)) or isinstance(value, bool):
            return None
        try:
            found = float(value)
        except (ValueError, OverflowError):
            return None
        if not abs(found) < 1e18:
            return None
        self.take(name)
        return int(found) if found.is_integer() else found

    def inner(self, name: str, kind: type) -> Any:
        """As `take`, for a mapping or a list whose members count, and not it."""
        found = self.take(name, kind)
        self.draft.mapped -= found is not None
        return found

    def section(self, name: str) -> Options:
        return Options(self.draft, name if self.where == "" else f"{self.where}.{name}", self.inner(name, dict))

    def names(self) -> list[str]:
        return list(self._left)

    def refuse(self, name: str, why: str, at: Path = ()) -> None:
        """An option that was not taken."""
        if self._left.pop(name, None) is not None:
            self.draft.left_out(f"{self.where}.{name}".lstrip("."), why, at)

    def rest(self, reasons: Mapping[str, str], at: Path = (), ignored: Collection[str] = ()) -> None:
        """Comments on all that were not taken. ignored: facts beside options, such as the time of a change."""
        for name in self.names():
            if name not in ignored:
                self.refuse(name, reasons.get(name, "has no counterpart"), at)


def read_foreign(text: bytes, name: str) -> Any:
    """The values of a YAML file as other programs read it, `plain`. Raises CommandError."""
    try:
        return plain(yaml.safe_load(text))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise CommandError(f"{name} is not YAML: {type(error).__name__}") from None


def plain(value: Any) -> Any:
    """The value as a file of this program can hold it: keys are text, and so is all but text, true or false, null, and
    numbers that are finite. Aliases of YAML stay one object. Raises ValueError for a value that holds itself."""
    return _plain(value, {})


def _plain(value: Any, memo: dict[int, Any]) -> Any:
    if not isinstance(value, (dict, list, tuple)):
        scalar = value is None or isinstance(value, (str, int)) or (isinstance(value, float) and isfinite(value))
        return value if scalar else str(value)
    if id(value) not in memo:
        memo[id(value)] = _plain  # until all that it holds is known
        if isinstance(value, dict):
            memo[id(value)] = {str(name): _plain(one, memo) for name, one in value.items()}
        else:
            memo[id(value)] = [_plain(one, memo) for one in value]
    if memo[id(value)] is _plain:
        raise ValueError("holds itself")
    return memo[id(value)]
