"""Rows for the field tables of dialects, and names that follow from the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.core.fields import Field, Handling, body_members

Tables = Mapping[str, Sequence[Field]]
NO_PLACE = "nothing behind us has a place for it"
"""The note of most ignored fields."""


def rows(handling: Handling, note: str, **samples: Any) -> tuple[Field, ...]:
    """A row for each of `samples`, all with the same handling and note."""
    return tuple(Field(name, handling, sample, note) for name, sample in samples.items())


def model_row(note: str) -> Field:
    """The row of the member that names the model."""
    return Field("model", "consumed", "m", note, names_model=True)


def renamed(name: str, to: str, sample: Any, note: str = "") -> Field:
    """The row of a field that reaches the worker under another name."""
    return Field(name, "renamed", sample, note, to)


def ignored_members(fields: Tables) -> Mapping[str, tuple[str, ...]]:
    """The names of the top-level members that each operation accepts and reports as dropped."""
    members = body_members(fields)
    return {
        name: tuple(field.name for field in found if field.handling == "ignored" and field.name in members[name])
        for name, found in fields.items()
    }
