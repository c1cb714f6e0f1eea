"""Features that a configuration may leave out, as stages and watchers: limits, the response store, the log of prompts.

`gateway.app` joins those of a configuration to `Runtime`; one that is off is in no list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gateway.core.ports import RateLimiter, Reservation
from gateway.pipeline.call import Call
from gateway.pipeline.offload import offload
from gateway.pipeline.response_store import ResponseStore
from gateway.pipeline.watch import Watcher


class _Charges(NamedTuple):
    """The charges of one request: as it was admitted, and before that, as its large body was."""

    admitted: Reservation | None = None
    early: Reservation | None = None


_NONE = _Charges()


class Limits(Watcher):
    """Charges requests on the limits of `limiter`."""

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter

    async def admit_large(self, call: Call) -> None:
        """A stage for large requests, before they are read. Raises GatewayError if a limit that counts every request
        has no room."""
        early = await self._limiter.admit_early(call.record, call.scope, call.reply.headers)
        call.notes[self] = _Charges(early=early)

    async def admit(self, call: Call) -> None:
        """A stage. Raises GatewayError if a limit has no room."""
        cost, op, context = self._limiter.cost, call.asked, call.served.can.max_context
        used = cost(op, context) if call.share is None else await offload(cost, op, context, share=call.share)
        early = call.notes.get(self, _NONE).early
        reservation = await self._limiter.admit(call.record, used, call.scope, call.reply.headers, early)
        call.notes[self] = _Charges(reservation, early)

    def withdrawn(self, call: Call) -> None:
        charges = call.notes.get(self, _NONE)
        if charges.admitted is not None:
            charges.admitted.withdraw()
            call.notes[self] = _Charges(early=charges.early)

    def settled(self, call: Call) -> None:
        for reservation in call.notes.get(self, _NONE):
            if reservation is not None:
                reservation.settle(call.record)


class Storing(Watcher):
    """Stores what dialects want stored of replies."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    def received(self, call: Call) -> None:
        call.reply.request.stored = {}  # nothing yet; None means that there is no store

    def needs_operation(self, call: Call) -> bool:
        """The dialect leaves in the operation what has to be stored."""
        return True

    def settled(self, call: Call) -> None:
        op = call.op
        if op is not None and op.to_store is not None:
            texts, op.to_store = op.to_store, None
            self._store.put(call.principal.tenant, texts)


class PromptLog(Watcher):
    """Logs the body of every request by `log(request id, body)`."""

    def __init__(self, log: Callable[[str, bytes], None]) -> None:
        self._log = log

    def received(self, call: Call) -> None:
        self._log(call.record.id, call.reply.request.body)
