"""Workers that owe answers and make no progress, by a clock of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from gateway.config import Breaker, Queue
from gateway.core.errors import GatewayError, Kind
from gateway.core.figures import Silence
from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.pick import POLICIES
from gateway.fleet.pool import Pool
from gateway.fleet.progress import COUNTED_S, HISTORY_S, TIMES, UNCOUNTED_S
from gateway.fleet.stalls import StallDetector
from gateway.fleet.worker import EngineLoad, Worker, is_open

BREAKER = Breaker(eject_s=30)
BUSY = EngineLoad(1, 0, 1)
IDLE = EngineLoad(0, 0, 0)


class Fleet:
    """Two or more workers of one model, as the detector sees them; its clock moves by `pass_`.

    owed   what the transport says of each worker
    events what became of them
    answer what a question for one token gets; None never answers
    """

    def __init__(self, count: int = 2, stalled_s: float | None = None, share: float = 0.5) -> None:
        self.now = 1000.0
        workers = [Worker(f"http://{number}", BREAKER, None) for number in range(count)]
        self.workers = {("m", worker.address): worker for worker in workers}
        for worker in workers:
            worker.ready = True
        self.pool = Pool(workers, POLICIES["least_busy"](), Queue(), share, clock=lambda: self.now)
        self.owed: dict[Worker, Silence] = {}
        self.events: list[str] = []
        self.asked: list[float] = []
        self.answer: bool | str | None = "never"
        self.detector = StallDetector(cast(Any, self), stalled_s, lambda: self.now)
        self.figure = 0.0

    # -- those of Fleets --

    def has(self, model: str, worker: Worker) -> bool:
        return self.workers.get((model, worker.address)) is worker

    def pool_of(self, model: str, worker: Worker) -> Pool:
        return self.pool

    def silence(self, model: str, worker: Worker, recent: float) -> Silence | None:
        return self.owed.get(worker)

    async def ask(self, model: str, worker: Worker, patience_s: float) -> bool | None:
        self.asked.append(patience_s)
        if isinstance(self.answer, str):
            await asyncio.Event().wait()
        assert not isinstance(self.answer, str)
        return self.answer

    def stalled(self, model: str, worker: Worker) -> None:
        self.events.append(f"stalled {worker.address}")

    def resumed(self, model: str, worker: Worker) -> None:
        self.events.append(f"resumed {worker.address}")

    def leave(self, model: str, worker: Worker) -> None:
        self.events.append(f"leave {worker.address}")

    # -- the test's --

    @property
    def first(self) -> Worker:
        return next(iter(self.workers.values()))

    def send(self, worker: Worker) -> None:
        """A request goes to the worker now."""
        worker.in_flight = 1
        self.owed[worker] = Silence(None, self.now)

    def piece(self, worker: Worker) -> None:
        """A piece of its reply comes."""
        self.owed[worker] = Silence(self.now, self.now)

    def done(self, worker: Worker) -> None:
        worker.in_flight = 0
        worker.progress.replied_at = self.now
        del self.owed[worker]

    def read(self, worker: Worker, load: EngineLoad = BUSY, moves: bool = True) -> None:
        """The engine's figures are read."""
        self.figure += moves
        worker.reported = load
        worker.progress.read((self.figure,), self.now)

    async def pass_(self, seconds: float, step: float = 1.0) -> None:
        """Time passes, with a look each second."""
        for _ in range(int(seconds / step)):
            self.now += step
            self.detector.look(self.now)
            for _ in range(3):  # questions begin, and end
                await asyncio.sleep(0)

    async def work(self, worker: Worker, seconds: float, silence: float = 1.0) -> None:
        """The worker answers, with silences of this length."""
        for _ in range(int(seconds / silence)):
            self.read(worker)
            await self.pass_(silence)


@pytest.fixture
async def patient() -> AsyncIterator[Fleet]:
    """The history of each worker bounds its silence."""
    fleet = Fleet()
    yield fleet
    await fleet.detector.close()


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    """No worker may be silent for more than 10 s."""
    fleet = Fleet(stalled_s=10)
    yield fleet
    await fleet.detector.close()


async def test_a_worker_that_owes_nothing_may_be_silent_for_ever(patient: Fleet) -> None:
    patient.read(patient.first, IDLE)
    patient.read(patient.first, IDLE)
    await patient.pass_(5 * 3600, step=4.0)
    assert not patient.events
    assert not patient.asked


