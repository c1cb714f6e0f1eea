"""The cost of requests, in their records and, as an option, in a header of replies."""

from __future__ import annotations

from collections.abc import Awaitable

from msgspec import UNSET

from gateway.core.charged import NOTHING, outcome_of, produced_at_most, used
from gateway.core.estimate import Estimator
from gateway.core.http import Headers
from gateway.core.money import Rates, shown
from gateway.core.usage import Usage
from gateway.features import Built, Parts
from gateway.kernel.call import Call
from gateway.kernel.feature import Feature, Step
from gateway.ratelimit import estimator

HEADER = b"x-dragoman-cost"


class Pricing(Feature):
    """Writes the cost of each request whose model has a price into its record, in nano of the currency. It stands
    before the limits, which charge what it wrote.

    estimator  of what operations may use
    in_header  replies whose usage is known before their head name the cost; those of streams do not
    """

    def __init__(self, estimator: Estimator, in_header: bool) -> None:
        self._estimator = estimator
        self.headers = self._header if in_header else None

    def around_admission(self, inner: Step) -> Step:
        """Limits may charge the request from here on."""

        def admission(call: Call) -> Awaitable[None]:
            call.at_end[self] = self._price
            return inner(call)

        return admission

    def around_answer(self, inner: Step) -> Step:
        def answer(call: Call) -> Awaitable[None]:
            call.at_end[self] = self._price
            return inner(call)

        return answer

    def _price(self, call: Call) -> None:
        record = call.record
        if record.cost is UNSET and record.model and call.served.tariff is not None:
            rates = call.served.tariff.now()
            record.cost = self._cost(call, rates) if rates is not None else UNSET

    def _cost(self, call: Call, rates: Rates) -> int:
        if outcome_of(call.record) == "unserved" or not call.delivery.takes_slot:
            return 0
        usage = used(call.record, call.prompt or 0) or self._most(call)
        return rates.of(usage) if usage is not NOTHING else 0

    def _most(self, call: Call) -> Usage:
        """The most that a worker can have done for a request of which nobody counted anything."""
        op, seconds, context = call.op, call.record.upstream_ms / 1000, call.served.can.max_context
        if op is None:
            return Usage(call.prompt or 0, produced_at_most(1, seconds))
        choices, each = self._estimator.outputs(op, context)
        made = min(choices * each, produced_at_most(choices, seconds))
        # An estimate of a large prompt would hold up the others: it has been made.
        prompt = self._estimator.cost(op, context).prompt if call.share is None else call.prompt or 0
        return Usage(prompt, made, images=getattr(op, "images", 0))

    def _header(self, call: Call) -> Headers:
        usage = call.record.usage
        if usage is None or call.record.stream or not call.delivery.takes_slot:
            return []
        rates = call.served.tariff.now() if call.served.tariff is not None else None
        if rates is None:
            return []
        return [(HEADER, shown(rates.of(usage)).encode())]


def build(parts: Parts) -> Built | None:
    config = parts.config
    if not any(options.price for options in config.models.values()):
        return None
    return Built((Pricing(estimator(config), config.spend.header),))
