"""Clients that leave before the first byte: an engine that hangs is found by them, and a sound one is not blamed."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.departures import LEAST, WINDOW_S, Departures, Wait
from tests.unit.fleet.departing import FAULTS, HEALTHY, faulty, healthy

ONE, OTHER = "one", "other"
LIKE = "chat", True


def wait(worker: str, at: float, *, answered: bool = False, size: float = 1000, seconds: float = 1.0) -> Wait:
    return Wait(worker, LIKE, size, 0, 0.2 if answered else seconds, answered, at)


def answers(departures: Departures, count: int = 20, at: float = 0.0, **more: Any) -> None:
    for number in range(count):
        departures.record(wait(OTHER, at + number / 10, answered=True, **more))


def leave(departures: Departures, count: int, at: float = 3.0, **more: Any) -> list[float | None]:
    return [departures.record(wait(ONE, at + number / 10, **more)) for number in range(count)]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_a_hung_engine_loses_at_most_12_of_150_requests(fault: tuple[Any, ...]) -> None:
    found = await faulty(*cast(Any, fault))
    assert len(found.lost) <= 12
    assert {worker for _, worker in found.suspected} == {0}


@pytest.mark.parametrize("options", HEALTHY[::9], ids=str)
async def test_no_sound_engine_is_suspected(options: dict[str, Any]) -> None:
    """Under overload, for clients that are too impatient for the fleet, and beside long prompts."""
    found = await healthy(**options)
    assert found.served
    assert found.suspected == []


@pytest.mark.long
@pytest.mark.parametrize("options", [one for number, one in enumerate(HEALTHY) if number % 9], ids=str)
async def test_no_sound_engine_is_suspected_in_further_draws(options: dict[str, Any]) -> None:
    found = await healthy(**options)
    assert found.suspected == []


def test_departures_in_a_row_while_others_answer_make_a_worker_suspect() -> None:
    departures = Departures()
    answers(departures)
    assert leave(departures, LEAST) == [None] * (LEAST - 1) + [2.0], "since the first of them was sent"
    assert leave(departures, LEAST - 1, 5.0) == [None] * (LEAST - 1), "the count began anew"


def test_any_answer_ends_the_count() -> None:
    departures = Departures()
    answers(departures)
    leave(departures, LEAST - 1)
    departures.record(wait(ONE, 4.0, answered=True))
    assert leave(departures, LEAST - 1, 5.0) == [None] * (LEAST - 1)


@pytest.mark.parametrize(
    "others",
    [
        {"count": 3},
        {"size": 400},
        {"at": -2 * WINDOW_S},
    ],
    ids=["few", "smaller", "long-ago"],
)
def test_what_others_did_not_do_is_no_evidence(others: dict[str, Any]) -> None:
    departures = Departures()
    answers(departures, **others)
    assert not any(leave(departures, 50))


def test_others_that_are_no_faster_are_no_evidence() -> None:
    departures = Departures()
    answers(departures)
    assert not any(leave(departures, 50, seconds=0.3))


def test_where_clients_leave_all_workers_no_departure_counts() -> None:
    departures = Departures()
    answers(departures)
    for number in range(LEAST):
        departures.record(wait(OTHER, 2.0 + number / 10))
    assert not any(leave(departures, 50))


def test_a_larger_prompt_that_is_under_way_is_an_excuse_for_its_time() -> None:
    departures, large = Departures(), RoutingFacts(size=100_000)
    answers(departures)
    departures.begin(ONE, large, 2.5)
    assert not any(leave(departures, 50))
    departures.end(ONE, large)
    assert any(leave(departures, LEAST, 10.0))


def test_a_large_prompt_whose_client_left_has_kept_others_waiting() -> None:
    departures = Departures()
    answers(departures)
    departures.record(wait(ONE, 3.0, size=100_000))
    assert not any(leave(departures, 9, 3.05)), "they had been sent before it left"
    assert any(leave(departures, LEAST, 4.1))


def test_workers_that_are_gone_are_forgotten() -> None:
    departures = Departures()
    answers(departures)
    leave(departures, LEAST - 1)
    departures.keep([OTHER])
    assert leave(departures, LEAST - 1, 4.0) == [None] * (LEAST - 1)
