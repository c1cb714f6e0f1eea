"""The workers as the page asks for them: all of them briefly in each poll, and one page with all that is known.

A fleet may have hundreds of workers.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from gateway.background import in_turns
from gateway.features.console.state import WORST, State, WorkerState

MOST = 500
"""Workers of one page."""
_TURN = 500
"""Workers that are looked at before the event loop has its turn."""


class WorkerLoad(Struct, frozen=True, array_like=True):
    """The part of `state.WorkerState` that plots and counts are made of."""

    address: str
    condition: str
    in_flight: int


class Entry(Struct, frozen=True):
    """A worker with its model's name."""

    model: str
    worker: WorkerState

    def matches(self, text: str) -> bool:
        one = self.worker
        names = (self.model, one.address, one.condition, one.reason, one.served_as, *one.serves)
        return any(text in name.lower() for name in names if name)


class Workers(Struct, frozen=True):
    """A page of workers, those that are not ready first. total: how many match on all pages."""

    workers: Sequence[Entry]
    total: int


def brief(state: State) -> State:
    """The state with a `WorkerLoad` for each worker."""
    models = [
        msgspec.structs.replace(
            model, workers=[WorkerLoad(one.address, one.condition, one.in_flight) for one in model.workers]
        )
        for model in state.models
    ]
    return msgspec.structs.replace(state, models=models)


async def page_of(state: State, match: str, skip: int, limit: int) -> Workers:
    """`limit` of the workers that have the text `match` in a name, a condition or a reason, after `skip` of them."""
    every = (Entry(model.name, one) for model in state.models for one in model.workers)
    text = match.lower()
    found = [one async for one in in_turns(every, _TURN) if one.matches(text)]
    found.sort(key=lambda one: WORST.index(one.worker.condition))
    return Workers(found[skip : skip + limit], len(found))
