"""Finds workers that owe answers and make no progress, whatever their health path answers.

Proof of a stall is a reply that was silent for the bound, while neither the figures of the engine nor any other reply
moved. Clients that left unanswered are evidence, and so are requests that the engine alone reports, and any silence of
an engine without figures. On evidence the gateway asks for one token itself, and a worker that does not answer in time
is stalled. A silent worker whose probes fail is stalled without a question, and its history does not count.

Clients that leave one worker alone are proof by their number (`departures`): no question is asked before.

A stalled worker comes back when it moves or answers such a question; the breaker's trial follows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.background import cancel_tasks, keep_running
from gateway.fleet.worker import Worker

if TYPE_CHECKING:
    from gateway.fleet.fleets import Fleets

LOOK_S = 1.0
_ABSENT_S = 5.0
"""After a look that comes so late, this gateway itself stood still, and cannot tell what workers did."""
_RECENT_S = 2.0
"""A piece of a reply that is not older is progress enough: the others need not be looked at."""
_LEAST_PATIENCE_S = 2.0
_MOST_PATIENCE_S = 30.0
_ASK_AGAIN_S = 5.0


class StallDetector:
    """Looks at all workers every second, until closed.

    stalled_s  the bound for all workers; None: each one's history decides; 0: none is ever stalled
    """

    def __init__(self, fleets: Fleets, stalled_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._fleets = fleets
        self._stalled_s = stalled_s
        self._clock = clock
        self._looked_at = self._awake_since = clock()
        self._asking: dict[Worker, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        task, self._task = self._task, None
        await cancel_tasks(task, *self._asking.values())

    async def _run(self) -> None:
        pause = LOOK_S if not self._stalled_s else min(LOOK_S, self._stalled_s / 4)
        while True:
            await asyncio.sleep(pause)
            with keep_running("stalled workers"):
                self.look(self._clock())

    def look(self, now: float) -> None:
        """Looks at all workers. now: by the detector's clock."""
        passed = now - self._looked_at
        self._looked_at = now
        if passed > _ABSENT_S:
            self._awake_since, passed = now, 0.0
        workers = self._fleets.workers
        longest: dict[str, float] = {}
        for (model, _), worker in workers.items():
            longest[model] = max(longest.get(model, 0.0), worker.progress.longest(now))
        for (model, _), worker in list(workers.items()):
            progress = worker.progress
            if worker.lives != progress.life:
                progress.begin_life(worker.lives)
                self._resume(model, worker)
            if worker.leaving:
                self._leave(model, worker)
            elif self._stalled_s == 0:
                self._resume(model, worker)
            else:
                self._judge(model, worker, now, passed, self._bound(worker, longest[model]))

    def left_alone(self, model: str, worker: Worker, since: float) -> None:
        """Clients have left the worker unanswered, one after the other, while others answer (`departures`). It counts
        as stalled from now on, unless a piece of a reply has come since then. Figures of its engine do not clear it:
        a server may swallow what its engine computes. An answer does, and the gateway asks for one at once."""
        progress = worker.progress
        if self._stalled_s == 0 or progress.stalled or not worker.ready or worker.leaving:
            return
        if not self._fleets.has(model, worker):
            return
        now = self._clock()
        silence = self._fleets.silence(model, worker, since)
        if silence is not None and silence.body_at is not None and silence.body_at > since:
            return
        progress.left_alone = True
        progress.doubted = progress.vouched_at > progress.answered_at
        self._stall(model, worker, now)
        self._ask(model, worker, 0.0, True)

    def _bound(self, worker: Worker, longest: float) -> float:
        progress = worker.progress
        return self._stalled_s or (progress.bound(longest) if worker.ready else progress.least)

    def _judge(self, model: str, worker: Worker, now: float, passed: float, bound: float) -> None:
        progress, load = worker.progress, worker.reported
        silence = self._fleets.silence(model, worker, now - min(_RECENT_S, bound / 2))
        engine_owes = worker.ready and load is not None and load.running + load.waiting > 0
        silent = progress.look(now, passed, silence, engine_owes)
        if progress.stalled_at is not None:
            if (progress.lived_at if progress.left_alone else progress.moved_at) > progress.stalled_at:
                self._resume(model, worker)
            else:
                self._stay(model, worker, now, bound)
            return
        silent = min(silent, now - self._awake_since)
        if silent < bound:
            return
        owed_for = 0.0 if silence is None else min(silent, now - silence.since)
        proof = not worker.ready or (progress.counted and load is not None)
        if proof and owed_for >= bound:
            self._stall(model, worker, now)
        else:
            self._ask(model, worker, bound, owed_for >= bound)

    def _stay(self, model: str, worker: Worker, now: float, bound: float) -> None:
        """The worker is still stalled."""
        progress = worker.progress
        assert progress.stalled_at is not None
        asked = worker.ready and progress.asked_at > progress.stalled_at
        if asked and now - progress.stalled_at >= worker.breaker.eject_s > 0:
            self._resume(model, worker)  # nothing answers for the model but a request
            return
        self._fleets.pool_of(model, worker).stall(worker)
        self._leave(model, worker)
        self._ask(model, worker, bound, True)

    def _leave(self, model: str, worker: Worker) -> None:
        if worker.in_flight:
            self._fleets.leave(model, worker)

    def _stall(self, model: str, worker: Worker, now: float) -> None:
        worker.progress.stalled_at = now
        self._fleets.pool_of(model, worker).stall(worker)
        self._fleets.stalled(model, worker)
        self._leave(model, worker)

    def _resume(self, model: str, worker: Worker) -> None:
        progress = worker.progress
        if progress.stalled_at is not None:
            progress.resume(self._clock())
            self._fleets.pool_of(model, worker).resume(worker)
            self._fleets.resumed(model, worker)

    # -- the gateway's own question ---------------------------------------------------------------------------------

    def _ask(self, model: str, worker: Worker, bound: float, owed: bool) -> None:
        """Asks the worker for a token, unless its probes fail, a question is under way, or one has just got an error.
        owed: it has owed this gateway a reply for the bound."""
        if worker.ready and worker not in self._asking and self._clock() - worker.progress.asked_at >= _ASK_AGAIN_S:
            progress = worker.progress
            if progress.stalled:  # a question that is cut each time never gets its answer from a slow engine
                patience = _MOST_PATIENCE_S
            elif owed or progress.counted:
                patience = min(max(_LEAST_PATIENCE_S, bound / 2), _MOST_PATIENCE_S)
            else:  # the question alone has to be as silent as a reply may be
                patience = bound
            task = asyncio.create_task(self._question(model, worker, patience, owed))
            self._asking[worker] = task
            task.add_done_callback(lambda task: self._asking.pop(worker))

    async def _question(self, model: str, worker: Worker, patience: float, owed: bool) -> None:
        progress = worker.progress
        began, life = self._clock(), worker.lives
        with keep_running("a stalled worker's question"):
            answered = await self._fleets.ask(model, worker, patience)
            now = self._clock()
            if worker.lives != life or not self._fleets.has(model, worker):
                return
            if answered and not progress.doubted:
                progress.move(now)
                if progress.left_alone:
                    progress.vouched_at = now
                return
            answered = None if answered else answered
            if answered is None:
                progress.asked_at = now
            silent = not progress.stalled and progress.owing and progress.moved_at < began and worker.ready
            if silent and (owed if answered is None else True):
                self._stall(model, worker, now)
