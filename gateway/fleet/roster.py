"""The fleets of all configurations that requests still run with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core.errors import GatewayError
from gateway.core.figures import Silence, merged_silence
from gateway.fleet.worker import Worker

if TYPE_CHECKING:
    from gateway.fleet.fleets import Fleets


class Roster:
    """The fleets of the configurations that requests still run with, the oldest first. The roster outlives them.

    A new configuration goes on with the workers of the one in force. Requests that wait under an older one get workers
    of the newest.

    drained  the addresses of workers that operators have drained
    """

    def __init__(self) -> None:
        self.drained: set[str] = set()
        self._fleets: list[Fleets] = []

    @property
    def in_force(self) -> Fleets | None:
        return self._fleets[-1] if self._fleets else None

    def add(self, fleets: Fleets) -> None:
        """`fleets` are those in force from now on."""
        self._fleets.append(fleets)

    def remove(self, fleets: Fleets) -> None:
        """No request runs with them any more."""
        self._fleets.remove(fleets)

    def changed(self, fleets: Fleets, model: str) -> None:
        """The workers of `model` have changed, or one of them has become ready. The oldest configuration comes last:
        then it is the first that its workers serve."""
        if fleets is self.in_force:
            for older in reversed(self._fleets[:-1]):
                older.follow(fleets, model)

    def silence(self, model: str, worker: Worker, recent: float) -> Silence | None:
        """The silence of the replies that `worker` owes under any configuration. See `adapters.Serving`."""
        return merged_silence(fleets.serving.silence(model, worker, recent) for fleets in self._fleets)

    def leave(self, worker: Worker, error: GatewayError) -> None:
        """The requests of every configuration that are with `worker` leave it, as far as others can take them."""
        for fleets in self._fleets:
            fleets.serving.leave(worker, error)
