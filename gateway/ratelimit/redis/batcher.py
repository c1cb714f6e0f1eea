"""One stream of script calls to one hash slot: batching, overlapping calls, the deadline, the breaker.

This module does not know redis; `Link` is its connection. Calls overlap: a call does not wait for the answer to the one
before, so a request waits for one round trip, however distant the server is. What the requests of one round of
`gateway.light_task.LoopRound` ask for and settle leaves in one call at the round's end.

Pacing.  A call costs this process as much as about eight operations in it. So while a call is under way, the next one
leaves when the answer arrives, or `PACE` after the last call was sent, whichever is sooner. After a call that carried
several requests, the next one leaves no sooner than `PACE` after it. A single client that sends one request after the
other never waits for pacing. A settlement that nobody needs soon leaves with the next call that somebody does need, or
`COMPANY` later: a gateway with little to do would else make two calls for each request.

Deadline.  `Patience` gives the time that a call may take, counted from when it was sent. If a call takes longer, its
requests fail with `StoreDown`, and what the server grants them later is undone. A call carries its deadline in the
server's clock; the server runs no admission after it.

Breaker.  Closed: calls are sent. It opens when the oldest call has taken twice its time, or when `FAILURES` calls in a
row ended with an error. Open: nothing is sent, `ask` raises at once, settlements are kept. A background probe runs
every `PROBE_EVERY`; two answers in a row close the breaker, and the kept settlements are sent first.

A lost call may still run when the server recovers. It is never sent again. So the only wrong charge is that of a
request that the server decided in time and whose answer was lost: its rates slide out of their windows, its slots
expire with their lease. Settlements have no deadline, because they are correct whenever they run.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Future, Task, TimerHandle
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import uniform
from time import monotonic
from typing import Any, Protocol

from msgspec import Struct

from gateway.light_task import LoopRound, Promise
from gateway.ratelimit.model import Plan, Verdict
from gateway.ratelimit.redis.codec import ADMIT, BEAT, PROBE, SETTLE, Item, only_releases, pack, unpack
from gateway.ratelimit.redis.patience import Patience
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
KEPT = 20_000
_NO_PLAN = Plan((), (), ())
_LATE = -2  # `violated` of a verdict, see gateway/ratelimit/model.py

Heard = Callable[[bytes | Exception], None]


class Link(Protocol):
    """Takes calls to the server."""

    def call(self, keys: Sequence[bytes], payload: bytes, heard: Heard) -> None:
        """Runs the script with these keys and this payload. Calls `heard` once, after this has returned: with the
        answer, with `Unsent` if the script certainly did not run, or with any other exception. After an exception the
        other calls under way get no answer."""
        ...

    def drop(self) -> None:
        """Gives up all calls under way: none of them gets an answer."""
        ...


class _Call(Struct, eq=False):
    """One call under way. asked: of its items those that have an answer, and who waits for it. sent: seconds of the
    event loop's clock; clock: microseconds of the monotonic clock."""

    items: Sequence[Item]
    asked: Sequence[tuple[Item, Promise[Verdict]]]
    sent: float
    clock: int
    given_up: bool = False


