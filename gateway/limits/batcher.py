"""One stream of script calls to one hash slot: batching, the deadline, the breaker. Knows nothing of redis.

At most one call is under way. What is asked meanwhile goes with the next one, so the operations of one loop turn, and
under load those of one round trip, share a call.

Pacing.  A call costs this process as much as some eight operations in it. One in which several waited is the sign of a
crowd: the next leaves no sooner than `PACE` after it, and takes along all that came until then. Who asks one thing
after the other is alone in each call and never held up, nor is anybody while requests are few.

Deadline.  Who waits is given up on when `timeout` has passed since it asked, wherever its operation is by then; what
the server grants it later is undone. A call is given up on when `timeout` has passed since it was sent, and all that
queued behind it fails with it.

Breaker.  closed: calls go out. `FAILURES` failed calls in a row open it. open: nothing goes out, `admit` raises at
once, settlements are kept. A probe in the background (half-open) asks every `PROBE_EVERY`; two prompt answers in a
row close it again and the kept settlements go first.

A call that timed out may still run when the server wakes. It is never sent again. Its admissions carry a deadline in
the server's clock and do nothing after it, so at most a request that the server decided in time, and whose answer was
lost, stays charged: its rates slide out of their windows, its slots expire with their lease. Settlements have no
deadline, as they are right whenever they run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from asyncio import Future, Task, TimerHandle
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from random import uniform
from time import monotonic
from typing import Any, Protocol, cast

from gateway.limits.batch import ADMIT, BEAT, SETTLE, Item, only_releases, pack, unpack
from gateway.limits.model import Plan, Verdict
from gateway.limits.store import StoreDown

FAILURES = 2
PROBE_EVERY = 0.5
PROBE_CONNECT = 1.0
PACE = 0.001
"""Seconds; the resolution of uvloop's timers makes it up to that."""
BATCH = 256
KEPT = 20_000
_NO_PLAN = Plan((), (), ())

Heard = Callable[[bytes | Exception], None]


class Link(Protocol):
    """Takes one call at a time to the server."""

    def call(self, keys: Sequence[bytes], payload: bytes, heard: Heard) -> None:
        """Runs the script with these keys and this payload. `heard` is told once, and not before this returns: the
        answer, `Unsent` when the script certainly did not run, or any other exception."""
        ...

    def drop(self) -> None:
        """Gives up the call under way: nothing will be heard of it."""
        ...


class Unsent(Exception):
    """The call never reached the server."""


class Refused(Exception):
    """The server answered with this error, which begins with its code."""


