"""Types that the typed views of clients' bodies share."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Domains = Annotated[list[Annotated[str, Meta(max_length=1024)]], Meta(max_length=100)]
"""Hosts that bound a search. Each result is compared with each of them: no host name is longer than 253 characters, and
what may stand behind one has an end, too."""


class Object(Struct, forbid_unknown_fields=True, gc=False):
    """An object inside a body. `wire.unknown` finds its unknown members if reading it fails."""