@pytest.mark.parametrize("silence", [1.0, 20.0])
async def test_the_history_of_a_worker_bounds_its_silence(patient: Fleet, silence: float) -> None:
    worker = patient.first
    worker.ready = True
    patient.send(worker)
    await patient.work(worker, HISTORY_S + 20, silence)
    patient.read(worker)
    bound = max(COUNTED_S[0], TIMES * silence)
    await patient.pass_(bound - 2)
    assert patient.events == []
    await patient.pass_(4)
    assert patient.events[:2] == ["stalled http://0", "leave http://0"]
    assert patient.asked[:1] in ([], [30.0]), "a reply of ours proves it; from then on it is asked"
    assert worker.breaker.state(patient.now) == "open"


async def test_an_engine_in_its_first_minutes_may_compile(patient: Fleet) -> None:
    """A healthy engine was silent for 108 s."""
    worker = patient.first
    patient.send(worker)
    await patient.work(worker, 10)
    await patient.pass_(108)
    patient.read(worker)
    await patient.work(worker, HISTORY_S)
    assert patient.events == []
    await patient.pass_(108)
    assert patient.events == [], "it is in its history"


async def test_another_life_begins_as_patiently(patient: Fleet) -> None:
    worker = patient.first
    patient.send(worker)
    await patient.work(worker, HISTORY_S + 20)
    worker.lives += 1
    await patient.work(worker, 10)
    await patient.pass_(COUNTED_S[1] - 5)
    assert not patient.events
    await patient.pass_(10)
    assert "stalled http://0" in patient.events


async def test_bytes_of_any_reply_are_progress(fleet: Fleet) -> None:
    """The engine's figures may stand still: its metrics may be broken."""
    worker = fleet.first
    fleet.send(worker)
    await fleet.work(worker, 5)
    for _ in range(5):
        await fleet.pass_(8)
        fleet.piece(worker)
    for _ in range(5):
        await fleet.pass_(8)
        worker.progress.replied_at = fleet.now
    assert fleet.events == []
    await fleet.pass_(12)
    assert "stalled http://0" in fleet.events


async def test_a_long_prompt_that_moves_the_engines_figures_is_progress(fleet: Fleet) -> None:
    fleet.send(fleet.first)
    await fleet.work(fleet.first, 300, 5.0)
    assert not fleet.events
    assert not fleet.asked


async def test_figures_that_never_moved_prove_nothing(fleet: Fleet) -> None:
    """They may be wrong. The engine is asked."""
    worker = fleet.first
    fleet.answer = True
    fleet.send(worker)
    for _ in range(60):
        fleet.read(worker, moves=False)
        await fleet.pass_(1)
    assert fleet.events == []
    assert fleet.asked


async def test_without_figures_a_question_decides(patient: Fleet) -> None:
    worker = patient.first
    patient.send(worker)
    patient.piece(worker)
    await patient.pass_(298)
    assert patient.asked == []
    patient.answer = True
    await patient.pass_(4)
    assert patient.asked == [30.0]
    assert patient.events == []
    patient.answer = False
    await patient.pass_(UNCOUNTED_S[1] - 3)
    assert patient.events == [], "it was silent for 300 s, and lived"
    await patient.pass_(10)
    assert patient.events[0] == "stalled http://0"


@pytest.mark.parametrize("owed", [True, False])
async def test_without_figures_and_questions_our_own_reply_decides(fleet: Fleet, owed: bool) -> None:
    worker = fleet.first
    fleet.answer = None
    for _ in range(40):
        if not owed or worker not in fleet.owed:
            fleet.send(worker)
        await fleet.pass_(1)
    assert ("stalled http://0" in fleet.events) == owed


async def test_impatient_clients_prove_nothing(fleet: Fleet) -> None:
    """Each leaves after a second. The engine is asked for a token, answers, and stays."""
    worker = fleet.first
    await fleet.work(worker, 5)
    fleet.answer = True
    for _ in range(100):
        fleet.send(worker)
        await fleet.pass_(1)
        del fleet.owed[worker]
        fleet.pool.abandoned(worker, worker.generation)
        fleet.read(worker, IDLE, moves=False)
    assert fleet.events == []
    assert 1 <= len(fleet.asked) <= 11
    fleet.answer = False
    await fleet.pass_(30)
    assert fleet.events[0] == "stalled http://0", "they left, and it is asked in vain: their leaving was evidence"


