"""The cost of requests, in their records and, as an option, in a header of replies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import UNSET

from gateway.core.charged import NOTHING, outcome_of, produced_at_most, used
from gateway.core.estimate import Cost
from gateway.core.http import Headers
from gateway.core.messages import Op
from gateway.core.money import Rates, shown
from gateway.core.usage import Usage
from gateway.pipeline.call import Call
from gateway.pipeline.watch import Watcher

HEADER = b"x-dragoman-cost"


class Pricing(Watcher):
    """Writes the cost of each request whose model has a price into its record, in nano of the currency. It stands
    before the limits, which charge what it wrote.

    estimate   what an operation may use, with a model's context
    in_header  replies whose usage is known before their head name the cost; those of streams do not
    """

    def __init__(self, estimate: Callable[[Op, int | None], Cost], in_header: bool) -> None:
        self._estimate = estimate
        self._in_header = in_header

    def begun(self, call: Call) -> None:  # once, whatever number of models is asked
        if self._in_header:
            call.reply.explain_by(partial(self._header, call))

    def settled(self, call: Call) -> None:
        record = call.record
        if record.cost is UNSET and record.model and call.served.tariff is not None:
            rates = call.served.tariff.now()
            record.cost = self._cost(call, rates) if rates is not None else UNSET

    def _cost(self, call: Call, rates: Rates) -> int:
        if outcome_of(call.record) == "unserved" or call.question:
            return 0
        usage = used(call.record, call.prompt or 0) or self._most(call)
        return rates.of(usage) if usage is not NOTHING else 0

    def _most(self, call: Call) -> Usage:
        """The most that a worker can have done for a request of which nobody counted anything."""
        op, seconds = call.op, call.runtime.clock() - call.began
        if op is None or call.large:  # an estimate of a large one would hold up the others
            return Usage(
                call.prompt or 0, produced_at_most(getattr(op, "n", 1), seconds), images=getattr(op, "images", 0)
            )
        cost = self._estimate(op, call.served.can.max_context)
        made = min(cost.choices * cost.each, produced_at_most(cost.choices, seconds))
        return Usage(cost.prompt, made, images=cost.images)

    def _header(self, call: Call) -> Headers:
        usage = call.record.usage
        if usage is None or call.record.stream or call.question:
            return []
        rates = call.served.tariff.now() if call.served.tariff is not None else None
        if rates is None:
            return []
        return [(HEADER, shown(rates.of(usage)).encode())]
