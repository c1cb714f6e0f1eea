"""Charges requests on the limits of a rate limiter."""

from __future__ import annotations

from collections.abc import Awaitable

from msgspec import Struct

from gateway.core.money import Rates
from gateway.core.ports import Charge, RateLimiter
from gateway.kernel.call import Call
from gateway.kernel.feature import Feature, Step
from gateway.offload import offload


class _Charges(Struct):
    """made: what the request is charged, before its body is read and for each model. asked: for a model."""

    made: list[Charge] = []
    asked: bool = False

    def withdraw(self) -> None:
        """Another model is asked: the one before has not answered."""
        for charge in self.made:
            charge.withdraw()


class Limits(Feature):
    """A call's notes have its charges."""

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter

    def around_admission(self, inner: Step) -> Step:
        async def admission(call: Call) -> None:
            charged = self._charges(call)
            if charged.asked:
                charged.withdraw()
            await self._limiter.admit_early(call.record, call.scope, call.reply.headers, charged.made)
            await inner(call)

        return admission

    def around_answer(self, inner: Step) -> Step:
        def answer(call: Call) -> Awaitable[None]:
            charged = self._charges(call)
            charges = charged.made
            if charged.asked:
                charged.withdraw()
            charged.asked = True
            if call.share is not None:
                return self._answer_large(call, charges, inner)
            cost = self._limiter.cost(call.asked, call.served.can.max_context, _rates(call))
            call.awaits = self._limiter.admit(call.record, cost, call.scope, call.reply.headers, charges)
            return inner(call)

        return answer

    async def _answer_large(self, call: Call, charges: list[Charge], inner: Step) -> None:
        context, rates = call.served.can.max_context, _rates(call)
        cost = await offload(self._limiter.cost, call.asked, context, rates, share=call.share)
        answer = self._limiter.admit(call.record, cost, call.scope, call.reply.headers, charges)
        if answer is not None:
            await answer
        await inner(call)

    def _charges(self, call: Call) -> _Charges:
        found: _Charges | None = call.notes.get(self)
        if found is None:
            found = call.notes[self] = _Charges()
            call.at_end[self] = self._settle
        return found

    def _settle(self, call: Call) -> None:
        for charge in call.notes[self].made:
            charge.settle(call.record)


def _rates(call: Call) -> Rates | None:
    tariff = call.served.tariff
    return None if tariff is None else tariff.now()
