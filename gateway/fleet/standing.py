"""How the workers of a model stand: which serve, and why the others do not. Looked at when one has changed, and not for
each request: an outage of a large fleet must not make refusals dear."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf
from urllib.parse import urlsplit

from gateway.core.errors import GatewayError, Kind
from gateway.core.failures import MEANINGS, Cause
from gateway.fleet.breaker import Breaker
from gateway.fleet.worker import Worker

_MOST_NAMED = 8
_ADDRESS = re.compile(r"(\[[0-9a-f:.]+\]|[0-9a-z](?:[\w.-]*\w)?)(:[0-9]{1,5})?", re.IGNORECASE | re.ASCII)
_MASK = "***"
_MOST_CAUSES = 3


class Standing:
    """How `workers` stand."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._version: object = None
        self._breakers: object = None
        self._out_until = 0.0
        self._looked_for: object = None
        self._able: frozenset[Worker] | None = None
        self._serving: Sequence[Worker] = ()
        self._silent: frozenset[Worker] | None = None
        self._absence: tuple[str, Cause | None, tuple[Cause, ...]] | None = None
        self._spellings: set[str] | None = None

    @property
    def serving(self) -> Sequence[Worker]:
        """Those that are ready and do not drain."""
        self._look()
        return self._serving

    def able(self, now: float) -> frozenset[Worker]:
        """Those that serve, and to which a request may go: the same object while none is ejected."""
        self._look()
        if self._looked_for is not Breaker.changed:
            self._looked_for = Breaker.changed
            ejected = any(worker.breaker.open_until for worker in self._serving)
            self._able = None if ejected else frozenset(self._serving)
        if self._able is not None:
            return self._able
        return frozenset([worker for worker in self._serving if worker.breaker.allows(now)])

    @property
    def silent(self) -> frozenset[Worker]:
        """Those that do not report what they have cached."""
        self._look()
        if self._silent is None:
            silent = [worker for worker in self._workers if worker.blocks is None or not worker.blocks.live]
            self._silent = frozenset(silent)
        return self._silent

    def out(self, now: float) -> bool:
        """Whether each worker that serves is ejected, or none serves."""
        self._look()
        if self._breakers is not Breaker.changed or now >= self._out_until:
            self._breakers, self._out_until = Breaker.changed, inf
            for worker in self._serving:
                self._out_until = min(self._out_until, worker.breaker.allows_from)
                if self._out_until <= now:
                    break
        return now < self._out_until

    def masked(self, text: str) -> str:
        """`text`, which a worker wrote, without the workers' addresses: clients do not learn where they are."""
        if self._spellings is None:
            self._spellings = {spelling for worker in self._workers for spelling in _spellings(worker.address)}
        return _ADDRESS.sub(self._mask, text)

    def _mask(self, found: re.Match[str]) -> str:
        whole, host, _ = (one and one.lower() for one in found.group(0, 1, 2))
        return _MASK if self._spellings is not None and not {whole, host}.isdisjoint(self._spellings) else found[0]

    def _look(self) -> None:
        if self._version is not Worker.changed:
            self._version, self._absence, self._silent = Worker.changed, None, None
            self._breakers = self._looked_for = None
            self._serving = [worker for worker in self._workers if worker.serving]

    def no_worker(self, retry_after: float = 1.0) -> GatewayError:
        """The error for a request that no worker serves. It has the names that workers serve instead, the reasons of
        those that are not ready, and the cause if all of them refuse the gateway's account or do not fit its
        configuration. retry_after: seconds until a client shall come back."""
        self._look()
        if self._absence is None:
            self._absence = _absence(self._workers)
        message, cause, causes = self._absence
        error = GatewayError(Kind.NO_WORKER, message, retry_after=retry_after, cause=cause)
        error.absent = causes
        return error


def _spellings(address: str) -> set[str]:
    """The spellings of an address: with the port, and the host alone if it cannot be a word of a language."""
    url = urlsplit(address)
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname or ""
    found = {url.netloc.lower(), f"{host}:{url.port or (443 if url.scheme == 'https' else 80)}"}
    return found | ({host} if not host.isalpha() else set())


def _absence(workers: Sequence[Worker]) -> tuple[str, Cause | None, tuple[Cause, ...]]:
    """The message, the cause if it is that of all, and each cause once."""
    served = list(dict.fromkeys(name for worker in workers if not worker.ready for name in worker.serves))
    message = "no worker of this model is available"
    causes = [None if worker.ready else worker.trouble for worker in workers]
    each = tuple([one for one in dict.fromkeys(causes) if one is not None])
    # Clients learn nothing about the operator's account.
    texts = [MEANINGS[one].text for one in each if MEANINGS[one].word != "account"]
    if served:
        named = ", ".join(f"'{name[:64]}'" for name in served[:_MOST_NAMED])
        more = "" if len(served) <= _MOST_NAMED else f" and {len(served) - _MOST_NAMED} more"
        message += f": its worker does not serve the model by its name here, but {named}{more}"
    elif texts:
        message += ": " + "; ".join(f"a worker {text}" for text in texts[:_MOST_CAUSES])
    refused = all(cause is not None and MEANINGS[cause].word == "account" for cause in causes)
    return message, causes[0] if causes and refused else None, each
