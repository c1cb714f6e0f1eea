"""Features that a configuration may leave out, as stages and watchers: limits, the response store, the log of prompts.

`gateway.app` joins those of a configuration to `Runtime`; one that is off is in no list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.core.money import Rates
from gateway.core.ports import RateLimiter
from gateway.pipeline.call import Call
from gateway.pipeline.offload import offload
from gateway.pipeline.response_store import ResponseStore
from gateway.pipeline.watch import Watcher


class Limits(Watcher):
    """Charges requests on the limits of `limiter`. A call's notes have its reservations."""

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter

    async def admit_large(self, call: Call) -> None:
        """A stage for large requests, before they are read. Raises GatewayError if a limit that counts every request
        has no room."""
        charges = call.notes.setdefault(self, [])
        await self._limiter.admit_early(call.record, call.scope, call.reply.headers, charges)

    def admit(self, call: Call) -> Awaitable[None] | None:
        """See `runtime.Stages.limits`. Raises GatewayError if a limit has no room."""
        if call.share is not None:
            return self._admit_offloaded(call)
        cost = self._limiter.cost(call.asked, call.served.can.max_context, _rates(call))
        return self._limiter.admit(call.record, cost, call.scope, call.reply.headers, call.notes.setdefault(self, []))

    async def _admit_offloaded(self, call: Call) -> None:
        context, rates = call.served.can.max_context, _rates(call)
        cost = await offload(self._limiter.cost, call.asked, context, rates, share=call.share)
        charges = call.notes.setdefault(self, [])
        answer = self._limiter.admit(call.record, cost, call.scope, call.reply.headers, charges)
        if answer is not None:
            await answer

    def withdrawn(self, call: Call) -> None:
        for reservation in call.notes.get(self, ()):
            reservation.withdraw()

    def settled(self, call: Call) -> None:
        for reservation in call.notes.get(self, ()):
            reservation.settle(call.record)


def _rates(call: Call) -> Rates | None:
    tariff = call.served.tariff
    return None if tariff is None else tariff.now()


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
        if op is not None and op.to_store is not None and op.stores and self not in call.notes:
            call.notes[self] = True  # a reply is settled more than once
            self._store.put(call.principal.tenant, op.to_store)


class PromptLog(Watcher):
    """Logs the body of every request by `log(request id, body)`."""

    def __init__(self, log: Callable[[str, bytes], None]) -> None:
        self._log = log

    def received(self, call: Call) -> None:
        self._log(call.record.id, call.reply.request.body)
