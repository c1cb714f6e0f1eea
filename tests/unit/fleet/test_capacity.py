"""How many requests a worker takes, as its engine's figures tell."""

from __future__ import annotations

import pytest

from gateway.config import Breaker
from gateway.fleet.capacity import forget, learn
from gateway.fleet.worker import EngineLoad, Worker


def learning() -> tuple[Worker, list[int | None]]:
    """A worker, and what its limit was each time that it called for those who wait."""
    worker = Worker("http://w", Breaker(failures=2, eject_s=10, slowstart_s=10), None)
    worker.learns = True
    told: list[int | None] = []
    worker.on_free.append(lambda: told.append(worker.max_in_flight))
    return worker, told


def limit(worker: Worker) -> int | None:
    return worker.max_in_flight


def test_a_worker_in_which_requests_wait_twice_is_full() -> None:
    worker, told = learning()
    learn(worker, EngineLoad(16, 9, 25))
    assert limit(worker) is None, "a burst waits for a moment"
    learn(worker, EngineLoad(16, 9, 25))
    assert worker.max_in_flight == 18
    assert told == []
    learn(worker, EngineLoad(16, 2, 18))
    assert worker.max_in_flight == 18, "what it runs, and a little that waits there: it stays"


def test_a_moment_without_a_queue_begins_anew() -> None:
    worker, _ = learning()
    for load in (EngineLoad(4, 3, 7), EngineLoad(4, 0, 4), EngineLoad(4, 3, 7)):
        learn(worker, load)
    assert worker.max_in_flight is None


def test_it_grows_while_the_engine_has_room_and_serves_those_who_wait() -> None:
    worker, told = learning()
    worker.max_in_flight = 8
    learn(worker, EngineLoad(8, 0, 8))
    learn(worker, EngineLoad(10, 0, 10))
    assert worker.max_in_flight == 12
    learn(worker, EngineLoad(9, 0, 9))
    assert worker.max_in_flight == 12, "not all of it is used"
    learn(worker, EngineLoad(5, 0, 5))
    assert told == [10, 12, None]


@pytest.mark.parametrize(
    ("load", "limit"),
    [(EngineLoad(32, 32, 16), 9), (EngineLoad(32, 32, 0), 2), (EngineLoad(0, 5, 5), 2), (EngineLoad(8, 1, 99), 9)],
    ids=["a quarter is ours", "all others'", "nothing runs yet", "more of ours than it has"],
)
def test_only_our_share_of_what_runs_counts_and_one_may_always_go(load: EngineLoad, limit: int) -> None:
    worker, _ = learning()
    learn(worker, load)
    learn(worker, load)
    assert worker.max_in_flight == limit


def test_what_is_configured_is_not_learnt() -> None:
    worker = Worker("http://w", Breaker(failures=2, eject_s=10, slowstart_s=10), 5)
    for _ in range(3):
        learn(worker, EngineLoad(50, 9, 59))
    forget(worker)
    assert worker.max_in_flight == 5


def test_an_engine_that_tells_nothing_any_more_has_no_limit() -> None:
    worker, told = learning()
    worker.max_in_flight = 3
    forget(worker)
    assert told == [None]
