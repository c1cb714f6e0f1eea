"""One batch under way, in the gateway that has its lease.

The lines are read one after the other. Each that is begun, and each result, is noted in a file of this lease before
anything follows from it (`Notes`). A gateway that goes on with the batch reads the notes of all leases before: lines
with a result are not run again; those that were begun without one are, and are counted. In the end the results are put
together from the notes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Mapping
from functools import partial
from typing import BinaryIO

from gateway.auth import Principal
from gateway.core.errors import GatewayError
from gateway.features.batches.apis import Shared
from gateway.features.batches.line_call import LineCall
from gateway.features.batches.lines import FORMS, Asked, Undone
from gateway.features.batches.notes import Done, Notes, assemble, checked, read
from gateway.features.batches.state import Fault, Held, Lost, StoredFile, new_id
from gateway.features.batches.storage import Line, aside, last, lines, opened

LEASE_S = 10.0
_RENEW_S = 1.0
_LOST_S = 7.0
"""Without an answer of Redis for so long, the lease may be another gateway's soon."""
_AHEAD = 16
"""Lines of one batch that wait for a worker, or for a slot of all batches."""
_STALLED_S = 10.0
"""A batch of which no line was at a worker for so long cannot run now: no worker has its model, or a limit is spent."""
_TRIES = 3
"""A line that workers fail is tried so often; the kernel has tried several workers each time."""
_LONGEST_PAUSE_S = 30.0


