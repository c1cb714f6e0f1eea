"""The facts that checks across options look at, and rules that several of them share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeVar

from gateway.config.available import Available
from gateway.config.faults import Faults, Path
from gateway.config.kinds import header_fault, is_pattern
from gateway.config.model import Config
from gateway.config.money import Budget
from gateway.config.sharing import Limit

T = TypeVar("T")

ENTRIES = ("keys", "admins", "models", "dialects", "limits", "budgets", "guards")
"""Sections whose entries stand for themselves: a wrong one does not spoil the others."""


class Facts(NamedTuple):
    """The values that were written, and those of them that can be relied on.

    config   the sections whose values are right; of `ENTRIES` the entries
    written  all values before validation
    wrong    paths of sections and entries with a wrong value: `config` lacks them
    unread   there may be keys that could not be read
    models   names and aliases of models, also of wrong entries: a reference to one of those is not a fault itself.
             Patterns are not among them
    """

    config: Config
    written: Mapping[str, Any]
    known: Available | None
    wrong: Collection[Path]
    unread: bool
    models: Collection[str]

    def has(self, name: str) -> bool:
        """Whether there is a section `name`, right or wrong."""
        return self.written.get(name) is not None

    @property
    def any_key(self) -> bool:
        """Whether there may be callers, and teams of theirs, that this configuration does not name."""
        return self.unread or self.has("jwt") or self.has("keys_store")

    def entries(self, name: str) -> Mapping[str, Any]:
        """The entries of a mapping of names as they were written."""
        found = self.written.get(name)
        return found if isinstance(found, dict) else {}

    def limits(self) -> Iterator[tuple[int, Limit]]:
        """The limits, each with its index in the file."""
        return self._listed("limits", self.config.limits)

    def budgets(self) -> Iterator[tuple[int, Budget]]:
        """The budgets, likewise."""
        return self._listed("budgets", self.config.budgets)

    def bounds(self) -> Iterator[tuple[Path, Limit | Budget]]:
        """Limits and budgets, each with its path."""
        for index, limit in self.limits():
            yield ("limits", index), limit
        for index, budget in self.budgets():
            yield ("budgets", index), budget

    def _listed(self, section: str, sound: Sequence[T]) -> Iterator[tuple[int, T]]:
        """The sound entries of a list, each with its index in the file."""
        indices = (index for index in count() if (section, index) not in self.wrong)
        return zip(indices, sound, strict=False)


def facts_of(
    config: Config, written: Mapping[str, Any], known: Available | None, wrong: Collection[Path], unread: bool
) -> Facts:
    unread = unread or not isinstance(written.get("keys") or {}, dict)
    facts = Facts(config, written, known, wrong, unread, ())
    models = set(facts.entries("models"))
    for options in facts.entries("models").values():
        aliases = options.get("aliases") if isinstance(options, dict) else None
        if isinstance(aliases, list):
            models.update(alias for alias in aliases if isinstance(alias, str) and not is_pattern(alias))
    return facts._replace(models=models)


def header_faults(at: Path, headers: Mapping[str, str]) -> Faults:
    """Faults of headers that are added to requests of our own."""
    lower: set[str] = set()
    for header, value in headers.items():
        wrong = header_fault(header, value) or ("is given twice" if header.lower() in lower else None)
        lower.add(header.lower())
        if wrong:
            yield (*at, header), wrong


def repeated(items: tuple[str, ...]) -> Iterator[int]:
    """The indices of items that stood before."""
    seen: set[str] = set()
    for index, item in enumerate(items):
        if item in seen:
            yield index
        seen.add(item)
