"""Listens to what vLLM's engines publish of their prefix caches, over ZeroMQ. Imported only where that is configured.

An engine numbers its batches from 0 and keeps the last of them for whoever missed some (`replay_endpoint`). What cannot
be had again stays unknown: then `Blocks.whole` is False.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing, suppress
from urllib.parse import urlsplit

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from gateway.config.routing import KvEvents
from gateway.core.rounds import going_on
from gateway.fleet.blocks import MOST_BYTES, Blocks, Malformed, fingerprint
from gateway.fleet.worker import Worker

Report = Callable[[str, Worker, bool], None]

_END = (1 << 64) - 1
_MOST_WAITING = 64
"""Batches that wait to be read here: 64 MiB of an engine at most. Further ones wait at the engine, which drops what its
own bound does not take. Their numbers tell."""
_PATIENCE_S = 10.0
"""For each batch that is sent again."""
_HEARTBEAT_MS = 10_000
_AGAIN_S = 1.0
"""After a connection ended, or an error that nobody expected."""
_ROUNDS = 100
"""Requests for missed batches in a row: an engine drops what is more than its socket takes."""


class Listening:
    """The engines of the configuration. A reload goes on with the same, so that those in both stay connected.

    report  told of (model, worker, whether its events arrive) when that changed
    """

    def __init__(self, report: Report) -> None:
        self._context = zmq.asyncio.Context()
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
                listener = Listener(self._context, worker, ports, lambda one, live: self._report(model, one, live))
                self._tasks[model, worker, ports] = asyncio.create_task(listener.run())

    def _end(self, keys: Collection[tuple[str, Worker, KvEvents]]) -> None:
        for key in keys:
            self._tasks.pop(key).cancel()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._context.destroy(linger=0)


class Listener:
    """Keeps the `Blocks` of one worker."""

    def __init__(
        self, context: zmq.asyncio.Context, worker: Worker, ports: KvEvents, report: Callable[[Worker, bool], None]
    ) -> None:
        host = urlsplit(worker.address).hostname or ""
        host = f"[{host}]" if ":" in host else host
        self._context = context
        self._worker = worker
        self._report = report
        self._events = f"tcp://{host}:{ports.port}"
        self._replay = None if ports.replay_port is None else f"tcp://{host}:{ports.replay_port}"
        # Missed batches can be had again, as far as is known since the last connection.
        self._replays = False
        if worker.blocks is None:
            worker.blocks = Blocks()
        self._blocks = worker.blocks

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with going_on("cache events"):
                await self._listen()
            await asyncio.sleep(_AGAIN_S)

    async def _listen(self) -> None:
        """Until the connection ends. ZeroMQ makes it, however long that takes; it does not connect again after a batch
        that was too large."""
        events = self._socket(zmq.SUB)
        monitor = events.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        poller = zmq.asyncio.Poller()
        poller.register(monitor, zmq.POLLIN)
        poller.register(events, zmq.POLLIN)
        try:
            events.subscribe(b"")
            events.connect(self._events)
            while True:
                ready = dict(await poller.poll())
                if monitor in ready:
                    told = parse_monitor_message(await monitor.recv_multipart())
                    if told["event"] == zmq.EVENT_DISCONNECTED:
                        return
                    await self._connected()
                else:
                    await self._heard(await events.recv_multipart())
                await asyncio.sleep(0)  # thousands may wait: requests come in between
        finally:
            self._disconnected()
            events.disable_monitor()
            events.close(linger=0)

    def _socket(self, kind: int) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.ipv6 = True
        socket.linger = 0
        socket.rcvhwm = _MOST_WAITING
        # libzmq ends a connection on which a larger one comes: it is never held.
        socket.maxmsgsize = MOST_BYTES
        # A connection that died without a word is noticed, and made anew.
        socket.heartbeat_ivl = socket.heartbeat_timeout = _HEARTBEAT_MS
        socket.reconnect_ivl, socket.reconnect_ivl_max = 100, 5_000
        return socket

    def _tell(self, live: bool) -> None:
        blocks = self._blocks
        if blocks.owner is self and blocks.heard != live:
            blocks.heard = live
            self._report(self._worker, live)

    async def _connected(self) -> None:
        blocks = self._blocks
        blocks.owner, blocks.connected = self, True
        self._replays = self._replay is not None
        if self._replays:
            await self._catch_up()

    def _disconnected(self) -> None:
        self._tell(False)
        if self._blocks.owner is self:
            self._blocks.connected = False

    def _missed(self, number: int) -> int:
        """Batches before `number` that were not had. What was published before anything was had was not missed."""
        last = self._blocks.last
        if last < 0:
            return 0
        return number - last - 1 if number > last else number  # an engine that was started anew numbers from 0

    async def _heard(self, frames: list[bytes]) -> None:
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
        self._tell(True)

    async def _catch_up(self) -> None:
        """Applies what the engine published since `Blocks.last`, if it still has that; else all that it has."""
        self._tell(False)
        for _ in range(_ROUNDS):
            try:
                if await self._replayed():
                    self._tell(True)
                    return
            except TimeoutError:
                break
        self._replays = False

    async def _replayed(self) -> bool:
        """One round; whether nothing is missing now."""
        blocks = self._blocks
        begun = blocks.last >= 0
        first, moved = True, False
        async with aclosing(self._asked(max(0, blocks.last))) as batches:
            async for number, payload in batches:
                if first and begun and (number != blocks.last or fingerprint(payload) != blocks.newest):
                    # Another engine's: it was started anew. Or it has forgotten what came before.
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
        with suppress(Malformed):  # then nothing is known of this engine but what it tells next
            for _ in self._blocks.steps(number, payload):
                await asyncio.sleep(0)  # requests come in between
                if self._blocks.owner is not self:
                    return

    async def _asked(self, start: int) -> AsyncGenerator[tuple[int, bytes], None]:
        """The batches from number `start` on that the engine still has. Raises TimeoutError."""
        socket = self._socket(zmq.DEALER)
        try:
            socket.connect(self._replay or "")
            await socket.send_multipart([b"", start.to_bytes(8, "big")])
            while True:
                async with asyncio.timeout(_PATIENCE_S):
                    frames = await socket.recv_multipart()
                number = int.from_bytes(frames[-2], "big") if len(frames) > 1 else _END
                if number == _END:
                    return
                yield number, frames[-1]
                await asyncio.sleep(0)  # as in `_listen`
        finally:
            socket.close(linger=0)