async def test_the_engines_word_proves_nothing(fleet: Fleet) -> None:
    """Gauges may keep a request that is over. With work of others its other figures move."""
    worker = fleet.first
    await fleet.work(worker, 60)
    assert fleet.asked == []
    fleet.answer = True
    for _ in range(30):
        fleet.read(worker, BUSY, moves=False)
        await fleet.pass_(1)
    assert fleet.events == []
    assert fleet.asked


async def test_metrics_that_cannot_be_read_prove_nothing(fleet: Fleet) -> None:
    worker = fleet.first
    fleet.send(worker)
    await fleet.work(worker, 5)
    worker.forget_load()
    fleet.answer = True
    await fleet.pass_(30)
    assert fleet.events == []
    assert fleet.asked


async def test_a_gateway_that_stood_still_blames_nobody(fleet: Fleet) -> None:
    worker = fleet.first
    fleet.send(worker)
    await fleet.work(worker, 5)
    fleet.now += 600
    await fleet.pass_(9)
    assert not fleet.events
    assert not fleet.asked
    await fleet.pass_(3)
    assert "stalled http://0" in fleet.events


async def stalled(fleet: Fleet) -> Worker:
    worker = fleet.first
    fleet.send(worker)
    await fleet.work(worker, 5)
    await fleet.pass_(11)
    assert "stalled http://0" in fleet.events
    fleet.events.clear()
    return worker


@pytest.mark.parametrize("how", ["figures", "bytes", "answer", "life"])
async def test_a_worker_that_moves_comes_back_by_a_trial(fleet: Fleet, how: str) -> None:
    if how == "answer":
        fleet.answer = False
    worker = await stalled(fleet)
    await fleet.pass_(10)
    assert set(fleet.events) == {"leave http://0"}, "those that no other worker could take are offered again"
    fleet.events.clear()
    match how:
        case "figures":
            fleet.read(worker)
        case "bytes":
            fleet.piece(worker)
        case "answer":
            fleet.answer = True
        case "life":
            worker.lives += 1
    await fleet.pass_(8)
    assert "resumed http://0" in fleet.events
    assert worker.breaker.state(fleet.now) == "half_open"
    assert is_open(worker, fleet.now)
    worker.breaker.begin(fleet.now)
    assert not worker.breaker.allows(fleet.now), "one request tries it"
    fleet.pool.answered(worker, worker.generation)
    assert worker.breaker.share(fleet.now) < 0.1, "it takes its share little by little"


async def test_a_worker_that_stalls_again_in_its_trial_is_left_out_again(fleet: Fleet) -> None:
    worker = await stalled(fleet)
    fleet.read(worker)
    await fleet.pass_(1)
    assert worker.breaker.state(fleet.now) == "half_open"
    fleet.send(worker)
    await fleet.pass_(12)
    assert worker.breaker.state(fleet.now) == "open"


async def test_outcomes_of_requests_before_the_stall_do_not_count(fleet: Fleet) -> None:
    worker = fleet.first
    before = worker.generation
    await stalled(fleet)
    for _ in range(10):
        fleet.pool.failed(worker, before, GatewayError(Kind.TIMEOUT, "left"))
    fleet.pool.succeeded(worker, before)
    assert worker.breaker.state(fleet.now) == "open"
    assert worker.breaker.ejections == 1


async def test_where_nothing_but_a_request_can_tell_one_tries_after_a_while(fleet: Fleet) -> None:
    worker = await stalled(fleet)
    fleet.answer = None
    for task in fleet.detector._asking.values():  # a question without an answer
        task.cancel()
    await fleet.pass_(BREAKER.eject_s + 2)
    assert worker.breaker.state(fleet.now) == "half_open"


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_the_last_workers_are_never_left_out(count: int) -> None:
    """As many as the breaker may leave out; the others rest: they are preferred to nobody, and still there."""
    fleet = Fleet(count, stalled_s=10)
    for worker in fleet.workers.values():
        fleet.send(worker)
    for _ in range(3):
        for worker in fleet.workers.values():
            fleet.read(worker)
        await fleet.pass_(1)
    await fleet.pass_(12)
    states = [worker.breaker.state(fleet.now) for worker in fleet.workers.values()]
    assert states.count("open") == count // 2
    assert all(worker.progress.stalled for worker in fleet.workers.values()), "all of them are shown"
    assert fleet.pool.try_acquire((), RoutingFacts()) is not None
    await fleet.detector.close()