class BatchRun:
    """One batch. Await `run` in a task; cancel the task to leave the batch to another gateway.

    calls  its lines under way
    """

    def __init__(self, shared: Shared, held: Held) -> None:
        self._shared = shared
        self._held = held
        self.spec, self._state = held.spec, held.state
        self._form = FORMS[held.spec.kind]
        self._why: Undone | None = None
        self._leaves = False  # to another gateway
        self._done = Done()
        self._again: deque[tuple[int, Asked]] = deque()
        self._tries: Counter[int] = Counter()
        self.calls: set[LineCall] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: BaseException | None = None
        self._rests_until = 0.0
        self._working = 0  # lines that are at workers
        self._moved: float | None = None  # when the last of them came or went; None while no line may be begun
        self._ahead = asyncio.Semaphore(_AHEAD)
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Returns once the batch has ended, or is left to another gateway. Raises OSError, GatewayError and Lost."""
        shared, state = self._shared, self._state
        renewing = asyncio.create_task(self._renew())
        try:
            try:
                await self._proceed()
            except FileNotFoundError:
                if self._leaves or not await aside(shared.storage.lost, f"{self.spec.id}.input"):
                    raise
                state.faults = (Fault("input_lost", "The requests of this batch are not in the store any more."),)
                state.succeeded, state.failed, state.output, state.error = 0, state.total, None, None
                state.reach("failed")
                await self._finish()
        finally:
            renewing.cancel()
            self.leave()
            for call in list(self.calls):
                call.give_back()
            await asyncio.gather(renewing, *self._tasks, return_exceptions=True)
            with contextlib.suppress(GatewayError):
                await shared.store.free(self._held)

    async def _proceed(self) -> None:
        state = self._state
        await self._write()
        if state.status == "validating" and self._why is not None:
            state.reach(self._why)  # it has no counted lines yet
        elif state.status == "validating":
            await self._validate()
            await self._write()  # a gateway that goes on must know that lines may have run
        if state.status in ("in_progress", "finalizing"):
            await self._go_on()
        if state.status == "in_progress" and self._why is None:
            with await opened(self._input) as file:
                await self._work(file)
        if not self._leaves:
            await self._finish()

    def _input(self) -> BinaryIO:
        return self._shared.storage.open(f"{self.spec.id}.input")

    def leave(self) -> None:
        """Begins no line any more; `run` returns when those under way are over. Those that wait for a slot go."""
        self._leaves = True
        self._wake.set()
        for call in list(self.calls):
            if not call.record.attempts:
                call.give_back()

    @property
    def leaves(self) -> bool:
        """Whether `leave` was called."""
        return self._leaves

    def stalled(self) -> float | None:
        """The seconds for which no line was at a worker, if they are many."""
        if self._moved is None or self._working or self._over:
            return None
        waited = time.monotonic() - self._moved
        return waited if waited >= _STALLED_S else None

    # -- the lease ----------------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        """Writes how far it is; ends the batch if that was asked for, and leaves it if the lease is lost."""
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(_RENEW_S)
            try:
                await self._write()
                renewed = time.monotonic()
            except Lost as lost:
                self._break(lost)
            except GatewayError as away:
                if time.monotonic() > renewed + _LOST_S:
                    self._break(away)

    async def _write(self) -> None:
        if time.time() >= self.spec.ends:
            self._stop("expired")
        if await self._shared.store.write(self._held, LEASE_S):
            self._stop("cancelled")

    def _break(self, error: BaseException) -> None:
        self._broken = self._broken or error
        self._give_up()

    def _stop(self, why: Undone) -> None:
        self._why = self._why or why
        self._give_up()

    def _give_up(self) -> None:
        """Nothing that is under way is waited for."""
        self._wake.set()
        for call in list(self.calls):
            call.give_back()

    @property
    def _over(self) -> bool:
        return self._why is not None or self._leaves or self._broken is not None

    # -- before the first line ----------------------------------------------------------------------------------------

    async def _validate(self) -> None:
        options, state, spec = self._shared.options, self._state, self.spec
        with await opened(self._input) as file:
            found = await last(checked(file, self._form, spec.endpoint, options), lambda: self._over)
        if self._broken is not None:
            raise self._broken
        if found is None or self._over:
            if self._why is not None:
                state.reach(self._why)
            return
        total, faults = found
        state.total = total
        if faults:
            state.faults = tuple(faults)
            state.reach("failed")
        else:
            state.reach("in_progress")
            self._shared.log("info", "batch began", batch=spec.id, key=spec.key, team=spec.team, requests=total)

    async def _go_on(self) -> None:
        """Reads what was done before. A batch that is over by then has only to be put together."""
        storage, state = self._shared.storage, self._state
        done = await last(read(storage.noted(self.spec.id), state.total), lambda: self._over)
        if self._broken is not None:
            raise self._broken
        if done is None:
            return
        self._done = done
        state.succeeded, state.failed = self._done.succeeded, self._done.failed
        if self._held.lease > 1:
            state.repeated += self._done.begun
            self._shared.count_lines(self.spec.kind, "repeated", self._done.begun)
            left = state.total - state.succeeded - state.failed
            facts = {"requests": state.total, "left": left, "repeated": self._done.begun}
            self._shared.log("info", "batch resumed", batch=self.spec.id, **facts)

    # -- lines --------------------------------------------------------------------------------------------------------

    async def _work(self, file: BinaryIO) -> None:
        storage, spec = self._shared.storage, self.spec
        notes = Notes(await opened(partial(storage.append_to, spec.id, self._held.lease)))
        read_ahead: deque[Line] = deque()
        at, ended = 1, False
        self._moved = time.monotonic()
        try:
            while not self._over:
                if not self._again and not read_ahead and not ended:
                    begins, most = at, self._shared.options.max_line_bytes
                    found_lines, at = await aside(lines, file, begins, most)
                    read_ahead.extend(found_lines)
                    ended = at == begins
                    if not (found_lines or ended):
                        continue
                if self._again:
                    number, asked = self._again.popleft()
                elif read_ahead:
                    line = read_ahead.popleft()
                    found = None if self._done.has(line.number) or not line.text else self._read(line)
                    if found is None:
                        continue
                    number, asked = line.number, found
                elif self._tasks:
                    await self._woken()
                    continue
                else:
                    break
                await self._begin(number, asked, notes)
            while self._tasks:
                await self._woken()
        finally:
            self._moved = None
            for call in list(self.calls):
                call.give_back()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await notes.close()
        if self._broken is not None:
            raise self._broken

    def _read(self, line: Line) -> Asked | None:
        found = self._form.read(line.text or b"", self.spec.endpoint)
        return None if isinstance(found, Fault) else found  # it was checked

    async def _woken(self) -> None:
        self._wake.clear()
        await self._wake.wait()

    async def _begin(self, number: int, asked: Asked, notes: Notes) -> None:
        """Begins a line, once few of this batch wait and no limit asks to wait. Puts it back if the batch is over
        before."""
        pause = self._rests_until - time.monotonic()
        if pause > 0:
            await asyncio.sleep(min(pause, _RENEW_S))
        got = False
        if pause <= _RENEW_S:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RENEW_S):
                    got = await self._ahead.acquire()
        if not got or self._over:
            if got:
                self._ahead.release()
            self._again.appendleft((number, asked))
            return
        task = asyncio.create_task(self._run(number, asked, notes))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(error)
        self._wake.set()

    async def _run(self, number: int, asked: Asked, notes: Notes) -> None:
        shared, spec, state = self._shared, self.spec, self._state
        has_slot = False

        async def take_slot() -> None:
            """A line that waits for a worker holds no slot: others' models may have workers."""
            nonlocal has_slot
            if not has_slot:
                await shared.slots.take(spec.owner)
                has_slot = True
                self._ahead.release()
                self._working += 1
                self._moved = time.monotonic()

        try:
            await notes.add(b"%d begun\n" % number)
            endpoint = shared.called(spec.endpoint)
            if endpoint is None:  # a reload has turned it off, for now
                self._rest(_LONGEST_PAUSE_S)
                self._again.append((number, asked))
                await notes.add(b"%d back\n" % number)
                return
            dialect = endpoint.dialect.name

            def caller() -> Principal:  # by the configuration in force, which another one may be by then
                return shared.caller(spec.who, dialect)

            call = LineCall(endpoint, spec.endpoint, asked.body, spec.id, caller, take_slot, shared.options.headroom)
            self.calls.add(call)
            try:
                outcome, status, body = await call.result()
            finally:
                self.calls.discard(call)
            self._tries[number] += outcome == "failed"
            if outcome in ("yielded", "again") or (outcome == "failed" and self._tries[number] < _TRIES):
                if outcome != "yielded":
                    self._rest(call.retry_after)
                shared.count_lines(spec.kind, "yielded" if outcome == "yielded" else "again", 1)
                self._again.append((number, asked))
                await notes.add(b"%d back\n" % number)
                return
            del self._tries[number]
            result = self._form.done(asked.custom_id, status, body, call.record.id)
            good = status == 200
            await notes.add(b"%d %s %b\n" % (number, b"ok" if good else b"no", result))
            self._done.add(number, good)
            state.succeeded, state.failed = self._done.succeeded, self._done.failed
            shared.count_lines(spec.kind, "succeeded" if good else "failed", 1)
        finally:
            if has_slot:
                shared.slots.give(spec.owner)
                self._working -= 1
                self._moved = time.monotonic()
            else:
                self._ahead.release()

    def _rest(self, seconds: float) -> None:
        self._rests_until = time.monotonic() + min(max(seconds, 0.05), _LONGEST_PAUSE_S)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        shared, spec, state = self._shared, self.spec, self._state
        keep_until = time.time() + shared.options.keep_s
        if state.status in ("in_progress", "finalizing"):
            state.reach("finalizing")
            # A gateway that has to do it again writes the same files.
            state.output = state.output or new_id("file-")
            if spec.kind == "openai":
                state.error = state.error or new_id("file-")
            await shared.store.write(self._held, LEASE_S)
            if time.time() >= spec.ends:
                self._why = self._why or "expired"
            why = self._why or "cancelled"
            async with shared.ends:
                steps = assemble(shared.storage, spec, state.total, why, (state.output, state.error))
                found = await last(steps, lambda: self._broken is not None)
            if found is None:
                assert self._broken is not None  # nothing else ends it
                raise self._broken
            done, files = found
            await self._describe(files, keep_until)
            state.succeeded, state.failed = done.succeeded, done.failed
            state.unfinished = state.total - done.succeeded - done.failed
            shared.count_lines(spec.kind, why, state.unfinished)
            state.reach("completed" if not state.unfinished else why)
        await shared.store.write(self._held, LEASE_S, keep_until)
        await aside(shared.storage.remove, (f"{spec.id}.input", spec.id))
        counts = {"succeeded": state.succeeded, "failed": state.failed, "unfinished": state.unfinished}
        shared.log("info", "batch ended", batch=spec.id, status=state.status, repeated=state.repeated, **counts)

    async def _describe(self, files: Mapping[str, int], keep_until: float) -> None:
        """Makes the files with results known to their owner."""
        state, spec = self._state, self.spec
        for id_ in (state.output, state.error):
            size = files.get(id_ or "", 0)
            if id_ is not None and size:
                name = f"{spec.id}_{'output' if id_ == state.output else 'error'}.jsonl"
                described = StoredFile(id_, spec.owner, name, "batch_output", size, time.time(), keep_until)
                await self._shared.store.add_file(described, None)
        state.output = state.output if files.get(state.output or "") else None
        state.error = state.error if files.get(state.error or "") else None
