"""Charges requests on the limits of a rate limiter."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from functools import partial

from msgspec import Struct

from gateway.core.money import Rates, shown
from gateway.core.ports import Charge, RateLimiter
from gateway.features import Built, Parts, SendEvent
from gateway.kernel.call import Call
from gateway.kernel.feature import Feature, Step
from gateway.observe.log import Log
from gateway.observe.metrics import Metrics
from gateway.offload import offload
from gateway.ratelimit import BudgetRule, HttpRateLimiter, Subject


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


def build(parts: Parts) -> Built | None:
    """A limiter whose counters stay where they are outlives a reload, also one to a configuration without limits."""
    config, log = parts.config, parts.log
    limiter: HttpRateLimiter | None = parts.earlier_services.get("limits")
    if limiter is None or not limiter.fits(config):
        if not parts.limits.any:
            return None
        changed, alone = partial(_changed, log), partial(_alone, log)
        passed = partial(_passed, log, parts.metrics, parts.send_event)
        limiter = HttpRateLimiter(config, parts.limits, changed, alone, passed)
    parts.offers.limiter = limiter

    def use() -> None:
        limiter.use(config, parts.limits)

    return Built((Limits(limiter),) if parts.limits.any else (), service=limiter, start=limiter.start, take_effect=use)


def _changed(log: Log, state: str, reason: str) -> None:
    log.event("info" if state == "strict" else "warning", f"limits {state}", **({"reason": reason} if reason else {}))


def _alone(log: Log, requests: int, seconds: float) -> None:
    log.event("warning", "decided without redis", requests=requests, per_s=round(requests / max(seconds, 0.001), 1))


def _passed(
    log: Log, metrics: Metrics, send: SendEvent, rule: BudgetRule, subject: Subject, share: float, used: int
) -> None:
    metrics.budget_passed(rule.name, share, rule.shadow)
    facts = {
        "budget": rule.name,
        "of": {one: getattr(subject, one) for one in rule.scope},
        "at": share,
        "used": shown(used),
        "left": shown(max(rule.limit - used, 0)),
        "amount": shown(rule.limit),
        "currency": rule.currency,
        "period": rule.calendar.label(time.time()),
    }
    what = "passed" if share < 1 else "spent"
    # A client may name any number of end users.
    log.rationed("warning", f"shadow budget {what}" if rule.shadow else f"budget {what}", **facts)
    send(f"{'shadow_' if rule.shadow else ''}budget.{what}", facts)
