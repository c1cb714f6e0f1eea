"""Names that follow from the field tables of dialects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.core.fields import Field, body_members

Tables = Mapping[str, Sequence[Field]]
NO_PLACE = "nothing behind us has a place for it"
"""The note of most ignored fields."""


def ignored_members(fields: Tables) -> Mapping[str, tuple[str, ...]]:
    """The names of the top-level members that each operation accepts and reports as dropped."""
    members = body_members(fields)
    return {
        name: tuple(field.name for field in found if field.handling == "ignored" and field.name in members[name])
        for name, found in fields.items()
    }
