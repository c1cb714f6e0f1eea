"""Workers that an admin takes out of service for a while."""

from __future__ import annotations

from collections.abc import Callable

from gateway.features import Watched
from gateway.observe.process_group import ProcessGroup

_DRAIN, _UNDRAIN = b"drain", b"undrain"


class Draining:
    """At all processes that share an address. watched: returns the gateway as it is now."""

    def __init__(self, watched: Callable[[], Watched], group: ProcessGroup | None) -> None:
        self._watched = watched
        self._group = group
        self.answers = {_DRAIN: self._drain_here, _UNDRAIN: self._undrain_here}
        """As `features.Offers.answers`."""

    def models_of(self, address: str) -> list[str]:
        """The models of the worker at `address`; none if it is unknown."""
        return [model for model, place in self._watched().fleets.workers if place == address]

    async def drain(self, address: str, drained: bool) -> None:
        """As `fleet.fleets.Fleets.drain`."""
        word = _DRAIN if drained else _UNDRAIN
        self.answers[word](address.encode())
        if self._group is not None:
            await self._group.ask(word + b" " + address.encode())

    def _drain_here(self, address: bytes) -> bytes:
        self._watched().fleets.drain(address.decode(), True)
        return b"done"

    def _undrain_here(self, address: bytes) -> bytes:
        self._watched().fleets.drain(address.decode(), False)
        return b"done"
