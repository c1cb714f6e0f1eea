"""Receives the events that vLLM's engines publish about their prefix caches, over ZeroMQ.

An engine numbers its batches from 0 and keeps the last of them for listeners that missed some (`replay_endpoint`). If a
batch is lost for good, some blocks stay unknown: then `Blocks.whole` is False.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing, closing, suppress
from urllib.parse import urlsplit

from gateway.background import cancel_tasks, keep_running
from gateway.config.routing import KvEvents
from gateway.fleet.blocks import MOST_BYTES, Blocks, Malformed, fingerprint
from gateway.fleet.worker import Worker
from gateway.fleet.zmtp import Peer, Unfit

Report = Callable[[str, Worker, bool], None]

_END = (1 << 64) - 1
_BROKEN = (OSError, EOFError, Unfit)
"""Ways in which a connection ends; TimeoutError is an OSError."""
_REACH_S = 0.1
_PATIENCE_S = 10.0
"""Seconds to wait for each batch that is sent again."""
_AGAIN_S = 1.0
"""Seconds of rest after a connection ended, or after an unexpected error."""
_ROUNDS = 100
"""Requests for missed batches in a row: an engine drops what is more than its socket takes."""


class Listening:
    """The engines of the configuration. A reload goes on with the same, so that those in both stay connected.

    report  called with (model, worker, whether its events arrive) when that, or `Blocks.whole` of live ones, changed
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._tasks: dict[tuple[str, Worker, KvEvents], asyncio.Task[None]] = {}

    def keep(self, models: Collection[str]) -> None:
        """These are the models that are listened to."""
        self._end([key for key in self._tasks if key[0] not in models])

    def follow(self, model: str, workers: Mapping[Worker, KvEvents]) -> None:
        """These are the workers of `model` from now on, with the ports of their engines."""
        self._end([key for key in self._tasks if key[0] == model and workers.get(key[1]) != key[2]])
        for worker, ports in workers.items():
            if (model, worker, ports) not in self._tasks:
                listener = Listener(worker, ports, lambda one, live: self._report(model, one, live))
                self._tasks[model, worker, ports] = asyncio.create_task(listener.run())

    def _end(self, keys: Collection[tuple[str, Worker, KvEvents]]) -> None:
        for key in keys:
            self._tasks.pop(key).cancel()

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, {}
        await cancel_tasks(*tasks.values())


class Listener:
    """Keeps the `Blocks` of one worker."""

    def __init__(self, worker: Worker, ports: KvEvents, report: Callable[[Worker, bool], None]) -> None:
        host = urlsplit(worker.address).hostname or ""
        self._worker = worker
        self._report = report
        self._events = host, ports.port
        self._replay = None if ports.replay_port is None else (host, ports.replay_port)
        # The engine sends missed batches again, as far as is known since the last connection.
        self._replays, self._whole = False, True
        if worker.blocks is None:
            worker.blocks = Blocks()
        self._blocks = worker.blocks

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with keep_running("cache events"):
                await self._listen()
            await asyncio.sleep(_AGAIN_S)

    async def _listen(self) -> None:
        """Until the connection ends, which it does at a message that is too large."""
        with suppress(*_BROKEN), closing(await Peer.connect(*self._events, "SUB", MOST_BYTES)) as events:
            blocks = self._blocks
            try:
                blocks.owner, blocks.connected = self, True
                self._replays = self._replay is not None
                if self._replays:
                    await self._catch_up()
                while True:
                    await self._received(await events.receive())
                    await asyncio.sleep(0)  # thousands may wait: requests come in between
            finally:
                self._notify(False)
                if blocks.owner is self:
                    blocks.connected = False

    def _notify(self, live: bool) -> None:
        blocks = self._blocks
        if blocks.owner is self and (blocks.arriving != live or (live and blocks.whole != self._whole)):
            blocks.arriving, self._whole = live, blocks.whole
            self._report(self._worker, live)

    def _missed(self, number: int) -> int:
        """Batches before `number` that did not arrive. Those published before the first that arrived do not count."""
        last = self._blocks.last
        if last < 0:
            return 0
        return number - last - 1 if number > last else number  # an engine that restarted numbers from 0

    async def _received(self, frames: list[bytes]) -> None:
        blocks = self._blocks
        if blocks.owner is not self or len(frames) < 2:
            return
        number, payload = int.from_bytes(frames[-2], "big"), frames[-1]
        if self._replays and number > blocks.last + 1:
            await self._catch_up()
        if self._replays and number <= blocks.last:
            return
        if number != blocks.last + 1:
            blocks.begin(number == 0, self._missed(number))
        await self._apply(number, payload)
        self._notify(True)

    async def _catch_up(self) -> None:
        """Applies what the engine published since `Blocks.last`, if it still has that; else all that it has."""
        self._notify(False)
        for _ in range(_ROUNDS):
            try:
                if await self._replayed():
                    self._notify(True)
                    return
            except _BROKEN:
                break
        self._replays = False

    async def _replayed(self) -> bool:
        """One round; whether nothing is missing now."""
        blocks = self._blocks
        begun = blocks.last >= 0
        first, moved = True, False
        async with aclosing(self._replayed_from(max(0, blocks.last))) as batches:
            async for number, payload in batches:
                if first and begun and (number != blocks.last or fingerprint(payload) != blocks.newest):
                    # The batch is from a restarted engine, or the engine has dropped the batches before this one.
                    blocks.begin(True, self._missed(number) if number > blocks.last else 0)
                    return False
                if number > blocks.last + 1 and moved:  # some were dropped on the way
                    return False
                if number > blocks.last + 1:
                    blocks.begin(False, self._missed(number))
                if number > blocks.last:
                    await self._apply(number, payload)
                    moved = True
                first = False
        if first and begun:
            blocks.begin(True)
            return False
        return True

    async def _apply(self, number: int, payload: bytes) -> None:
        with suppress(Malformed):  # then nothing is known of this engine but what it reports next
            for _ in self._blocks.steps(number, payload):
                await asyncio.sleep(0)  # requests come in between
                if self._blocks.owner is not self:
                    return

    async def _replayed_from(self, start: int) -> AsyncGenerator[tuple[int, bytes], None]:
        """The batches from number `start` on that the engine still has. Raises what is in `_BROKEN`."""
        async with asyncio.timeout(_PATIENCE_S):
            peer = await self._reached()
        with closing(peer):
            peer.send(b"", start.to_bytes(8, "big"))
            while True:
                async with asyncio.timeout(_PATIENCE_S):
                    frames = await peer.receive()
                number = int.from_bytes(frames[-2], "big") if len(frames) > 1 else _END
                if number == _END:
                    return
                yield number, frames[-1]
                await asyncio.sleep(0)  # as in `_listen`

    async def _reached(self) -> Peer:
        """A connection for missed batches, to `replay_port`. An engine may open that port later than the other one."""
        assert self._replay is not None
        while True:
            with suppress(OSError, EOFError):
                return await Peer.connect(*self._replay, "DEALER", MOST_BYTES)
            await asyncio.sleep(_REACH_S)