class Batcher:
    """key is the heartbeat counter of this hash slot, me this process's name in it. timeout is the shortest time that a
    call may take, in seconds."""

    def __init__(
        self, link: Link, key: bytes, me: str, timeout: float, beat_ttl: float, changed: Callable[[], None]
    ) -> None:
        self.up = False
        self.reason = "not started"
        self.replicas = 1
        self.lease_ttl = 30_000_000
        self._link = link
        self._key = key
        self._me = me
        self._patience = Patience(timeout)
        self._beat_ttl = round(beat_ttl * 1_000_000)
        self._changed = changed
        self._queue: deque[Item] = deque()
        self._kept: deque[Item] = deque(maxlen=KEPT)
        self._calls: dict[_Call, None] = {}  # the oldest first
        self._last_sent = 0.0
        self._wanted = False  # somebody needs what is queued
        self._due = False  # a time at which the queue is sent is set
        self._crowded = False  # and it is not to be sent before
        self._next: TimerHandle | None = None
        self._watch: TimerHandle | None = None
        self._patient: TimerHandle | None = None  # ends the wait of settlements that nobody needs
        self._drained: Future[None] | None = None
        self._probe: Task[None] | None = None
        self._failures = 0
        self._jumped = False
        self._offset: int | None = None
        self._loop = asyncio.get_running_loop()
        self._loop_round = LoopRound.for_loop(self._loop)

    def ask(self, code: int, plan: Plan, what: Sequence[Any], lease: str = "") -> Promise[Verdict]:
        """Queues an operation that has an answer. Raises `StoreDown` at once while the breaker is open."""
        if not self.up:
            raise StoreDown(self.reason)
        waiter: Promise[Verdict] = Promise()
        self._queue.append((code, lease, plan, what, waiter))
        self._want()
        return waiter

    def post(self, code: int, plan: Plan, what: Sequence[Any], lease: str, needed: bool = True) -> None:
        """Queues an operation without an answer. needed: soon. While the breaker is open settlements are kept, renewals
        dropped."""
        if self.up:
            self._queue.append((code, lease, plan, what, None))
            if needed or self._drained is not None:
                self._want()
            elif self._patient is None:
                self._patient = self._loop.call_later(COMPANY, self._lose_patience)
        elif code == SETTLE:
            self._kept.append((code, lease, plan, what, None))

    async def beat(self) -> None:
        with contextlib.suppress(StoreDown):
            self.replicas = max((await self.ask(BEAT, _NO_PLAN, (self._key, self._beat_ttl), self._me))[0], 1)

    async def start(self) -> None:
        """Probes the server once; if that fails, in the background until it answers."""
        if await self._probe_once(PROBE_CONNECT, connect=True) and await self._probe_once(self._patience.most):
            self._recover()
        else:
            self._probe = self._loop.create_task(self._keep_probing())

    async def drain(self) -> None:
        """Sends the queue at once; returns when no call is under way."""
        if self._calls or self._queue:
            drained = self._drained = self._drained or self._loop.create_future()
            if self._queue:
                self._send()
            await asyncio.shield(drained)

    async def close(self) -> None:
        await self.drain()
        if self.up:
            with contextlib.suppress(StoreDown):
                goodbye = self.ask(BEAT, _NO_PLAN, (self._key, 0), self._me)
                self._send()
                await goodbye
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.wait([self._probe])
        self.up, self.reason = False, "closed"
        self._give_up("closed", ran=True)

    # -- calls under way --------------------------------------------------------------------------------------------

    def _want(self) -> None:
        """The queue is to be sent."""
        self._wanted = True
        if not self._due:
            self._schedule()

    def _lose_patience(self) -> None:
        self._patient = None
        if self._queue:
            self._want()

    def _schedule(self) -> None:
        """Sets the time at which the queue is sent."""
        self._due = True
        if not self._calls:
            self._loop_round.send(self)
        elif len(self._calls) < MOST_CALLS:
            wait = self._last_sent + PACE - self._loop.time()
            if wait > 0:
                self._next = self._loop.call_later(wait, self._send)
            else:
                self._loop_round.send(self)
        # Else an answer sends it.

    def flush(self) -> None:
        """Called at the end of a loop's round: all that its requests asked for and settled leaves in one call."""
        if self._due and not self._crowded:
            self._send()

    def _send(self) -> None:
        """Sends the queue, unless it is empty."""
        self._due = self._crowded = False
        if self._next is not None:
            self._next.cancel()
            self._next = None
        queue = self._queue
        items: list[Item] = []
        asked: list[tuple[Item, Promise[Verdict]]] = []
        while queue and not items:
            if len(queue) <= BATCH:
                due = list(queue)
                queue.clear()
            else:
                due = [queue.popleft() for _ in range(BATCH)]
            for item in due:
                waiter = item[4]
                if waiter is None:
                    items.append(item)
                elif not (waiter.happened or waiter.left):  # else its client has left
                    items.append(item)
                    asked.append((item, waiter))
        self._wanted = bool(queue)
        if not items:
            self._come_to_rest()
            return
        loop = self._loop
        now = self._last_sent = loop.time()
        call = _Call(items, asked, now, 0)
        self._calls[call] = None
        if self._watch is None:
            self._watch = loop.call_later(self._patience.seconds, self._look_at_watch)
        if len(asked) > 1 and self._drained is None:
            self._due = self._crowded = True
            self._next = loop.call_later(PACE, self._end_pause)
        elif queue:
            self._schedule()
        self._take(call, self._patience.seconds, partial(self._heard, call))

    def _end_pause(self) -> None:
        """Sends what has come since a crowded call, if somebody needs it."""
        if self._wanted:
            self._send()
        else:
            self._due = self._crowded = False
            self._next = None

    def _take(self, call: _Call, within: float, heard: Heard) -> None:
        call.clock = sent = int(monotonic() * 1_000_000)
        # The server's clock as of sending, never early: an answer's time minus the time its call was sent.
        deadline = 1 << 52 if self._offset is None else sent + self._offset + int(within * 1_000_000)
        self._link.call(*pack(call.items, deadline, self.lease_ttl), heard)

    def _answer(self, call: _Call, raw: bytes | Exception, prompt: bool) -> list[Verdict]:
        """prompt: it took so little time that it tells what the server's clock says now."""
        if isinstance(raw, Exception):
            raise raw
        now, answer = unpack(raw)
        offset = now - call.clock
        # An answer that stood still on its way makes the server's clock look later than it is. Deadlines that are late
        # let the server charge calls that were given up long before.
        if prompt or self._offset is None or offset < self._offset or any(verdict[0] == _LATE for verdict in answer):
            self._offset = offset
        return answer

    def _come_to_rest(self) -> None:
        if self._drained is not None and not self._calls and not self._queue:
            self._drained.set_result(None)
            self._drained = None

    def _heard(self, call: _Call, raw: bytes | Exception) -> None:
        calls = self._calls
        if call not in calls:
            return
        now = self._loop.time()
        took = now - call.sent
        try:
            prompt = took < self._patience.seconds / 2
            self._resolve(call.asked, self._answer(call, raw, prompt), prompt)
        except Exception as error:
            self._failed(error)
            return
        del calls[call]
        self._patience.took(took, now)
        self._failures = 0
        if self._wanted:
            if not calls and not self._crowded:
                self._send()
            elif not self._due or (self._next is None and len(calls) == MOST_CALLS - 1):
                self._schedule()
        elif not calls:
            self._come_to_rest()

    def _look_at_watch(self, late: bool = False) -> None:
        """Gives up requests whose call takes too long. A timer runs this when the oldest call is due."""
        self._watch = None
        if not self._calls:
            return
        loop, patience = self._loop, self._patience.seconds
        now = loop.time()
        oldest = next((call for call in self._calls if not call.given_up), None)
        first = next(iter(self._calls))
        left = first.sent + 2 * patience - now
        if oldest is not None:
            left = min(left, oldest.sent + patience - now)
        if left > 0:
            self._watch = loop.call_later(max(left, 0.001), self._look_at_watch)
            return
        if not late:
            # The answer may have arrived while this process was busy. It is read before the next check.
            self._watch = loop.call_later(0.001, self._look_at_watch, True)
            return
        why = describe(TimeoutError(), patience)
        if first.sent + 2 * patience <= now:
            self._failures = FAILURES
            self._failed(TimeoutError())
            return
        for call in self._calls:
            if call.sent + patience > now:
                break
            call.given_up = True
            for item in call.items:
                waiter = item[4]
                if waiter is not None and not waiter.done:
                    waiter.fail(StoreDown(why))
        self._watch = loop.call_later(0.001, self._look_at_watch)

    def _resolve(self, asked: Sequence[tuple[Item, Promise[Verdict]]], answer: Sequence[Verdict], prompt: bool) -> None:
        late: list[Item] = []
        for (item, waiter), verdict in zip(asked, answer, strict=True):
            if waiter.happened or waiter.left:  # given up, or its client left
                self._undo(item, verdict)
            elif verdict[0] == _LATE:
                late.append(item)
            else:
                waiter.bring(verdict)

        # A prompt answer that says "late": one of the clocks jumped. The server did nothing, so it is safe to ask again
        # now that the clocks agree.
        again = bool(late) and prompt and not self._jumped
        self._jumped = again
        for item in late:
            if again:
                self._queue.append(item)
                self._wanted = True
            elif item[4] is not None:
                item[4].fail(StoreDown("the store's clock jumps"))

    def _undo(self, item: Item, verdict: Verdict) -> None:
        code, lease, plan, costs, *_ = item
        if code == ADMIT and verdict[0] == -1:
            charged = [(i, verdict[4 + 3 * i], -costs[i]) for i in range(len(costs)) if verdict[4 + 3 * i] >= 0]
            self._queue.append((SETTLE, lease, plan, charged, None))
            self._wanted = True  # the caller sends it

    def _failed(self, error: Exception) -> None:
        """A call ended with `error`, so the other calls under way are lost too."""
        self._failures += 1
        reason = describe(error, self._patience.seconds)
        self._give_up(reason, ran=not isinstance(error, Unsent))
        if self._failures >= FAILURES and self.up:
            self.up, self.reason = False, reason
            if self._probe is None:
                self._probe = self._loop.create_task(self._keep_probing())
            self._changed()
        elif self._kept:  # still closed: what is to be settled goes with the next call
            self._queue.extend(self._kept)
            self._kept.clear()

    def _give_up(self, reason: str, *, ran: bool) -> None:
        """Drops all calls under way and the queue, except settlements. ran: the calls may have run or may yet run."""
        self._link.drop()
        calls, self._calls = self._calls, {}
        for call in calls:
            self._abandon(call.items, reason, ran=ran)
        queued = list(self._queue)
        self._queue.clear()
        self._abandon(queued, reason, ran=False)
        for timer in (self._next, self._watch, self._patient):
            if timer is not None:
                timer.cancel()
        self._next = self._watch = self._patient = None
        self._wanted = self._due = self._crowded = False
        self._come_to_rest()

    def _abandon(self, items: Sequence[Item], reason: str, *, ran: bool) -> None:
        for item in items:
            code, waiter = item[0], item[4]
            if waiter is not None and not waiter.done:
                waiter.fail(StoreDown(reason))
            elif code == SETTLE:
                keep = only_releases(item) if ran else item
                if keep is not None:
                    self._kept.append(keep)

    async def _keep_probing(self) -> None:
        prompt = 0
        while prompt < 2:
            await asyncio.sleep(uniform(0.8, 1.2) * PROBE_EVERY if prompt == 0 else 0)
            # The first may have to connect, which nobody waits for; the second must be as prompt as a request needs.
            within = PROBE_CONNECT if prompt == 0 else self._patience.most
            prompt = prompt + 1 if await self._probe_once(within, connect=prompt == 0) else 0
        self._probe = None
        self._recover()

    async def _probe_once(self, within: float, *, connect: bool = False) -> bool:
        heard: Future[bytes | Exception] = self._loop.create_future()

        def hear(answer: bytes | Exception) -> None:
            if not heard.done():
                heard.set_result(answer)

        within = max(within, self._patience.least)
        began = self._loop.time()
        probe: Item = (PROBE, self._me, _NO_PLAN, (self._key, self._beat_ttl), None)
        try:
            call = _Call([probe], (), began, 0)
            self._take(call, within, hear)
            async with asyncio.timeout(within):
                raw = await heard
                prompt = self._loop.time() - began < self._patience.seconds / 2
                replicas = self._answer(call, raw, prompt)[0][0]
        except Exception as error:
            self._link.drop()
            self.reason = describe(error, within)
            return False
        except asyncio.CancelledError:
            self._link.drop()
            raise
        self.replicas = max(replicas, 1)
        if not connect:
            now = self._loop.time()
            self._patience.took(now - began, now)
        return True

    def _recover(self) -> None:
        self.up, self.reason, self._failures = True, "", 0
        self._queue.extend(self._kept)
        self._kept.clear()
        if self._queue:
            self._want()
        self._changed()
