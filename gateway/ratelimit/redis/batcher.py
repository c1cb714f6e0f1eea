"""One stream of script calls to one hash slot: batching, overlapping calls, the deadline, the breaker.

Calls overlap: a call does not wait for the answer to the one
before, so a request waits for one round trip, however distant the server is. All that the requests of one round of
`gateway.light_task.LoopRound` reserve and settle leaves in one call at the round's end. A reservation that is
alone in its round leaves at once: the server decides while the request is written for its worker.

Pacing.  A call costs this process as much as about eight operations in it. So while a call is under way, the next one
leaves when the answer arrives, or `PACE` after the last call was sent, whichever is sooner. After a call that carried
several requests, the next one leaves no sooner than `PACE` after it. Sequential requests of one client are never
delayed. Settlements that are not urgent are sent with the next call, or after `COMPANY`: a gateway with little to do
would otherwise make two calls for each request.

Deadline.  `CallDeadlines` gives the time that a call may take, counted from when it was sent. If a call takes longer,
its requests fail with `StoreDown`, and the charges that the server grants them later are undone. A call carries its
deadline in the server's clock; the server runs no admission after it.

Breaker.  Closed: calls are sent. It opens when the oldest call has taken twice its time, or when `FAILURES` calls in a
row ended with an error. Open: nothing is sent, `ask` raises at once, settlements are kept. A background probe runs
every `PROBE_EVERY`; two answers in a row close the breaker, and the backlog is sent first.

A lost call may still run when the server recovers. It is never sent again. So the only wrong charge is that of a
request or a lease that the server decided in time and whose answer was lost: its slots are released, its rates slide
out of their windows. Settlements have no deadline, because they are correct whenever they run.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Future, Task, TimerHandle
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import uniform
from time import monotonic
from typing import Any

from msgspec import Struct

from gateway.background import cancel_tasks
from gateway.light_task import LoopRound, Promise
from gateway.ratelimit.model import ADMITTED, LATE, Plan, Settlement, Verdict
from gateway.ratelimit.redis.call_deadlines import CallDeadlines
from gateway.ratelimit.redis.codec import ADMIT, BEAT, PROBE, SETTLE, Operation, Result, pack, releases_of, unpack
from gateway.ratelimit.redis.link import Link, OnAnswer
from gateway.ratelimit.redis.reasons import Unsent, describe
from gateway.ratelimit.store import StoreDown

FAILURES = 2
PROBE_EVERY = 0.5
PROBE_CONNECT = 1.0
PACE = 0.001
"""Seconds; the resolution of uvloop's timers makes it up to that."""
COMPANY = 0.05
"""Seconds."""
BATCH = 256
MOST_CALLS = 64
"""The most calls under way at once. More would only queue in the server."""
BACKLOG = 20_000
_NO_PLAN = Plan()


class _Call(Struct, eq=False):
    """One call under way. asked: the operations that have an answer. sent: seconds of the event loop's clock; clock:
    microseconds of the monotonic clock."""

    operations: Sequence[Operation]
    asked: Sequence[Operation]
    sent: float
    clock: int = 0
    given_up: bool = False


class Replica(Struct, frozen=True):
    """This process in one hash slot: its heartbeat counter, its name there, and how many microseconds a heartbeat and a
    slot live."""

    key: bytes
    name: str
    beat_ttl: int
    slot_ttl: int


