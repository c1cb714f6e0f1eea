"""The base of typed views of what clients send."""

from __future__ import annotations

from msgspec import Struct


class Object(Struct, forbid_unknown_fields=True, gc=False):
    """An object inside a body. `wire.unknown` finds its unknown members if reading it fails."""