async def test_a_stalled_worker_that_cannot_be_spared_is_the_last_choice() -> None:
    fleet = Fleet(2, stalled_s=10, share=0.0)
    worker = await stalled(fleet)
    assert worker.breaker.state(fleet.now) == "closed"
    taken = [fleet.pool.try_acquire((), RoutingFacts()) for _ in range(10)]
    assert worker not in taken
    await fleet.detector.close()


async def test_zero_is_off_and_brings_back_what_was_left_out(fleet: Fleet) -> None:
    worker = await stalled(fleet)
    off = StallDetector(cast(Any, fleet), 0, lambda: fleet.now)
    off.look(fleet.now)
    assert fleet.events[-1] == "resumed http://0"
    assert worker.breaker.state(fleet.now) == "half_open"


async def test_a_worker_that_is_down_and_owes_nothing_is_not_judged(fleet: Fleet) -> None:
    worker = fleet.first
    fleet.send(worker)
    await fleet.work(worker, 5)
    fleet.done(worker)
    fleet.read(worker, BUSY)  # its figures are the last ones that were read
    worker.ready = False
    await fleet.pass_(30)
    assert not fleet.events
    assert not fleet.asked


@pytest.mark.parametrize("counted", [False, True])
async def test_requests_leave_a_worker_whose_probes_fail_and_whose_replies_are_silent(
    patient: Fleet, counted: bool
) -> None:
    worker = patient.first
    patient.send(worker)
    if counted:
        await patient.work(worker, 5)
    patient.piece(worker)
    worker.ready = False
    least = (COUNTED_S if counted else UNCOUNTED_S)[0]
    await patient.pass_(least - 2)
    assert not patient.events, "its replies may still flow"
    await patient.pass_(3)
    assert patient.events[:2] == ["stalled http://0", "leave http://0"]
    await patient.pass_(200)
    assert not patient.asked, "its probes ask"
    assert "resumed http://0" not in patient.events
    worker.ready = True
    patient.piece(worker)
    await patient.pass_(2)
    assert patient.events[-1] == "resumed http://0"


async def test_requests_leave_a_leaving_worker_until_it_has_none() -> None:
    fleet = Fleet(stalled_s=0)
    worker = fleet.first
    worker.draining = worker.leaving = True
    worker.in_flight = 1
    await fleet.pass_(2)
    worker.in_flight = 0
    await fleet.pass_(2)
    assert fleet.events == ["leave http://0"] * 2


async def left_alone(fleet: Fleet, worker: Worker | None = None) -> None:
    """Clients leave the first worker, and others answer."""
    fleet.detector.left_alone("m", worker or fleet.first, fleet.now - 1)
    for _ in range(3):
        await asyncio.sleep(0)


async def test_figures_do_not_clear_a_worker_that_clients_left_alone(patient: Fleet) -> None:
    worker = patient.first
    await left_alone(patient)
    assert patient.events == ["stalled http://0"]
    for _ in range(60):
        patient.read(worker)
        await patient.pass_(1)
    assert worker.progress.stalled, "the engine computes, and its server swallows the replies"
    worker.progress.replied_at = patient.now
    await patient.pass_(1)
    assert "resumed http://0" in patient.events


async def test_an_answer_to_the_gateways_question_clears_it_once(patient: Fleet) -> None:
    patient.answer = True
    await left_alone(patient)
    await patient.pass_(2)
    assert patient.events == ["stalled http://0", "resumed http://0"]
    assert set(patient.asked) == {30.0}
    patient.events.clear()
    await patient.pass_(10)
    await left_alone(patient)
    await patient.pass_(BREAKER.eject_s)
    assert patient.events == ["stalled http://0"], "clients get no answer all the same"
    await patient.pass_(2 * BREAKER.eject_s)
    assert patient.events == ["stalled http://0", "resumed http://0"], "a request tries it"


@pytest.mark.parametrize("why", ["piece", "off", "down", "leaving", "left"])
async def test_clients_that_leave_blame_no_worker_that_answers_or_is_not_judged(fleet: Fleet, why: str) -> None:
    worker = fleet.first
    match why:
        case "piece":
            fleet.piece(worker)
        case "off":
            fleet.detector._stalled_s = 0  # as a reload would
        case "down":
            worker.ready = False
        case "leaving":
            worker.leaving = True
        case "left":
            del fleet.workers["m", worker.address]
    await left_alone(fleet, worker)
    assert fleet.events == []
