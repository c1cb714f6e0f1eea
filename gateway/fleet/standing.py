"""How the workers of a model stand: which serve, and why the others do not. Looked at when one has changed, and not for
each request: an outage of a large fleet must not make refusals dear."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.errors import GatewayError, Kind
from gateway.core.failures import MEANINGS, Cause
from gateway.fleet.worker import Worker

_MOST_NAMED = 8
_MOST_CAUSES = 3


class Standing:
    """How `workers` stand."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._seen: object = None
        self._serving: Sequence[Worker] = ()
        self._absence: tuple[str, Cause | None] | None = None

    @property
    def serving(self) -> Sequence[Worker]:
        """Those that are ready and do not drain."""
        self._look()
        return self._serving

    def _look(self) -> None:
        if self._seen is not Worker.changed:
            self._seen, self._absence = Worker.changed, None
            self._serving = [worker for worker in self._workers if worker.serving]

    def no_worker(self, retry_after: float = 1.0) -> GatewayError:
        """The error for a request that no worker serves. It has the names that workers serve instead, the reasons of
        those that are not ready, and the cause if all of them refuse the gateway's account or do not fit its
        configuration. retry_after: seconds until a client shall come back."""
        self._look()
        if self._absence is None:
            self._absence = _absence(self._workers)
        message, cause = self._absence
        return GatewayError(Kind.NO_WORKER, message, retry_after=retry_after, cause=cause)


def _absence(workers: Sequence[Worker]) -> tuple[str, Cause | None]:
    """The message, and the cause."""
    served = list(dict.fromkeys(name for worker in workers if not worker.ready for name in worker.serves))
    message = "no worker of this model is available"
    causes = [None if worker.ready else worker.trouble for worker in workers]
    # Clients learn nothing about the operator's account.
    told = [MEANINGS[one].text for one in dict.fromkeys(causes) if one is not None and MEANINGS[one].word != "account"]
    if served:
        named = ", ".join(f"'{name[:64]}'" for name in served[:_MOST_NAMED])
        more = "" if len(served) <= _MOST_NAMED else f" and {len(served) - _MOST_NAMED} more"
        message += f": its worker does not serve the model by its name here, but {named}{more}"
    elif told:
        message += ": " + "; ".join(f"a worker {text}" for text in told[:_MOST_CAUSES])
    refused = all(cause is not None and MEANINGS[cause].word == "account" for cause in causes)
    return message, causes[0] if causes and refused else None