class Batcher:
    """key is the lane's heartbeat counter, me this process's name in it; timeout in seconds."""

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
        self._timeout = timeout
        self._beat_ttl = round(beat_ttl * 1_000_000)
        self._changed = changed
        self._queue: deque[Item] = deque()
        self._kept: deque[Item] = deque(maxlen=KEPT)
        self._rest = True  # no call is under way and none is about to be
        self._under_way: Sequence[Item] = ()
        self._sent = 0.0
        self._pause: TimerHandle | None = None
        self._watch: TimerHandle | None = None
        self._flushed: Future[None] | None = None
        self._probe: Task[None] | None = None
        self._failures = 0
        self._jumped = False
        self._offset: int | None = None
        self._loop = asyncio.get_running_loop()

    def ask(self, code: int, plan: Plan, what: Sequence[Any], lease: str = "") -> Future[Verdict]:
        """Queues an operation that has an answer. Raises `StoreDown` at once while the breaker is open."""
        if not self.up:
            raise StoreDown(self.reason)
        loop = self._loop
        waiter: Future[Verdict] = loop.create_future()
        self._queue.append((code, lease, plan, what, waiter, loop.time()))
        if self._rest:
            self._rest = False
            loop.call_soon(self._send)
        return waiter

    def tell(self, code: int, plan: Plan, what: Sequence[Any], lease: str) -> None:
        """Queues an operation without an answer. While the breaker is open settlements are kept, renewals dropped."""
        if self.up:
            self._queue.append((code, lease, plan, what, None, 0.0))
            if self._rest:
                self._rest = False
                self._loop.call_soon(self._send)
        elif code == SETTLE:
            self._kept.append((code, lease, plan, what, None, 0.0))

    async def beat(self) -> None:
        with contextlib.suppress(StoreDown):
            self.replicas = max((await self.ask(BEAT, _NO_PLAN, (self._key, self._beat_ttl), self._me))[0], 1)

    async def start(self) -> None:
        """Probes once; if that fails, goes on probing in the background."""
        if await self._probe_once(PROBE_CONNECT):
            self._recover()
        else:
            self._probe = self._loop.create_task(self._keep_probing())

    async def flush(self) -> None:
        """Sends at once what is queued; returns when nothing is under way."""
        if not self._rest:
            flushed = self._flushed = self._flushed or self._loop.create_future()
            self._resume()
            await asyncio.shield(flushed)

    async def close(self) -> None:
        await self.flush()
        if self.up:
            with contextlib.suppress(StoreDown):
                goodbye = self.ask(BEAT, _NO_PLAN, (self._key, 0), self._me)
                self._resume()
                await goodbye
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.wait([self._probe])
        self.up, self.reason = False, "closed"
        self._link.drop()
        items, self._under_way = self._under_way, ()
        self._abandon(items, "closed", ran=True)
        self._abandon_queue("closed")
        for timer in (self._pause, self._watch):
            if timer is not None:
                timer.cancel()
        self._pause = self._watch = None
        self._come_to_rest()

    # -- the one call under way -------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Sends what is queued, or rests."""
        queue = self._queue
        items: list[Item] = []
        while queue and not items:
            if len(queue) <= BATCH:
                due = list(queue)
                queue.clear()
            else:
                due = [queue.popleft() for _ in range(BATCH)]
            # Without those whose client left, or whose time was up.
            items = [item for item in due if (waiter := item[4]) is None or not waiter.done()]
        if not items:
            self._come_to_rest()
            return
        self._under_way = items
        self._sent = self._loop.time()
        if self._flushed is None and len([1 for item in items if item[4] is not None]) > 1:
            self._pause = self._loop.call_later(PACE, self._resume)
        if self._watch is None:
            self._watch = self._loop.call_later(self._timeout, self._look_at_watch)
        self._call(items, self._timeout, self._heard)

    def _call(self, items: Sequence[Item], within: float, heard: Heard) -> None:
        self._clock = sent = int(monotonic() * 1_000_000)
        # The server's clock as of sending, never early: an answer's time minus the time its call was sent.
        deadline = 1 << 52 if self._offset is None else sent + self._offset + int(within * 1_000_000)
        self._link.call(*pack(items, deadline, self.lease_ttl), heard)

    def _answer(self, raw: bytes | Exception) -> list[Verdict]:
        if isinstance(raw, Exception):
            raise raw
        now, answer = unpack(raw)
        self._offset = now - self._clock
        return answer

    def _resume(self) -> None:
        """Ends the pause after a crowded call."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
            if not self._under_way:
                self._send()

    def _come_to_rest(self) -> None:
        self._rest = True
        if self._flushed is not None:
            self._flushed.set_result(None)
            self._flushed = None

    def _heard(self, raw: bytes | Exception) -> None:
        items, self._under_way = self._under_way, ()
        try:
            self._resolve(items, self._answer(raw), self._loop.time() - self._sent < self._timeout / 2)
        except Exception as error:
            self._failed(items, error)
            if self._pause is not None:
                self._pause.cancel()
                self._pause = None
            self._come_to_rest()
            return
        self._failures = 0
        if self._pause is None:
            self._send()

    def _look_at_watch(self) -> None:
        """Gives up what has waited for `timeout`. Looked at when the oldest may have, so seldom while answers come."""
        self._watch = None
        now = self._loop.time()
        next_look = None
        for item in chain(self._under_way, self._queue):
            waiter = item[4]
            if waiter is None or waiter.done():
                continue
            left = item[5] + self._timeout - now
            if left > 0:
                next_look = left
                break
            waiter.set_exception(StoreDown(describe(TimeoutError(), self._timeout)))
        if self._under_way:
            left = self._sent + self._timeout - now
            if left <= 0:
                self._link.drop()
                self._heard(TimeoutError())
                return
            next_look = left if next_look is None else min(left, next_look)
        if next_look is not None:
            self._watch = self._loop.call_later(max(next_look, 0.001), self._look_at_watch)

    def _resolve(self, items: Sequence[Item], answer: Sequence[Verdict], prompt: bool) -> None:
        late: list[Item] = []
        asked = [item for item in items if item[4] is not None]
        for item, verdict in zip(asked, answer, strict=True):
            waiter = cast("Future[Verdict]", item[4])
            if waiter.done():  # its client left meanwhile
                self._undo(item, verdict)
            elif verdict[0] == -2:
                late.append(item)
            else:
                waiter.set_result(verdict)

        # A prompt answer that says "late": one of the clocks jumped. Nothing was done, so asking again, now that the
        # clocks agree, is no blind retry.
        again = bool(late) and prompt and not self._jumped
        self._jumped = again
        for item in late:
            if again:
                self._queue.append(item)
            elif item[4] is not None:
                item[4].set_exception(StoreDown("the store's clock jumps"))

    def _undo(self, item: Item, verdict: Verdict) -> None:
        code, lease, plan, costs, *_ = item
        if code == ADMIT and verdict[0] == -1:
            charged = [(i, verdict[4 + 3 * i], -costs[i]) for i in range(len(costs)) if verdict[4 + 3 * i] >= 0]
            self._queue.append((SETTLE, lease, plan, charged, None, 0.0))  # who calls us sends what is queued

    def _failed(self, items: Sequence[Item], error: Exception) -> None:
        self._failures += 1
        reason = describe(error, self._timeout)
        self._abandon(items, reason, ran=not isinstance(error, Unsent))
        self._abandon_queue(reason)
        if self._failures >= FAILURES and self.up:
            self.up, self.reason = False, reason
            if self._probe is None:
                self._probe = self._loop.create_task(self._keep_probing())
            self._changed()
        elif self._kept:  # still closed: what is to be settled goes with the next call
            self._queue.extend(self._kept)
            self._kept.clear()

    def _abandon(self, items: Sequence[Item], reason: str, *, ran: bool) -> None:
        """ran: the operations may have run, or may run yet."""
        for item in items:
            code, waiter = item[0], item[4]
            if waiter is not None and not waiter.done():
                waiter.set_exception(StoreDown(reason))
            elif code == SETTLE:
                keep = only_releases(item) if ran else item
                if keep is not None:
                    self._kept.append(keep)

    def _abandon_queue(self, reason: str) -> None:
        items = list(self._queue)
        self._queue.clear()
        self._abandon(items, reason, ran=False)

    async def _keep_probing(self) -> None:
        prompt = 0
        while prompt < 2:
            await asyncio.sleep(uniform(0.8, 1.2) * PROBE_EVERY if prompt == 0 else 0)
            # The first may have to connect, which nobody waits for; the second must be as prompt as a request needs.
            prompt = prompt + 1 if await self._probe_once(PROBE_CONNECT if prompt == 0 else self._timeout) else 0
        self._probe = None
        self._recover()

    async def _probe_once(self, within: float) -> bool:
        heard: Future[bytes | Exception] = self._loop.create_future()

        def hear(answer: bytes | Exception) -> None:
            if not heard.done():
                heard.set_result(answer)

        probe: Item = (BEAT, self._me, _NO_PLAN, (self._key, self._beat_ttl), None, 0.0)
        try:
            self._call([probe], within, hear)
            async with asyncio.timeout(within):
                answer = self._answer(await heard)
        except Exception as error:
            self._link.drop()
            self.reason = describe(error, within)
            return False
        except asyncio.CancelledError:
            self._link.drop()
            raise
        self.replicas = max(answer[0][0], 1)
        return True

    def _recover(self) -> None:
        self.up, self.reason, self._failures = True, "", 0
        self._queue.extend(self._kept)
        self._kept.clear()
        if self._queue and self._rest:
            self._rest = False
            self._loop.call_soon(self._send)
        self._changed()


def describe(error: Exception, timeout: float) -> str:
    """For a log line: what kind of failure, without addresses or secrets."""
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout * 1000:.0f} ms"
    if isinstance(error, Refused):
        said = str(error)[:100]
        # Where there is a digit there may be an address.
        return said.partition(" ")[0] if any(map(str.isdigit, said)) else said
    inner = error.__cause__ if isinstance(error, Unsent) and error.__cause__ is not None else error
    met = inner.__context__  # the socket's error, which redis-py put its own in place of
    if isinstance(met, ssl.SSLCertVerificationError):
        return f"{type(inner).__name__} ({met.verify_message.partition(',')[0]})"  # a name or an address follows
    if isinstance(met, ssl.SSLError):  # whose number is not the system's
        return f"{type(inner).__name__} ({(met.reason or 'TLS').replace('_', ' ').lower()})"
    if isinstance(met, OSError) and met.errno:
        # Its own words hold the address, but for those of a name that is not found (which has a negative number).
        return f"{type(inner).__name__} ({os.strerror(met.errno) if met.errno > 0 else met.strerror})"
    return type(inner).__name__
