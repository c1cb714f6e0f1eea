"""What a client should understand of a reply, and what it is shown of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from gateway.core.events import Event, Finish
from gateway.core.ports import Lane
from tests.laws.conformance.cases import Case


def assert_incomplete(case: Case, out: bytes, lane: Lane, events: list[Event], message: str | None = None) -> None:
    assert lane.error is not None
    assert not lane.done
    if not out:
        return
    heard = case.client.hear(out)
    assert not heard.complete
    assert heard.error == (message or lane.error.message)
    finished = {event.choice for event in events if isinstance(event, Finish)}
    assert {index for index, choice in heard.choices.items() if choice.finish is not None} <= finished


def held(laws: tuple[Callable[[Case], int], ...], cases: list[Case]) -> int:
    """How many checks the laws made. A failure names its law and its case."""
    count = 0
    for law, case in itertools.product(laws, cases):
        try:
            count += law(case)
        except BaseException as error:
            error.add_note(f"{law.__name__}: {case}")
            raise
    return count