class Batcher:
    """The calls of one hash slot. `up`: the breaker is closed; `reason`: why it is open. timeout: the shortest time, in
    seconds, that a call may take; deadlines: what calls may take now. changed: called after each change of `up`.
    make_room: see `RedisStore`."""

    def __init__(
        self,
        link: Link,
        me: Replica,
        timeout: float,
        changed: Callable[[], None],
        make_room: Callable[[Plan, int], bool],
    ) -> None:
        self.up = False
        self.reason = "not started"
        self.replicas = 1
        self._link = link
        self._me = me
        self.deadlines = CallDeadlines(timeout)
        self._changed = changed
        self._make_room = make_room
        self._queue: deque[Operation] = deque()
        self._backlog: deque[Operation] = deque(maxlen=BACKLOG)
        self._calls: dict[_Call, None] = {}  # the oldest first
        self._urgent = False
        self._flush_scheduled = False  # the queue is sent at the end of the round, or by `_timer`
        self._not_before = 0.0  # 0: any time
        self._timer: TimerHandle | None = None  # sends the queue: after a pause, or because nothing urgent came
        self._watch: TimerHandle | None = None
        self._drained: Future[None] | None = None
        self._probe: Task[None] | None = None
        self._failures = 0
        self._loop = asyncio.get_running_loop()
        self._loop_round = LoopRound.for_loop(self._loop)

    def ask(
        self, code: int, plan: Plan, what: Sequence[Any], holder: str = "", behind: Operation | None = None
    ) -> Promise[Result]:
        """Queues an operation that has an answer, and one `behind` it for the same call. Raises `StoreDown` at once
        while the breaker is open."""
        if not self.up:
            raise StoreDown(self.reason)
        waiter: Promise[Result] = Promise()
        self._queue.append(Operation(code, holder, plan, what, waiter))
        if behind is not None:
            self._queue.append(behind)
        self._want(at_once=self._loop_round.alone)
        return waiter

    def post(
        self, code: int, plan: Plan, what: Sequence[Any], holder: str | Sequence[str], needed: bool = True
    ) -> None:
        """Queues an operation without an answer. needed: it is urgent. While the breaker is open settlements are kept,
        renewals dropped."""
        one = Operation(code, holder, plan, what)
        if self.up:
            self._queue.append(one)
            if needed or self._drained is not None:
                self._want()
            elif not self._flush_scheduled and self._timer is None:
                self._timer = self._loop.call_later(COMPANY, self._send)
        elif code == SETTLE:
            self._backlog.append(one)

    async def beat(self) -> None:
        with contextlib.suppress(StoreDown):
            self._count(await self.ask(BEAT, _NO_PLAN, (self._me.key, self._me.beat_ttl), self._me.name))

    async def start(self) -> None:
        """Probes the server once; if that fails, in the background until it answers."""
        if await self._probe_once(PROBE_CONNECT, connect=True) and await self._probe_once(self.deadlines.most):
            self._recover()
        else:
            self._probe = self._loop.create_task(self._keep_probing())

    async def drain(self) -> None:
        """Sends the queue at once; returns when no call is under way."""
        if self._calls or self._queue:
            drained = self._drained = self._drained or self._loop.create_future()
            self._send()
            await asyncio.shield(drained)

    async def close(self) -> None:
        await self.drain()
        if self.up:
            with contextlib.suppress(StoreDown):
                goodbye = self.ask(BEAT, _NO_PLAN, (self._me.key, 0), self._me.name)
                self._send()
                await goodbye
        await cancel_tasks(self._probe)
        self.up, self.reason = False, "closed"
        self._give_up("closed", ran=True)

    def _count(self, replicas: Result) -> None:
        assert isinstance(replicas, int)
        self.replicas = max(replicas, 1)

    # -- calls under way --------------------------------------------------------------------------------------------

    def _want(self, at_once: bool = False) -> None:
        """The queue is urgent: sets the time at which it is sent. at_once: nothing more comes in this round."""
        self._urgent = True
        if self._flush_scheduled or len(self._calls) >= MOST_CALLS:  # then an answer sends it
            return
        self._flush_scheduled = True
        self._stop_timer()
        loop = self._loop
        wait = self._not_before - loop.time() if self._not_before else 0.0
        if wait > 0:
            self._timer = loop.call_later(wait, self._send)
        elif at_once:
            self._send()
        else:
            self._loop_round.send(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def flush(self) -> None:
        """Called at the end of a loop's round: all that its requests asked for and settled leaves in one call."""
        if self._flush_scheduled and self._timer is None:
            self._send()

    def _send(self) -> None:
        """Sends the queue, unless it is empty."""
        self._flush_scheduled = False
        self._stop_timer()
        queue = self._queue
        operations: list[Operation] = []
        asked: list[Operation] = []
        while queue and not operations:
            for _ in range(min(len(queue), BATCH)):
                one = queue.popleft()
                if one.waiter is None:
                    operations.append(one)
                elif not one.waiter.done:  # else its client has left
                    operations.append(one)
                    asked.append(one)
        self._urgent = bool(queue)
        if not operations:
            self._on_idle()
            return
        loop = self._loop
        now = loop.time()
        call = _Call(operations, asked, now)
        self._calls[call] = None
        self._not_before = now + PACE
        if self._watch is None:
            self._watch = loop.call_later(self.deadlines.seconds, self._look_at_watch)
        if queue:
            self._want()
        self._take(call, self.deadlines.seconds, partial(self._answered, call))

    def _take(self, call: _Call, within: float, answered: OnAnswer) -> None:
        call.clock = int(monotonic() * 1_000_000)
        deadline = self.deadlines.deadline(call.clock, within)
        self._link.call(*pack(call.operations, deadline, self._me.slot_ttl), answered)

    def _results(self, call: _Call, raw: bytes | Exception, prompt: bool) -> list[Result]:
        if isinstance(raw, Exception):
            raise raw
        now, results = unpack(raw)
        self.deadlines.read_clock(now, call.clock, results, prompt)
        return results

    def _on_idle(self) -> None:
        if self._drained is not None and not self._calls and not self._queue:
            self._drained.set_result(None)
            self._drained = None

    def _answered(self, call: _Call, raw: bytes | Exception) -> None:
        calls = self._calls
        if call not in calls:
            return
        now = self._loop.time()
        took = now - call.sent
        prompt = self.deadlines.is_prompt(took)
        try:
            self._resolve(call, self._results(call, raw, prompt), prompt)
        except Exception as error:
            self._failed(error)
            return
        del calls[call]
        self.deadlines.took(took, now)
        self._failures = 0
        if not calls and (len(call.asked) < 2 or self._drained is not None):
            self._not_before = 0.0
            if self._urgent:
                self._send()
        elif self._urgent:
            self._want()
        if not calls:
            self._on_idle()

    def _look_at_watch(self, late: bool = False) -> None:
        """Gives up requests whose call takes too long. A timer runs this when the oldest call is due."""
        self._watch = None
        if not self._calls:
            return
        loop, seconds = self._loop, self.deadlines.seconds
        now = loop.time()
        first = next(iter(self._calls))
        ends = [one.sent + seconds for one in self._calls if not one.given_up][:1]
        left = min([first.sent + 2 * seconds, *ends]) - now
        if left > 0:
            self._watch = loop.call_later(max(left, 0.001), self._look_at_watch)
        elif not late:
            # The answer may have arrived while this process was busy. It is read before the next check.
            self._watch = loop.call_later(0.001, self._look_at_watch, True)
        elif first.sent + 2 * seconds <= now:
            self._failures = FAILURES
            self._failed(TimeoutError())
        else:
            for call in self._calls:
                if call.sent + seconds <= now:
                    call.given_up = True
                    _fail(call.asked, describe(TimeoutError(), seconds))
            self._watch = loop.call_later(0.001, self._look_at_watch)

    def _resolve(self, call: _Call, results: Sequence[Result], prompt: bool) -> None:
        late: list[Operation] = []
        for one, result in zip(call.asked, results, strict=True):
            waiter = one.waiter
            assert waiter is not None
            if waiter.done:  # given up, or its client left
                self._undo(one, result)
            elif not isinstance(result, Verdict) or result.violated == ADMITTED:
                waiter.bring(result)
            elif result.violated == LATE:
                late.append(one)
            elif one.code == ADMIT and not one.again and self._make_room(one.plan, call.clock):
                one.again = True
                self._queue.append(one)
                self._urgent = True
            else:
                waiter.bring(result)

        if self.deadlines.has_jumped(bool(late), prompt):
            self._queue.extend(late)
            self._urgent = True
        else:
            _fail(late, "the store's clock jumps")

    def _undo(self, one: Operation, result: Result) -> None:
        if isinstance(result, Verdict) and one.code == ADMIT and result.violated == ADMITTED:
            charged = one.plan.charged(one.what, result.counters)
            back = [
                Settlement(index, counted.entry, -charged[index], charged[index])
                for index, counted in enumerate(result.counters)
                if counted.entry >= 0
            ]
            self._queue.append(Operation(SETTLE, one.holder, one.plan, back))
            self._urgent = True  # the caller sends it

    def _failed(self, error: Exception) -> None:
        """A call ended with `error`, so the other calls under way are lost too."""
        self._failures += 1
        reason = describe(error, self.deadlines.seconds)
        self._give_up(reason, ran=not isinstance(error, Unsent))
        if self._failures >= FAILURES and self.up:
            self.up, self.reason = False, reason
            if self._probe is None:
                self._probe = self._loop.create_task(self._keep_probing())
            self._changed()
        elif self._backlog:  # still closed
            self._queue.extend(self._backlog)
            self._backlog.clear()
            self._timer = self._loop.call_later(COMPANY, self._send)

    def _give_up(self, reason: str, *, ran: bool) -> None:
        """Drops all calls under way and the queue; keeps settlements, and releases of what was taken. ran: the calls
        may have run or may yet run."""
        self._link.drop()
        calls, self._calls = self._calls, {}
        queued = list(self._queue)
        self._queue.clear()
        for call in calls:
            self._abandon(call.operations, reason, ran=ran)
        self._abandon(queued, reason, ran=False)
        self._stop_timer()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._urgent = self._flush_scheduled = False
        self._not_before = 0.0
        self._on_idle()

    def _abandon(self, operations: Sequence[Operation], reason: str, *, ran: bool) -> None:
        _fail(operations, reason)
        for one in operations:
            keep = releases_of(one) if ran else one if one.code == SETTLE else None
            if keep is not None:
                self._backlog.append(keep)

    async def _keep_probing(self) -> None:
        prompt = 0
        while prompt < 2:
            await asyncio.sleep(uniform(0.8, 1.2) * PROBE_EVERY if prompt == 0 else 0)
            # The first may have to connect, which nobody waits for; the second must be as prompt as a request needs.
            within = PROBE_CONNECT if prompt == 0 else self.deadlines.most
            prompt = prompt + 1 if await self._probe_once(within, connect=prompt == 0) else 0
        self._probe = None
        self._recover()

    async def _probe_once(self, within: float, *, connect: bool = False) -> bool:
        loop = self._loop
        answer: Future[bytes | Exception] = loop.create_future()

        def answered(raw: bytes | Exception) -> None:
            if not answer.done():
                answer.set_result(raw)

        within = max(within, self.deadlines.least)
        began = loop.time()
        call = _Call([Operation(PROBE, self._me.name, _NO_PLAN, (self._me.key, self._me.beat_ttl))], (), began)
        try:
            self._take(call, within, answered)
            async with asyncio.timeout(within):
                raw = await answer
            (replicas,) = self._results(call, raw, self.deadlines.is_prompt(loop.time() - began))
            self._count(replicas)
        except BaseException as error:
            self._link.drop()
            if not isinstance(error, Exception):
                raise
            self.reason = describe(error, within)
            return False
        if not connect:
            now = loop.time()
            self.deadlines.took(now - began, now)
        return True

    def _recover(self) -> None:
        self.up, self.reason, self._failures = True, "", 0
        self._queue.extend(self._backlog)
        self._backlog.clear()
        if self._queue:
            self._want()
        self._changed()


def _fail(operations: Iterable[Operation], why: str) -> None:
    for one in operations:
        if one.waiter is not None and not one.waiter.done:
            one.waiter.fail(StoreDown(why))
