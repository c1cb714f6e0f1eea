"""Texts that clients may refer to later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol


class StoredTexts(Protocol):
    """owners: one owner, and the names that it had before."""

    async def size(self, owners: Sequence[str], names: Iterable[str]) -> int:
        """The bytes of the texts of `names` together. Raises GatewayError(OVERLOADED) if that cannot be found out."""

    async def get(self, owners: Sequence[str], names: Iterable[str]) -> dict[str, bytes | None]:
        """The text of each of `names`, None for one that is not there. Raises as `size`."""


class ResponseStore(StoredTexts, Protocol):
    """ttl_s: how long a text is kept, in seconds."""

    ttl_s: float

    async def remove(self, owners: Sequence[str], names: Iterable[str]) -> None:
        """Forgets what has one of `names`. Raises GatewayError(OVERLOADED) if that cannot be done now."""

    def put(self, owner: str, texts: Mapping[str, bytes]) -> None:
        """Keeps `texts`, or drops those that it cannot keep. Returns at once."""

    async def close(self) -> None: ...
