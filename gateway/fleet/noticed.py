"""Attributes whose changes are noticed: what is computed from those of many workers is kept until one changes."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, ClassVar, Protocol, TypeVar

T = TypeVar("T")


class Noticed:
    """changed  another object after each change of a noticed attribute of any object"""

    __slots__ = ()
    changed: ClassVar[object] = object()


class Attribute(Protocol[T]):
    """A noticed attribute."""

    def __get__(self, one: Any, kind: type) -> T: ...
    def __set__(self, one: Any, value: T) -> None: ...


def noticed(name: str) -> Any:
    """An attribute whose changes are noticed in `Noticed.changed`, with its value in another one, `_name`. Reading it
    calls no function of Python."""
    slot = f"_{name}"

    def change(one: object, value: object) -> None:
        if getattr(one, slot) != value:
            setattr(one, slot, value)
            Noticed.changed = object()

    return property(attrgetter(slot), change)
